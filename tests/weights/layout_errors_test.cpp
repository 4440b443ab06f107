#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <utility>
#include <vector>

#include "mha/attention.h"
#include "mha/weights.h"
#include "weights/layouts_testing.h"

namespace mha::testing {
namespace {

using at::Tensor;
using Catch::Matchers::ContainsSubstring;

using Changes = std::vector<std::pair<std::string, Tensor>>;

/// The error for a block of that layout with some tensors replaced or added.
std::string message_for(const std::string& layout, const Changes& changes, const LoadOptions& options = {}) {
  StateDict file = packed(layout, lesson_weights());
  for (const auto& [name, tensor] : changes) {
    if (file.contains(name)) {
      file.erase(name);
    }
    file.insert(name, tensor);
  }
  return error_of<c10::ValueError>([&] { to_lesson(file, options); });
}

TEST_CASE("layouts: what cannot be the lesson's module says what it is", "[weights]") {
  const auto zeros = [](int64_t rows, int64_t columns) { return at::zeros({rows, columns}); };
  CHECK(message_for("llama", {{"k_proj.weight", zeros(4, 12)}, {"v_proj.weight", zeros(4, 12)}}) ==
        "to_lesson: expected weights that fit the lesson; layout \"llama\": found grouped key/value heads (3 "
        "query "
        "heads share a key and a value head; the lesson's heads have their own): \"q_proj.weight\" (12, 12), "
        "\"k_proj.weight\" (4, 12), \"v_proj.weight\" (4, 12), \"o_proj.weight\" (12, 12)");
  const std::string grouped = "grouped key/value heads (query has 12 rows, key and value have 4 each;";
  CHECK_THAT(message_for("gpt-neox", {{"query_key_value.weight", zeros(20, 12)}}),
             ContainsSubstring(grouped));

  const std::string more_heads = "heads of 24 features in all for a d_model of 12";
  CHECK_THAT(message_for("t5", {{"q.weight", zeros(24, 12)},
                                {"k.weight", zeros(24, 12)},
                                {"v.weight", zeros(24, 12)},
                                {"o.weight", zeros(12, 24)}}),
             ContainsSubstring(more_heads));
  CHECK_THAT(message_for("timm", {{"qkv.weight", zeros(72, 12)}, {"proj.weight", zeros(12, 24)}}),
             ContainsSubstring(more_heads));

  CHECK_THAT(message_for("pytorch-separate", {{"k_proj_weight", zeros(12, 7)}}),
             ContainsSubstring("keys and values of other widths than the query"));
  const std::string other = "weights of other widths than the lesson's";
  CHECK_THAT(message_for("bert", {{"output.dense.weight", zeros(48, 12)}}), ContainsSubstring(other));
  CHECK_THAT(message_for("timm", {{"proj.weight", zeros(48, 12)}}), ContainsSubstring(other));
  CHECK_THAT(message_for("pytorch", {{"bias_k", at::zeros({1, 1, 12})}}), ContainsSubstring("add_bias_kv"));
  CHECK_THAT(message_for("timm", {{"q_bias", at::zeros({12})}}), ContainsSubstring("biases kept apart"));
  CHECK_THAT(message_for("hf-vit", {{"attention.v_bias", at::zeros({12})}}),
             ContainsSubstring("biases kept apart"));
  CHECK_THAT(message_for("gpt-neox", {{"dense_bias", at::zeros({12})}}, {.num_heads = kHeads}),
             ContainsSubstring("biases kept apart"));
  CHECK_THAT(message_for("llama", {{"q_proj.lora_A.default.weight", zeros(2, 12)}}),
             ContainsSubstring("found \"q_proj.lora_A.default.weight\" beside them (merge adapters"));

  // Two layouts have these names.
  const std::string both = message_for("gpt2", {{"c_attn.weight", zeros(12, 24)}});
  CHECK_THAT(both, ContainsSubstring(
                       "layout \"gpt2\": found a packed weight of two parts (key and value of a cross"));
  CHECK_THAT(both, ContainsSubstring("; or layout \"nanogpt\": found weights of other widths"));
}

TEST_CASE("layouts: tensors that are no weights are refused", "[weights]") {
  const Tensor square = at::ones({12, 12});
  const std::vector<std::pair<Changes, std::string>> rows{
      {{{"self.query.weight", square.to(at::kChar)}},
       "\"self.query.weight\": expected floating-point numbers, found int8"},
      {{{"self.query.weight", square.to(at::kComplexFloat)}},
       "expected floating-point numbers, found complex64"},
      {{{"self.query.weight", square.to_sparse()}},
       "expected a dense tensor, found a tensor that is not dense"},
      {{{"self.query.weight", square.to(at::kMeta)}}, "found a meta tensor"},
      {{{"self.query.weight", Tensor()}}, "found an undefined tensor"},
      {{{"self.query.weight", square.view({12, 12, 1, 1})}}, "expected a matrix, found shape (12, 12, 1, 1)"},
      {{{"self.query.weight", at::ones({0, 0})}}, "expected a matrix, found shape (0, 0)"},
      {{{"self.query.bias", at::ones({})}}, "\"self.query.bias\": expected a vector, found shape ()"},
      {{{"self.query.bias", at::ones({11})}}, "\"self.query.bias\": expected (12,), found (11,)"},
      {{{"output.dense.bias", at::ones({36})}}, "\"output.dense.bias\": expected (12,), found (36,)"},
  };
  for (const auto& [changes, expected] : rows) {
    CHECK_THAT(message_for("bert", changes), ContainsSubstring(expected));
  }
  CHECK_THAT(message_for("timm", {{"qkv.bias", at::ones({12})}}),
             ContainsSubstring("\"qkv.bias\": expected (36,), found (12,)"));
  CHECK_THAT(message_for("pytorch-separate", {{"in_proj_bias", at::ones({12})}}),
             ContainsSubstring("\"in_proj_bias\": expected (36,), found (12,)"));
  // Sizes whose triple overflows.
  const Tensor wide = at::ones({1, 1}).expand({1, int64_t{1} << 62});
  CHECK_THAT(message_for("timm", {{"qkv.weight", wide}}), ContainsSubstring("weights of other widths"));
}

TEST_CASE("layouts: num_heads is needed where only it tells the heads apart", "[weights]") {
  for (const char* name : {"gpt-neox", "qkv-layer", "t5"}) {
    CHECK_THAT(message_for(name, {}), ContainsSubstring("expected LoadOptions::num_heads, without which"));
  }
  CHECK(message_for("bert", {}).empty());
  for (const int64_t bad : {5, 0, -3}) {
    CHECK_THAT(message_for("gpt-neox", {}, {.num_heads = bad}),
               ContainsSubstring("expected num_heads that divides d_model 12, found " + std::to_string(bad)));
  }
}

TEST_CASE("layouts: several that fit are listed", "[weights]") {
  StateDict file = packed("bert", lesson_weights());
  const StateDict lesson = lesson_weights();
  file.update(packed("lesson", lesson));
  CHECK(error_of<c10::ValueError>([&] { to_lesson(under("a", file), {.prefix = "a", .layout = "auto"}); }) ==
        "to_lesson: expected one layout under the prefix \"a\", found the names of layout \"lesson\", layout "
        "\"bert\": choose one");
  check_equal(to_lesson(file, {.layout = "lesson"}), lesson);
  // One that cannot be the lesson's does not count.
  file["self.key.weight"] = at::ones({4, 12});
  check_equal(to_lesson(file, {.layout = "auto"}), lesson);
}

TEST_CASE("layouts: absent blocks and unknown layouts", "[weights]") {
  StateDict file = under("enc.0", packed("bert", lesson_weights()));
  file.update(under("enc.1", packed("timm", lesson_weights())));
  const auto message = [&](const LoadOptions& options) {
    return error_of<c10::ValueError>([&] { to_lesson(file, options); });
  };
  const std::string found = "found attention under the prefixes \"enc.0\" (bert), \"enc.1\" (timm)";
  CHECK(message({.prefix = "enc.2", .layout = "auto"}) ==
        "to_lesson: expected the weights of an attention block under the prefix \"enc.2\", " + found);
  CHECK_THAT(message({}), ContainsSubstring("attention block without a prefix, " + found));
  CHECK(message({.prefix = "enc.0", .layout = "timm"}) ==
        "to_lesson: layout \"timm\": expected \"qkv.weight\", \"proj.weight\" under the prefix \"enc.0\", " +
            found);
  CHECK_THAT(message({.prefix = "en", .layout = "auto"}), ContainsSubstring("\"en\", found attention"));
  CHECK(message({.prefix = "enc.0", .layout = "a\nb"})
            .starts_with("to_lesson: expected a layout of auto, lesson, pytorch, "));
  CHECK(message({.prefix = "enc.0", .layout = "a\nb"}).ends_with("found \"a\\x0ab\""));
  CHECK_THAT(error_of<c10::ValueError>([] { to_lesson(StateDict()); }),
             ContainsSubstring("found none in any layout"));

  for (int i = 2; i < 9; ++i) {
    file.update(under("enc." + std::to_string(i), packed("lesson", lesson_weights())));
  }
  CHECK(message({}).ends_with("\"enc.4\" (lesson) and 4 more"));
}

TEST_CASE("layouts: loading is all or nothing", "[weights]") {
  MultiHeadAttention module(2 * kWidth, kHeads);
  const Tensor before = module->W_q->weight.detach().clone();
  const auto message = error_of<c10::ValueError>(
      [&] { load_state_dict(*module, packed("bert", lesson_weights()), {.layout = "bert"}); });
  CHECK_THAT(message, ContainsSubstring("\"W_q.weight\" (expected (24, 24), found (12, 12))"));
  CHECK(bit_equal(module->W_q->weight.detach(), before));
}

}  // namespace
}  // namespace mha::testing
