// The number of heads from config.json beside a weights file.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <optional>
#include <string>
#include <utility>

#include "mha/weights.h"
#include "testing.h"
#include "weights/weights_testing.h"

namespace mha {
namespace {

using testing::error_of;
using testing::TemporaryFolder;
using testing::write_bytes;

/// `num_heads_beside` of a file in a folder with that config.
std::optional<int64_t> told(const std::string& config, int64_t d_model = 0) {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", config);
  return num_heads_beside(folder / "model.safetensors", d_model);
}

/// The same where it is an error: what comes behind the file's name.
std::string refused(const std::string& config, int64_t d_model = 0) {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", config);
  const std::string message =
      error_of<Error>([&] { num_heads_beside(folder / "model.safetensors", d_model); });
  const std::string beginning = (folder / "config.json").string() + ": ";
  REQUIRE(message.starts_with(beginning));
  return message.substr(beginning.size());
}

TEST_CASE("num_heads_beside: every key that models use") {
  const std::string key = GENERATE("num_attention_heads", "n_head", "n_heads", "num_heads",
                                   "encoder_attention_heads", "decoder_attention_heads");
  CHECK(told(R"({"model_type": "x", ")" + key + R"(": 12, "n_layer": 6})", 768) == 12);
}

TEST_CASE("num_heads_beside: several keys that agree") {
  CHECK(told(R"({"n_head": 4, "num_attention_heads": 4, "hidden_size": 8})", 8) == 4);
  CHECK(told(R"({"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 8})", 8) == 4);
  CHECK(refused(R"({"encoder_attention_heads": 4, "decoder_attention_heads": 2})") ==
        "expected one number of heads, found encoder_attention_heads 4 and decoder_attention_heads 2");
}

TEST_CASE("num_heads_beside: nothing told") {
  const TemporaryFolder folder;
  CHECK(num_heads_beside(folder / "model.safetensors") == std::nullopt);
  CHECK(num_heads_beside("no-such-folder/model.safetensors") == std::nullopt);
  const std::string config =
      GENERATE("{}", R"({"num_attention_heads": null})", R"({"hidden_size": 8, "num_key_value_heads": 2})",
               R"({"a": {"b": {"num_heads": 2}}})", R"({"a": [{"num_heads": 2}]})",
               R"({"architectures": ["num_heads"], "x": 1.5e3, "y": true})");
  CHECK(told(config) == std::nullopt);
}

TEST_CASE("num_heads_beside: a model of several") {
  const std::string clip =
      R"({"text_config": {"hidden_size": 512, "num_attention_heads": 8, "label": {"0": 1}},
                               "vision_config": {"hidden_size": 768, "num_attention_heads": 12},
                               "projection_dim": 512})";
  CHECK(told(clip, 512) == 8);
  CHECK(told(clip, 768) == 12);
  CHECK(refused(clip) ==
        "expected one number of heads, found text_config.num_attention_heads 8 and "
        "vision_config.num_attention_heads 12");
  CHECK(refused(clip, 1024) ==
        "expected the config of a model of d_model 1024, found only text_config.num_attention_heads, "
        "vision_config.num_attention_heads, of models of other or unknown widths");
  // Of which of several models a number is that stands without a width, nobody knows.
  CHECK(refused(R"({"text_config": {"num_attention_heads": 8}})", 512) ==
        "expected the config of a model of d_model 512, found only text_config.num_attention_heads, of "
        "models of "
        "other or unknown widths");
  CHECK(told(R"({"text_config": {"num_attention_heads": 8}})") == 8);
  CHECK(told(R"({"num_attention_heads": 4, "vision_config": {"hidden_size": 9, "num_heads": 3}})", 8) == 4);
}

TEST_CASE("num_heads_beside: numbers that cannot be") {
  using Row = std::pair<std::string, std::string>;
  const auto [value, found] = GENERATE(
      Row{"0", "0"}, Row{"-4", "-4"}, Row{"4.0", "4.0"}, Row{"true", "true"}, Row{R"("4")", R"("4")"},
      Row{"[4, 4]", "an array"}, Row{"{}", "an object"}, Row{"9223372036854775808", "9223372036854775808"},
      Row{"99999999999999999999", "99999999999999999999"});
  CHECK(refused(R"({"num_heads": )" + value + "}") ==
        "num_heads: expected a positive integer, found " + found);
}

TEST_CASE("num_heads_beside: numbers that contradict the width") {
  CHECK(refused(R"({"n_head": 5})", 12) == "n_head: expected a divisor of d_model 12, found 5");
  CHECK(told(R"({"n_head": 5})") == 5);
  CHECK(told(R"({"num_heads": 4, "d_kv": 3})", 12) == 4);
  CHECK(refused(R"({"num_heads": 4, "d_kv": 8})", 12) ==
        "d_kv: expected num_heads * d_k to be d_model 12, found 4 * 8");
  CHECK(refused(R"({"num_heads": 4, "head_dim": 4611686018427387904})", 12) ==
        "head_dim: expected num_heads * d_k to be d_model 12, found 4 * 4611686018427387904");
  CHECK(told(R"({"num_heads": 4, "head_dim": null})", 12) == 4);
}

TEST_CASE("num_heads_beside: files that are no config") {
  CHECK(refused("") == "expected valid JSON, found something else at its byte 1");
  CHECK(refused("[]") == "expected a JSON object, found an array");
  CHECK(refused("null") == "expected a JSON object, found null");
  CHECK(refused("7") == "expected a JSON object, found 7");
  CHECK(refused(R"({"n_head": 4} x)") == "expected valid JSON, found something else at its byte 15");
  CHECK(refused("{\"\xff\": 4}").starts_with("expected valid JSON, found "));
  std::string deep = "{";
  for (int i = 0; i < 100'000; ++i) {
    deep += R"("a": [{)";
  }
  CHECK(refused(deep) == "expected JSON nested at most 64 deep, found deeper");
  CHECK(refused(std::string((std::size_t{4} << 20) + 1, ' ')) ==
        "expected a config of at most 4194304 bytes, found more");
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "config.json");
  CHECK(error_of<Error>([&] { num_heads_beside(folder / "model.safetensors"); }) ==
        (folder / "config.json").string() + ": expected a regular file, found something else");
}

TEST_CASE("needs_num_heads: the layouts that keep heads together or do not scale") {
  for (const std::string& layout : layout_names()) {
    CHECK(needs_num_heads(layout) == (layout == "gpt-neox" || layout == "qkv-layer" || layout == "t5"));
  }
  CHECK_FALSE(needs_num_heads("auto"));
}

}  // namespace
}  // namespace mha
