#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <map>
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

TEST_CASE("layouts: every row gives the lesson's bits back", "[weights]") {
  for (const std::string& name : layout_names()) {
    INFO(name);
    const StateDict lesson = lesson_weights_for(name);
    StateDict file = under("model.0.attn", packed(name, lesson));
    file.insert("model.0.attn.LayerNorm.weight", at::ones({kWidth}));
    file.insert("model.0.attn.LayerNorm.bias", at::ones({kWidth}));
    file.insert("model.0.attnW_q.weight", at::ones({1}));
    file.insert("model.1.weight", at::ones({1}));
    for (const std::string& layout : {name, std::string("auto"), std::string()}) {
      LayoutReport report;
      const StateDict result =
          to_lesson(file, {.prefix = "model.0.attn", .layout = layout, .num_heads = kHeads}, &report);
      check_equal(result, lesson);
      CHECK(report.layout == name);
      CHECK(report.zero_biases.size() == (name == "t5" ? 4 : 0));
      CHECK(report.ignored ==
            std::vector<std::string>{"model.0.attn.LayerNorm.bias", "model.0.attn.LayerNorm.weight"});
    }
    MultiHeadAttention module(kWidth, kHeads);
    LayoutReport report;
    load_state_dict(*module, file, {.prefix = "model.0.attn.", .layout = "auto", .num_heads = kHeads},
                    &report);
    check_equal(state_dict(*module), lesson);
    CHECK(report.layout == name);
  }
}

TEST_CASE("layouts: a missing bias is zero, and told", "[weights]") {
  for (const std::string& name : layout_names()) {
    INFO(name);
    if (name == "mpnet") {
      continue;  // told from T5 by its biases
    }
    const StateDict lesson = lesson_weights(at::kDouble);
    StateDict file = packed(name, lesson);
    for (const std::string& key : file.keys()) {
      if (key.ends_with("bias")) {
        file.erase(key);
      }
    }
    LayoutReport report;
    StateDict expected = lesson;
    for (const char* layer : {"W_q", "W_k", "W_v", "W_o"}) {
      expected[layer + std::string(".bias")] = at::zeros({kWidth}, at::kDouble);
    }
    check_equal(to_lesson(file, {.num_heads = kHeads}, &report), expected);
    CHECK(report.zero_biases == std::vector<std::string>{"W_q.bias", "W_k.bias", "W_v.bias", "W_o.bias"});
  }
  for (const auto& [name, missing] : std::map<std::string, std::pair<std::string, std::string>>{
           {"bart", {"k_proj.bias", "W_k.bias"}},   // Whisper
           {"llama", {"o_proj.bias", "W_o.bias"}},  // Qwen 2
           {"timm", {"proj.bias", "W_o.bias"}}}) {
    StateDict expected = lesson_weights();
    StateDict file = packed(name, expected);
    file.erase(missing.first);
    expected[missing.second] = at::zeros({kWidth});
    LayoutReport report;
    check_equal(to_lesson(file, {.layout = name}, &report), expected);
    CHECK(report.zero_biases == std::vector<std::string>{missing.second});
  }
}

TEST_CASE("layouts: no more is copied than packing needs", "[weights]") {
  for (const std::string& name : layout_names()) {
    INFO(name);
    const StateDict file = packed(name, lesson_weights(at::kBFloat16));
    const StateDict result = to_lesson(file, {.layout = name, .num_heads = kHeads});
    const auto shared = [&](const std::string& key) {
      return std::any_of(file.begin(), file.end(),
                         [&](const auto& item) { return item.value().is_alias_of(result[key]); });
    };
    for (const auto& item : result) {
      INFO(item.key());
      CHECK(item.value().is_contiguous());
      CHECK(item.value().scalar_type() == at::kBFloat16);
      CHECK_FALSE(item.value().requires_grad());
      const bool interleaved = name == "gpt-neox" || name == "qkv-layer";
      const bool rearranged =
          (interleaved && !item.key().starts_with("W_o")) ||
          (name == "gpt2" && item.key().ends_with("weight")) ||
          (name == "t5" && (item.key().starts_with("W_q") || item.key().ends_with("bias")));
      CHECK(shared(item.key()) == !rearranged);
    }
  }
}

TEST_CASE("layouts: what head by head means is what the models compute", "[weights]") {
  const StateDict lesson = lesson_weights(at::kDouble);  // rounding does not count
  const StateDict file = packed("gpt-neox", lesson);
  const Tensor x = at::randn({2, 5, kWidth}, at::kDouble);
  const Tensor qkv = at::linear(x, file["query_key_value.weight"], file["query_key_value.bias"]);
  const auto parts = qkv.view({2, 5, kHeads, -1}).chunk(3, -1);
  const std::vector<std::string> layers{"W_q", "W_k", "W_v"};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Tensor expected = at::linear(x, lesson[layers[i] + ".weight"], lesson[layers[i] + ".bias"]);
    CHECK(at::allclose(parts[i].reshape({2, 5, kWidth}), expected));
  }
}

TEST_CASE("layouts: T5's query is scaled with one rounding", "[weights]") {
  const StateDict lesson = lesson_weights();
  StateDict file;
  for (const auto& [theirs, ours] : std::vector<std::pair<std::string, std::string>>{
           {"q", "W_q"}, {"k", "W_k"}, {"v", "W_v"}, {"o", "W_o"}}) {
    file.insert(theirs + ".weight", lesson[ours + ".weight"]);
  }
  file.insert("relative_attention_bias.weight", at::ones({32, 2}));
  LayoutReport report;
  const StateDict result = to_lesson(file, {.num_heads = 2}, &report);  // d_k 6
  const Tensor exact = lesson["W_q.weight"].to(at::kDouble) * std::sqrt(6.0);
  CHECK(bit_equal(result["W_q.weight"], exact.to(at::kFloat)));
  CHECK(bit_equal(result["W_k.weight"], lesson["W_k.weight"]));
  CHECK_THAT(report.caveat, ContainsSubstring("multiplied by sqrt(d_k)"));
  CHECK_THAT(report.caveat, ContainsSubstring("relative position bias is left out"));
}

TEST_CASE("layouts: GPT-2's buffers are no biases", "[weights]") {
  const StateDict lesson = lesson_weights();
  StateDict file = under("h.0.attn", packed("gpt2", lesson));
  file.insert("h.0.attn.bias", at::ones({1, 1, 8, 8}, at::kByte).tril());
  file.insert("h.0.attn.masked_bias", at::full({}, -1e4));
  LayoutReport report;
  check_equal(to_lesson(file, {.prefix = "h.0.attn", .layout = "auto"}, &report), lesson);
  CHECK(report.layout == "gpt2");
  CHECK(report.ignored == std::vector<std::string>{"h.0.attn.bias", "h.0.attn.masked_bias"});
  CHECK(report.caveat.empty());
}

TEST_CASE("layouts: wrappers are stripped, full names come first", "[weights]") {
  const StateDict lesson = lesson_weights();
  for (const auto& [prefix, stored] :
       std::vector<std::pair<std::string, std::string>>{{"", "module"},
                                                        {"", "_orig_mod.module"},
                                                        {"a", "module.a"},
                                                        {"a.", "_orig_mod.a._orig_mod"},
                                                        {"module.a", "module.a"},
                                                        {"module.a", "_orig_mod.module.a"}}) {
    INFO(prefix << " of " << stored);
    check_equal(to_lesson(under(stored, packed("bert", lesson)), {.prefix = prefix, .layout = "auto"}),
                lesson);
  }
  StateDict compiled;
  for (const auto& item : packed("timm", lesson)) {
    const std::size_t dot = item.key().find('.');
    compiled.insert("a." + item.key().substr(0, dot) + "._orig_mod" + item.key().substr(dot), item.value());
  }
  check_equal(to_lesson(compiled, {.prefix = "a", .layout = "timm"}), lesson);

  StateDict both = under("module", packed("bert", lesson_weights()));
  both.update(packed("bert", lesson));
  check_equal(to_lesson(both, {.layout = "auto"}), lesson);
  StateDict twice = under("module", packed("bert", lesson));
  twice.update(under("_orig_mod", packed("bert", lesson)));
  CHECK_THAT(error_of<c10::ValueError>([&] { to_lesson(twice); }),
             ContainsSubstring("to_lesson: expected names that differ without their wrappers"));
}

TEST_CASE("layouts: what a model does more is told", "[weights]") {
  const auto caveat = [](const std::string& layout, const std::vector<std::string>& more = {},
                         const std::string& without = "") {
    StateDict file = packed(layout, lesson_weights());
    for (const std::string& name : more) {
      file.insert(name, at::ones({4}));
    }
    if (!without.empty()) {
      file.erase(without);
    }
    LayoutReport report;
    to_lesson(file, {.num_heads = kHeads}, &report);
    return report.caveat;
  };
  for (const char* name : {"llama", "meta-llama", "torchtune", "gpt-neox"}) {
    CHECK_THAT(caveat(name), ContainsSubstring("rotary"));
  }
  for (const char* name : {"lesson", "pytorch", "bert", "gpt2", "bart", "timm", "x-transformers"}) {
    CHECK(caveat(name).empty());
  }
  CHECK_THAT(caveat("llama", {"q_norm.weight", "k_norm.weight"}),
             ContainsSubstring("; the model normalises query and key, which is left out"));
  CHECK(caveat("bert", {"self.distance_embedding.weight"}) ==
        "the model adds a relative position bias, which is left out");
  CHECK_THAT(caveat("bart", {}, "q_proj.bias"), ContainsSubstring("GPT-Neo"));

  // Without a report, load_state_dict warns.
  struct Warnings : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  MultiHeadAttention module(kWidth, kHeads);
  load_state_dict(*module, packed("bert", lesson_weights()), {.layout = "auto"});
  CHECK(warnings.text.empty());
  load_state_dict(*module, packed("llama", lesson_weights()), {.layout = "auto"});
  CHECK_THAT(warnings.text, ContainsSubstring("load_state_dict: layout llama: projections only"));
}

TEST_CASE("layouts: find_attention lists every block with its prefix", "[weights]") {
  const StateDict lesson = lesson_weights();
  StateDict file = under("encoder.layer.0.attention", packed("bert", lesson));
  file.insert("encoder.layer.0.output.dense.weight", at::ones({kWidth, 4 * kWidth}));
  file.update(under("encoder.layer.1.attention", packed("bert", lesson)));
  file.update(under("h.0.attn", packed("gpt2", lesson)));
  file.update(under("h.1.attn", packed("nanogpt", lesson)));
  file.update(under("module.x", packed("llama", lesson)));
  file["module.x.k_proj.weight"] = at::ones({4, kWidth});
  file["module.x.v_proj.weight"] = at::ones({4, kWidth});
  StateDict layers = under("y", packed("t5", lesson));
  for (const auto& item : layers) {
    file.insert(item.key().substr(0, 3) + "._orig_mod" + item.key().substr(3), item.value());
  }
  file.insert("mlp.c_proj.weight", at::ones({kWidth, kWidth}));

  const std::vector<AttentionBlock> blocks = find_attention(file);
  std::vector<std::pair<std::string, std::string>> found;
  for (const AttentionBlock& block : blocks) {
    found.emplace_back(block.prefix, block.layout);
    CHECK(block.d_model == kWidth);
    CHECK(block.problem.empty() == (block.layout != "llama"));
    if (block.problem.empty()) {
      CHECK(to_lesson(file, {.prefix = block.prefix, .layout = block.layout, .num_heads = 1}).size() == 8);
    }
  }
  CHECK(found == std::vector<std::pair<std::string, std::string>>{{"encoder.layer.0.attention", "bert"},
                                                                  {"encoder.layer.1.attention", "bert"},
                                                                  {"h.0.attn", "gpt2"},
                                                                  {"h.1.attn", "nanogpt"},
                                                                  {"module.x", "llama"},
                                                                  {"y", "t5"}});
  CHECK_THAT(blocks[4].problem, ContainsSubstring("grouped key/value heads (3 query heads share"));
  CHECK_THAT(blocks[5].caveat, ContainsSubstring("sqrt(d_k)"));

  CHECK(find_attention(StateDict()).empty());
  const std::vector<AttentionBlock> whole = find_attention(packed("lesson", lesson));
  REQUIRE(whole.size() == 1);
  CHECK(whole[0].prefix.empty());
  StateDict ambiguous = packed("lesson", lesson);
  ambiguous.update(packed("bert", lesson));
  CHECK(find_attention(ambiguous).size() == 2);
}

}  // namespace
}  // namespace mha::testing
