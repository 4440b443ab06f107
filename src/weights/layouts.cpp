#include "weights/layouts.h"

#include <algorithm>
#include <array>

#include "mha/weights.h"

namespace mha::weights {
namespace {

constexpr std::string_view kRotary =
    "projections only: the model rotates query and key by position (rotary embedding) and may attend "
    "within a sliding window";

constexpr std::array kLayouts{
    Layout{.name = "lesson", .query = "W_q.*", .key = "W_k.*", .value = "W_v.*", .output = "W_o.*"},
    Layout{.name = "pytorch", .packing = Packing::stacked, .query = "in_proj_*", .output = "out_proj.*"},
    Layout{.name = "pytorch-separate",
           .query = "q_proj_*",
           .key = "k_proj_*",
           .value = "v_proj_*",
           .output = "out_proj.*",
           .stacked_bias = "in_proj_bias"},
    Layout{.name = "annotated-transformer",
           .query = "linears.0.*",
           .key = "linears.1.*",
           .value = "linears.2.*",
           .output = "linears.3.*"},
    Layout{.name = "bert",
           .query = "self.query.*",
           .key = "self.key.*",
           .value = "self.value.*",
           .output = "output.dense.*"},
    Layout{.name = "distilbert",
           .query = "q_lin.*",
           .key = "k_lin.*",
           .value = "v_lin.*",
           .output = "out_lin.*"},
    Layout{.name = "hf-vit",
           .query = "attention.query.*",
           .key = "attention.key.*",
           .value = "attention.value.*",
           .output = "output.dense.*"},
    Layout{.name = "timm", .packing = Packing::stacked, .query = "qkv.*", .output = "proj.*"},
    Layout{.name = "gpt2",
           .packing = Packing::stacked,
           .query = "c_attn.*",
           .output = "c_proj.*",
           .transposed = true},
    Layout{.name = "nanogpt", .packing = Packing::stacked, .query = "c_attn.*", .output = "c_proj.*"},
    Layout{.name = "llama",
           .query = "q_proj.*",
           .key = "k_proj.*",
           .value = "v_proj.*",
           .output = "o_proj.*",
           .caveat = kRotary},
    Layout{.name = "meta-llama",
           .query = "wq.*",
           .key = "wk.*",
           .value = "wv.*",
           .output = "wo.*",
           .caveat = kRotary},
    Layout{.name = "torchtune",
           .query = "q_proj.*",
           .key = "k_proj.*",
           .value = "v_proj.*",
           .output = "output_proj.*",
           .caveat = kRotary},
    Layout{
        .name = "bart",
        .query = "q_proj.*",
        .key = "k_proj.*",
        .value = "v_proj.*",
        .output = "out_proj.*",
        .caveat_without_query_bias =
            "GPT-Neo, which does not divide its scores by sqrt(d_k), and GPT-J, which rotates query and key "
            "by position, have these names too: of them, projections only"},
    Layout{.name = "t5",
           .query = "q.*",
           .key = "k.*",
           .value = "v.*",
           .output = "o.*",
           .query_bias = QueryBias::never,
           .unscaled = true,
           .caveat =
               "projections only: W_q is multiplied by sqrt(d_k), since T5 does not divide its scores by "
               "it; T5's relative position bias is left out"},
    Layout{.name = "mpnet",
           .query = "q.*",
           .key = "k.*",
           .value = "v.*",
           .output = "o.*",
           .query_bias = QueryBias::always},
    Layout{.name = "gpt-neox",
           .packing = Packing::interleaved,
           .query = "query_key_value.*",
           .output = "dense.*",
           .caveat = "projections only: GPT-NeoX rotates query and key by position (rotary embedding), BLOOM "
                     "adds ALiBi to its scores"},
    Layout{.name = "x-transformers",
           .query = "to_q.*",
           .key = "to_k.*",
           .value = "to_v.*",
           .output = "to_out.*"},
    Layout{
        .name = "diffusers", .query = "to_q.*", .key = "to_k.*", .value = "to_v.*", .output = "to_out.0.*"},
    Layout{.name = "qkv-layer",
           .packing = Packing::interleaved,
           .query = "qkv_layer.*",
           .output = "linear_layer.*",
           .caveat =
               "projections only: some versions of this module concatenate the heads without transposing "
               "them back first"},
};

std::string filled(std::string_view pattern, std::string_view kind) {
  std::string name(pattern);
  return name.replace(name.find('*'), 1, kind);
}

}  // namespace

std::span<const Layout> layouts() {
  return kLayouts;
}

const Layout* find_layout(std::string_view name) {
  const auto* const found = std::find_if(kLayouts.begin(), kLayouts.end(),
                                         [&](const Layout& layout) { return layout.name == name; });
  return found == kLayouts.end() ? nullptr : found;
}

std::string weight_name(std::string_view pattern) {
  return filled(pattern, "weight");
}

std::string bias_name(std::string_view pattern) {
  return filled(pattern, "bias");
}

std::vector<std::string_view> patterns(const Layout& layout) {
  if (layout.packing == Packing::separate) {
    return {layout.query, layout.key, layout.value, layout.output};
  }
  return {layout.query, layout.output};
}

}  // namespace mha::weights

namespace mha {

bool needs_num_heads(const std::string& layout) {
  const weights::Layout* const found = weights::find_layout(layout);
  return found != nullptr && weights::needs_num_heads(*found);
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const weights::Layout& layout : weights::layouts()) {
    names.emplace_back(layout.name);
  }
  return names;
}

}  // namespace mha
