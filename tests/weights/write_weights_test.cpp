// Writing: every dtype, shape and stride comes back; nothing half-written is ever seen.
#include <ATen/Functions.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "weights_testing.h"
#include "written_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

void check_equal(const at::Tensor& written, const at::Tensor& read) {
  CHECK(written.sizes() == read.sizes());
  CHECK(written.scalar_type() == read.scalar_type());
  CHECK(bits(written) == bits(read));
  CHECK(read.is_contiguous());
}

TEST_CASE("write_weights: every dtype, shape and stride comes back", "[weights]") {
  at::manual_seed(1);
  StateDict tensors;
  for (const auto& item : tensors_of_all_kinds()) {
    const auto dtype = item.value().scalar_type();
    if (dtype != at::kComplexDouble && dtype != at::kComplexHalf) {
      tensors.insert(item.key(), item.value());
    }
  }
  const TemporaryFolder folder;
  write_weights(folder / "a", tensors, {{"k", "v\n\"\\\x01é"}, {"", ""}});
  const WeightsFile file = read_weights_file(folder / "a");
  CHECK(file.metadata == std::map<std::string, std::string>{{"k", "v\n\"\\\x01é"}, {"", ""}});
  REQUIRE(file.tensors.size() == tensors.size());
  for (const auto& item : tensors) {
    INFO(item.key());
    check_equal(item.value(), file.tensors[item.key()]);
  }
  SECTION("the same arguments give the same bytes") {
    write_weights(folder / "b", tensors, file.metadata);
    CHECK(read_bytes(folder / "a") == read_bytes(folder / "b"));
  }
  SECTION("what was read writes the same file") {
    write_weights(folder / "b", file.tensors, file.metadata);
    CHECK(read_bytes(folder / "a") == read_bytes(folder / "b"));
  }
}

TEST_CASE("write_weights: lazy conjugates, negatives, zeros and autograd", "[weights]") {
  const at::Tensor z = at::randn({2, 3}, at::kComplexFloat);
  const auto tensors = dict({{"conj", z.conj()},
                             {"neg", at::imag(z.conj())},
                             {"zero", at::_efficientzerotensor({2, 2}, at::kFloat)},
                             {"grad", at::ones({2}).requires_grad_()}});
  const TemporaryFolder folder;
  write_weights(folder / "a", tensors);
  const StateDict read = read_weights(folder / "a");
  CHECK(at::equal(read["conj"], z.conj()));
  CHECK(at::equal(read["neg"], -at::imag(z)));
  CHECK(at::equal(read["zero"], at::zeros({2, 2})));
  CHECK_FALSE(read["grad"].requires_grad());
}

TEST_CASE("write_weights: larger items first, all aligned, the header padded", "[weights]") {
  const TemporaryFolder folder;
  write_weights(folder / "a", dict({{"b8", at::ones({3}, at::kByte)},
                                    {"f32", at::ones({1})},
                                    {"a8", at::ones({1}, at::kByte)},
                                    {"f64", at::ones({1}, at::kDouble)},
                                    {"f16", at::ones({1}, at::kHalf)}}));
  CHECK(read_weights(folder / "a").keys() == std::vector<std::string>{"f64", "f32", "f16", "b8", "a8"});
  const std::string bytes = read_bytes(folder / "a");
  CHECK(static_cast<unsigned char>(bytes[0]) % 8 == 0);
  CHECK(bytes.find(R"("f16":{"dtype":"F16","shape":[1],"data_offsets":[12,14]},"b8":)") != std::string::npos);
  write_weights(folder / "none", StateDict());
  CHECK(read_bytes(folder / "none") == safetensors("{}      "));
}

TEST_CASE("write_weights: what the format lacks is refused before anything is written", "[weights]") {
  struct Row {
    std::string name;
    at::Tensor tensor;
    std::string found;
  };
  const at::Tensor one = at::ones({2, 2});
  const std::vector<Row> rows{
      {"a",
       {},
       R"(tensor "a": expected a dense tensor of a dtype that safetensors has, found an undefined tensor)"},
      {"a", at::ones({2}, at::kComplexDouble), "found dtype complex128"},
      {"a", at::ones({2}, at::kComplexHalf), "found dtype complex32"},
      {"a", one.to_sparse(), "found a tensor of layout Sparse"},
      {"a", at::quantize_per_tensor(one, 1.0, 0, at::kQInt8), "found a quantized tensor"},
      {"a", at::empty({2}, at::kMeta), "found a meta tensor"},
      {"__metadata__", one, R"(tensor "__metadata__": expected another name)"},
      {"a\xFF", one, R"(tensor "a\xff": expected a name of valid UTF-8)"},
      {"a", one.select(0, 0).select(0, 0).expand({int64_t{1} << 61}), "less than 2^63 bytes"},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    INFO(row.found);
    const auto tensors = dict({{"fine", one}, {row.name, row.tensor}});
    const std::string message = error_of<Error>([&] { write_weights(folder / "a", tensors); });
    CHECK_THAT(message, ContainsSubstring(row.found));
    CHECK(message.starts_with((folder / "a").string() + ": "));
  }
  for (const auto& metadata : {std::map<std::string, std::string>{{"k\x80", ""}}, {{"k", "\xC3"}}}) {
    CHECK_THAT(error_of<Error>([&] { write_weights(folder / "a", dict({}), metadata); }),
               ContainsSubstring("expected key and value of valid UTF-8"));
  }
  CHECK(names_in(folder / "").empty());
}

TEST_CASE("write_weights: a failure leaves the old file and nothing else", "[weights]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  write_weights(path, dict({{"old", at::ones({4})}}));
  const std::string old = read_bytes(path);

  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit before = limit;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  limit.rlim_cur = 10'000;  // stands in for a full disk: one write comes out short, the next one fails
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string message = error_of<Error>([&] {
    write_weights(path, dict({{"new", at::ones({100'000})}}));
  });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);

  CHECK_THAT(message, ContainsSubstring(": cannot write: File too large"));
  CHECK(read_bytes(path) == old);
  CHECK(names_in(folder / "") == std::vector<std::string>{"a"});
}

TEST_CASE("write_weights: targets", "[weights]") {
  const TemporaryFolder folder;
  const auto tensors = dict({{"a", at::arange(6, at::kFloat)}});
  const auto message = [&](const std::filesystem::path& path) {
    return error_of<Error>([&] { write_weights(path, tensors); });
  };
  SECTION("no folder, a folder, a device") {
    CHECK_THAT(message(folder / "none/a"),
               ContainsSubstring("none/a: cannot create: No such file or directory"));
    std::filesystem::create_directory(folder / "folder");
    CHECK_THAT(message(folder / "folder"), ContainsSubstring("expected a file to write, found a directory"));
    CHECK_THAT(message("/dev/null"), ContainsSubstring("found something that is not a regular file"));
  }
  SECTION("a link stays a link") {
    write_weights(folder / "file", dict({}));
    std::filesystem::create_symlink("file", folder / "link");
    write_weights(folder / "link", tensors);
    CHECK(std::filesystem::is_symlink(folder / "link"));
    CHECK(read_weights(folder / "file").size() == 1);
  }
  SECTION("the mode of any new file") {
    const mode_t before = ::umask(027);
    write_weights(folder / "a", tensors);
    ::umask(before);
    CHECK(std::filesystem::status(folder / "a").permissions() == static_cast<std::filesystem::perms>(0640));
  }
  SECTION("a file may be written from tensors that are mapped from it") {
    write_weights(folder / "a", tensors);
    const StateDict mapped = read_weights(folder / "a");
    write_weights(folder / "a", dict({{"b", mapped["a"]}, {"c", mapped["a"] + 1}}));
    CHECK(at::equal(read_weights(folder / "a")["b"], tensors["a"]));
    CHECK(at::equal(mapped["a"], tensors["a"]));
  }
  SECTION("a name of the greatest length, relative to the working folder") {
    const std::string name(255, 'n');
    const auto here = std::filesystem::current_path();
    std::filesystem::current_path(folder / "");
    write_weights(name, tensors);
    std::filesystem::current_path(here);
    CHECK(names_in(folder / "") == std::vector<std::string>{name});
  }
}

}  // namespace
}  // namespace mha::testing
