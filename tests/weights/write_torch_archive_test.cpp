// Writing what Python's torch.load reads. What Python itself makes of such files is in written_files_test.cpp.
#include <ATen/Functions.h>
#include <torch/serialize.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "torch_testing.h"
#include "weights/zip_archive.h"
#include "weights_testing.h"
#include "written_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("write_weights: .pt: every dtype, shape and stride comes back", "[weights]") {
  at::manual_seed(1);
  const StateDict tensors = tensors_of_all_kinds();
  const TemporaryFolder folder;
  write_weights(folder / "a.pt", tensors);
  const WeightsFile file = read_weights_file(folder / "a.pt", {.verify_checksums = true});
  CHECK(file.format == "torch-save");
  CHECK(file.tensors.keys() == tensors.keys());
  for (const auto& item : tensors) {
    INFO(item.key());
    const at::Tensor& read = file.tensors[item.key()];
    CHECK(read.sizes() == item.value().sizes());
    CHECK(read.scalar_type() == item.value().scalar_type());
    CHECK(bits(read) == bits(item.value()));
  }
  SECTION("the same tensors give the same bytes, under any name and wherever they lie in memory") {
    StateDict copies;
    for (const auto& item : tensors) {
      copies.insert(item.key(), item.value());
    }
    write_weights(folder / "b.bin", copies);
    CHECK(read_bytes(folder / "a.pt") == read_bytes(folder / "b.bin"));
    write_weights(folder / "c.pt", file.tensors);
    write_weights(folder / "d.pt", read_weights(folder / "c.pt"));
    CHECK(read_bytes(folder / "c.pt") == read_bytes(folder / "d.pt"));
  }
  SECTION("each record is aligned to 64 bytes") {
    std::string bytes = read_bytes(folder / "a.pt");
    const weights::ZipArchive archive(source_of(bytes));
    CHECK(archive.entries().size() > 20);
    for (const weights::ZipEntry& entry : archive.entries()) {
      CHECK_FALSE(entry.deflated);
      CHECK((reinterpret_cast<const char*>(entry.packed.data()) - bytes.data()) % 64 == 0);
    }
  }
}

TEST_CASE("write_weights: the suffix tells the format", "[weights]") {
  const TemporaryFolder folder;
  const StateDict tensors = dict({{"a", at::ones({2})}});
  for (const std::string name : {"a.pt", "a.pth", "a.bin", "a.ckpt", "a.PT", "a.CkPt", "b.safetensors.pt"}) {
    INFO(name);
    write_weights(folder / name, tensors);
    CHECK(read_weights_file(folder / name).format == "torch-save");
  }
  for (const std::string name : {"a.safetensors", "a", "pt", ".pt", "a.pt.safetensors", "a.ptx", "a.zip"}) {
    INFO(name);
    write_weights(folder / name, tensors);
    CHECK(read_weights_file(folder / name).format == "safetensors");
  }
}

TEST_CASE("write_weights: .pt: tensors that overlap stay so, and bring nothing else along", "[weights]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const auto written = [&](const StateDict& tensors) {
    write_weights(path, tensors);
    StateDict read = read_weights(path);
    for (const auto& item : tensors) {
      INFO(item.key());
      CHECK(bits(read[item.key()]) == bits(item.value().clone()));
    }
    return read;
  };
  const auto size = [&] { return std::filesystem::file_size(path); };
  SECTION("tied") {
    const at::Tensor weight = at::rand({1000, 10});
    const StateDict read =
        written(dict({{"x", at::ones({1})}, {"a", weight}, {"b", weight}, {"t", weight.t()}}));
    CHECK(read["a"].data_ptr() == read["b"].data_ptr());
    CHECK(read["t"].data_ptr() == read["a"].data_ptr());
    CHECK(read["t"].strides() == at::IntArrayRef{1, 10});
    CHECK(size() < 42'000);
  }
  SECTION("parts of one, and the whole after them") {
    const at::Tensor whole = at::rand({30, 4});
    const StateDict read =
        written(dict({{"q", whole.narrow(0, 0, 20)}, {"k", whole.narrow(0, 10, 20)}, {"qkv", whole}}));
    CHECK(read["q"].data_ptr() == read["qkv"].data_ptr());
    CHECK(read["k"].data_ptr<float>() == read["q"].data_ptr<float>() + 40);
  }
  SECTION("columns of one matrix") {
    const std::vector<at::Tensor> chunks = at::rand({100, 30}).chunk(3, 1);
    const StateDict read = written(dict({{"k", chunks[1]}, {"q", chunks[0]}, {"v", chunks[2]}}));
    CHECK(read["q"].data_ptr<float>() + 10 == read["k"].data_ptr<float>());
    CHECK(size() < 14'000);
  }
  SECTION("a small view of a large storage") {
    const at::Tensor large = at::rand({1'000'000});
    written(dict({{"a", large.narrow(0, 500, 10)},
                  {"b", large.narrow(0, 999'990, 10)},
                  {"c", large.slice(0, 0, 1'000'000, 100'000)}}));
    CHECK(size() < 3000);
  }
  SECTION("views with holes are written out") {
    const at::Tensor wide = at::rand({100, 100});
    const StateDict read = written(dict({{"a", wide.select(1, 0)}, {"b", wide.select(1, 50)}}));
    CHECK(read["a"].is_contiguous());
    CHECK(size() < 3000);
  }
  SECTION("expanded tensors stay small, however large") {
    const auto huge = at::ones({1}).expand({std::int64_t{1} << 50});
    write_weights(path, dict({{"a", at::ones({1}).expand({1000, 1000})}, {"b", huge}}));
    const StateDict read = read_weights(path);
    CHECK(read["a"].strides() == at::IntArrayRef{0, 0});
    CHECK(read["b"].sizes() == huge.sizes());
    CHECK(size() < 3000);
  }
  SECTION("two dtypes over one memory") {
    const at::Tensor floats = at::rand({8});
    written(dict({{"f", floats}, {"i", floats.view(at::kInt)}, {"u", floats.view(at::kUInt32)}}));
  }
  SECTION("what is made only when it is looked at") {
    const at::Tensor z = at::randn({2, 3}, at::kComplexFloat);
    const StateDict read = written(dict({{"z", z},
                                         {"conj", z.conj()},
                                         {"neg", at::imag(z.conj())},
                                         {"zero", at::_efficientzerotensor({2, 2}, at::kFloat)},
                                         {"grad", at::ones({2}).requires_grad_()}}));
    CHECK_FALSE(read["grad"].requires_grad());
  }
}

TEST_CASE("write_weights: .pt: names of any text", "[weights]") {
  const TemporaryFolder folder;
  StateDict tensors;
  for (const std::string name :
       {"", ".", "a.b", "a/b", "größe", "\xF0\x9F\xA7\xA0", "a\nb\"\\", "__metadata__"}) {
    tensors.insert(name, at::rand({2}));
  }
  tensors.insert(std::string("nul\0nul", 7), at::rand({2}));
  tensors.insert(std::string(100'000, 'n'), at::rand({2}));
  write_weights(folder / "a.pt", tensors);
  const StateDict read = read_weights(folder / "a.pt");
  CHECK(read.keys() == tensors.keys());
}

TEST_CASE("write_weights: .pt: what the format lacks is refused before anything is written", "[weights]") {
  struct Row {
    std::string name;
    at::Tensor tensor;
    std::string found;
  };
  const at::Tensor one = at::ones({2, 2});
  const std::vector<Row> rows{
      {"a",
       {},
       R"(tensor "a": expected a dense tensor of a dtype that torch.save has, found an undefined tensor)"},
      {"a", one.to_sparse(), "found a tensor of layout Sparse"},
      {"a", at::quantize_per_tensor(one, 1.0, 0, at::kQInt8), "found a quantized tensor"},
      {"a", at::empty({2}, at::kMeta), "found a meta tensor"},
      {"a\xFF", one, R"(tensor "a\xff": expected a name of valid UTF-8)"},
      {"a", at::empty({2}, at::kByte).view(c10::ScalarType::Bits8), "found dtype bits8"},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    INFO(row.found);
    const std::string message = error_of<Error>([&] {
      write_weights(folder / "a.pt", dict({{"fine", one}, {row.name, row.tensor}}));
    });
    CHECK_THAT(message, ContainsSubstring(row.found));
    CHECK(message.starts_with((folder / "a.pt").string() + ": "));
  }
  CHECK_THAT(
      error_of<Error>([&] {
        write_weights(folder / "a.pt", dict({{"a", one}}), {{"key", "value"}});
      }),
      ContainsSubstring(R"(expected no metadata, for which torch.save has no place, found the key "key")"));
  CHECK(names_in(folder / "").empty());
}

TEST_CASE("write_weights: progress", "[weights]") {
  const TemporaryFolder folder;
  const StateDict tensors = dict({{"a", at::zeros({5'000'000})}, {"b", at::zeros({3}, at::kByte)}});
  for (const std::string name : {"a.pt", "a.safetensors"}) {
    INFO(name);
    std::vector<std::uint64_t> seen;
    std::uint64_t total = 0;
    write_weights(folder / name, tensors, {}, {.progress = [&](std::uint64_t written, std::uint64_t all) {
                    CHECK((seen.empty() || seen.back() < written));
                    seen.push_back(written);
                    total = all;
                  }});
    CHECK(seen.size() > 2);
    CHECK(seen.back() == std::filesystem::file_size(folder / name));
    CHECK(total == seen.back());
    const std::string before = read_bytes(folder / name);
    CHECK(error_of([&] {
            write_weights(folder / name, dict({{"c", at::ones({1})}}), {},
                          {.progress = [](auto, auto) { throw std::runtime_error("enough"); }});
          }) == "enough");
    CHECK(read_bytes(folder / name) == before);
  }
  CHECK(names_in(folder / "").size() == 2);
}

TEST_CASE("write_weights: .pt: LibTorch's own unpickler reads it", "[weights]") {
  const TemporaryFolder folder;
  const StateDict tensors = dict({{"w", at::rand({3, 4}).t()}, {"b", at::arange(5)}});
  write_weights(folder / "a.pt", tensors);
  const std::string bytes = read_bytes(folder / "a.pt");
  const auto read = torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
  CHECK(read.size() == 2);
  for (const auto& item : tensors) {
    CHECK(bit_equal(read.at(item.key()).toTensor(), item.value()));
  }
}

}  // namespace
}  // namespace mha::testing
