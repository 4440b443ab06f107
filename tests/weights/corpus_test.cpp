// The corpus of hostile and odd files (tests/corpus/make_corpus.py), each against what its manifest expects.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

std::filesystem::path corpus() {
  const char* const folder = std::getenv("MHA_CORPUS");
  REQUIRE(folder != nullptr);
  return folder;
}

Json manifest() {
  std::ifstream file(corpus() / "manifest.json");
  return Json::parse(file);
}

std::string hex(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  const auto* const bytes = static_cast<const unsigned char*>(contiguous.const_data_ptr());
  std::string text;
  for (std::size_t i = 0; i < contiguous.nbytes(); ++i) {
    constexpr std::string_view digits = "0123456789abcdef";
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 0xFu];
  }
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

void check_read(const Json& file) {
  const StateDict tensors = read_weights(corpus() / file["file"].get<std::string>());
  CHECK(tensors.size() == file["tensors"].size());
  for (const Json& expected : file["tensors"]) {
    const std::string name = from_hex(expected["name"].get<std::string>());
    INFO("tensor " << quote(name));
    const at::Tensor* const tensor = tensors.find(name);
    REQUIRE(tensor != nullptr);
    CHECK(dtype_text(tensor->scalar_type()) == expected["dtype"].get<std::string>());
    CHECK(tensor->sizes() == expected["shape"].get<std::vector<std::int64_t>>());
    if (!expected["values"].is_null()) {
      CHECK(hex(*tensor) == expected["values"].get<std::string>());
    }
  }
}

void check_refused(const Json& file) {
  const std::filesystem::path path = corpus() / file["file"].get<std::string>();
  const std::string message = error_of<Error>([&] { read_weights(path); });
  CHECK_THAT(message, ContainsSubstring(file["message"].get<std::string>()));
  CHECK(message.starts_with(show(corpus() / file["blames"].get<std::string>()) + ": "));
  CHECK(message.size() < path.string().size() + 2000);
  CHECK(one_line(message) == message);
}

TEST_CASE("corpus: every file is read or refused as its rule says", "[corpus]") {
  const Json files = manifest()["files"];
  CHECK(files.size() >= 150);
  for (const Json& file : files) {
    INFO(file["file"].get<std::string>() << ": " << file["rule"].get<std::string>());
    if (file["outcome"] == "reads") {
      CHECK_NOTHROW(check_read(file));
    } else {
      CHECK_NOTHROW(check_refused(file));
    }
  }
}

}  // namespace
}  // namespace mha::testing
