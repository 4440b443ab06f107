#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <array>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <utility>
#include <vector>

#include "mha/weights.h"
#include "weights/layouts_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;

/// The caveat of a block under `prefix` beside which the file has `others`; find_attention must say the same.
std::string caveat_of(const std::string& layout, const std::string& prefix,
                      const std::vector<std::string>& others) {
  StateDict file = under(prefix, packed(layout, lesson_weights()));
  for (const std::string& name : others) {
    file.insert(name, at::ones({4}));
  }
  LayoutReport report;
  to_lesson(file, {.prefix = prefix, .num_heads = kHeads}, &report);
  CHECK(report.layout == layout);
  const std::vector<AttentionBlock> blocks = find_attention(file);
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].caveat == report.caveat);
  CHECK(blocks[0].problem.empty());
  return report.caveat;
}

TEST_CASE("caveats: other tensors of the block", "[weights]") {
  for (const auto& [layout, name, expected] : std::vector<std::array<std::string, 3>>{
           {"bert", "self.query_global.weight", "globally from some tokens"},       // Longformer
           {"bert", "self.layout_query.weight", "a second stream for the layout"},  // LiLT
           {"bert", "self.w2e_query.weight", "words and entities"},                 // LUKE
           {"bert", "self.sr.weight", "shortens the sequence"},                     // SegFormer
           {"bert", "self.sequence_reduction.weight", "shortens the sequence"},     // PVT
           {"bert", "self.logit_scale", "by their angle"},                          // Swin v2
           {"bert", "self.continuous_position_bias_mlp.0.weight", "relative position bias"},
           {"bert", "self.conv.weight", "convolution"},                 // Nystromformer
           {"bert", "self.rotary_embeddings.inv_freq", "rotary"},       // ESM
           {"bert", "self.layernorm1.weight", "normalises its input"},  // Perceiver
           {"bert", "ln.weight", "normalises its input"},               // Megatron BERT
           {"bart", "emb_rel_k", "relative position bias"},             // VITS
           {"bart", "gru_rel_pos_const", "relative position bias"},     // WavLM
           {"bart", "inner_attn_ln.weight", "what its heads give"},     // Kosmos-2
           {"llama", "lambda_q1", "differential"},                      // DiffLlama
           {"llama", "scaling", "scales every feature of the query"},   // TimesFM
           {"timm", "rel_pos_h", "relative position bias"}}) {          // SAM
    INFO(layout << " " << name);
    const std::string caveat = caveat_of(layout, "layers.0.attn", {"layers.0.attn." + name});
    CHECK_THAT(caveat, ContainsSubstring(expected));
    CHECK_THAT(caveat, EndsWith("left out"));
  }
  CHECK(caveat_of("bert", "attn", {"attn.self.src.weight", "attn.lnx"}).empty());
  // Rotary embedding is told once.
  const std::string plain = caveat_of("llama", "attn", {});
  CHECK(caveat_of("llama", "attn", {"attn.rotary_emb.inv_freq"}) == plain);
}

TEST_CASE("caveats: tensors around the block, and its own prefix", "[weights]") {
  const std::string relative = "the model adds a relative position bias, which is left out";
  const std::string block = "encoder.layer.0.attention";
  CHECK(caveat_of("bert", block, {"encoder.rel_pos_bias.weight"}) == relative);  // LayoutLMv3
  CHECK(caveat_of("bert", "model." + block, {"model.encoder.rel_pos_bias.weight"}) == relative);
  CHECK(caveat_of("mpnet", block + ".attn", {"encoder.relative_attention_bias.weight"}) == relative);
  CHECK(caveat_of("bart", "e.layers.1.attention", {"e.embed_positions.pe_k.weight"}) ==
        relative);  // SpeechT5
  CHECK_THAT(caveat_of("bert", block, {"bbox_embeddings.bbox_projection.weight"}),
             ContainsSubstring("boxes"));  // BROS
  CHECK_THAT(caveat_of("bart", "g.layers.0.self_attn", {"g.graph_attn_bias.edge_encoder.weight"}),
             ContainsSubstring("graph"));  // Graphormer
  CHECK_THAT(caveat_of("bert", block, {"encoder.embed_positions.weight"}),
             ContainsSubstring("rotary"));  // RoFormer
  CHECK_THAT(caveat_of("timm", "visual.blocks.0.attn", {"visual.merger.mlp.0.weight"}),
             ContainsSubstring("rotary"));  // Qwen2-VL
  CHECK_THAT(caveat_of("timm", "blocks.0.channel_block.channel_attn", {}),
             ContainsSubstring("over channels"));  // Florence-2
  CHECK_THAT(caveat_of("bert", "initial_char_encoder.layer.0.attention", {}),
             ContainsSubstring("within a window"));  // CANINE

  // Elsewhere, or in models that mean something else by it.
  CHECK(caveat_of("bert", block, {"decoder.rel_pos_bias.weight", "encoder.rel_pos_biases"}).empty());
  CHECK(caveat_of("bart", "encoder.layers.0.self_attn", {"encoder.embed_positions.weight"}).empty());
  CHECK(caveat_of("bert", block, {"merger.weight"}).empty());
  CHECK(caveat_of("bert", "module." + block, {"_orig_mod.module.encoder.rel_pos_bias.weight"}) == relative);
}

TEST_CASE("caveats: MPNet has T5's names, biases, and scaled scores", "[weights]") {
  const StateDict lesson = lesson_weights();
  LayoutReport report;
  check_equal(to_lesson(packed("mpnet", lesson), {.layout = "auto"}, &report), lesson);
  CHECK(report.layout == "mpnet");
  CHECK(report.caveat.empty());
  const auto error = [&](const std::string& layout) {
    return error_of<c10::ValueError>([&] {
      to_lesson(packed(layout == "t5" ? "mpnet" : "t5", lesson), {.layout = layout, .num_heads = 3});
    });
  };
  CHECK_THAT(error("t5"), EndsWith("found attention under the prefixes \"\" (mpnet)"));
  CHECK_THAT(error("mpnet"), EndsWith("found attention under the prefixes \"\" (t5)"));
}

}  // namespace
}  // namespace mha::testing
