// Opening files, and recognising what they are by their content.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

std::string message_for(const std::filesystem::path& path) {
  return error_of<Error>([&] { read_weights(path); });
}

TEST_CASE("read_weights: what cannot be opened is refused by name", "[weights]") {
  const TemporaryFolder folder;
  SECTION("missing") {
    CHECK(message_for(folder / "missing") ==
          (folder / "missing").string() + ": cannot open: No such file or directory");
  }
  SECTION("directory") {
    CHECK_THAT(message_for(folder / ""), ContainsSubstring("expected a regular file, found a directory"));
  }
  SECTION("pipe, without waiting for a writer") {
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK_THAT(message_for(folder / "pipe"), ContainsSubstring("expected a regular file, found a pipe"));
  }
  SECTION("device") {
    CHECK_THAT(message_for("/dev/null"), ContainsSubstring("expected a regular file, found a device"));
  }
  SECTION("empty") {
    write_bytes(folder / "empty", "");
    CHECK_THAT(message_for(folder / "empty"), ContainsSubstring("found an empty file"));
  }
  SECTION("not permitted") {
    write_bytes(folder / "secret", "x");
    std::filesystem::permissions(folder / "secret", std::filesystem::perms::none);
    if (::geteuid() != 0) {  // root may read everything
      CHECK_THAT(message_for(folder / "secret"), ContainsSubstring("cannot open: Permission denied"));
    }
  }
  SECTION("a name over two lines") {
    CHECK_THAT(message_for(folder / "a\nb"), ContainsSubstring(R"(a\x0ab: cannot open)"));
  }
}

TEST_CASE("read_weights: other formats are recognised by content", "[weights]") {
  struct Row {
    std::string bytes;
    std::string found;
  };
  const std::vector<Row> rows{
      {std::string("PK\x03\x04") + "whatever follows", "expected a zip directory at the end, found none"},
      {std::string("PK\x05\x06") + "an empty archive", "expected a zip directory at the end, found none"},
      {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "the version: byte 0 of the pickle"},
      {"\x80\x02}.",
       "expected safetensors or a file of PyTorch, found a pickle that torch.save did not write"},
      {"\x80\x04}.", "found a pickle that torch.save did not write"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "found a Git LFS pointer; fetch"},
      {R"({"metadata": {}, "weight_map": {"a": "model-00001.safetensors"}})",
       "model-00001.safetensors: cannot open"},
      {R"({"abc": {"d": 1}, "e": 2})", "found other JSON"},
      {"\x89HDF\r\n\x1a\n", "found HDF5"},
      {"GGUF\x03", "found GGUF"},
      {"GGU",
       "not a weights file: expected safetensors (8 bytes of length, then '{') or a file of PyTorch, "
       R"(found 3 bytes that begin with "GGU")"},
      {"<!DOCTYPE html>", R"(begin with "<!DOCTYPE html>")"},
      {"\x1b[31m\n", R"(begin with "\x1b[31m\x0a")"},
      {std::string(64, '\0'), R"(begin with "\x00\x00)"},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    write_bytes(folder / "model.safetensors", row.bytes);
    const std::string message = message_for(folder / "model.safetensors");
    CHECK_THAT(message, ContainsSubstring(row.found));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("read_weights: the name of a file says nothing", "[weights]") {
  const TemporaryFolder folder;
  write_bytes(folder / "model.pt",
              safetensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  CHECK(read_weights(folder / "model.pt").keys() == std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace mha::testing
