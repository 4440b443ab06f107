#include "weights/caveat.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "weights/prefix.h"

namespace mha::weights {
namespace {

/// A name that tells of more than the lesson computes.
struct Sign {
  std::string_view name;
  std::string_view what;
};

constexpr std::string_view kInput = "the model normalises its input first, which is left out";
constexpr std::string_view kNormalised = "the model normalises query and key, which is left out";
constexpr std::string_view kHeads = "the model normalises what its heads give, which is left out";
constexpr std::string_view kRelative = "the model adds a relative position bias, which is left out";
constexpr std::string_view kShorter =
    "the model shortens the sequence of keys and values first, which is left out";
constexpr std::string_view kWindow = "the model attends within a window, which is left out";
constexpr std::string_view kRotated =
    "the model rotates query and key by position (rotary embedding), which is left out";

// Components of names in the block.
constexpr std::array kInside{
    Sign{"q_norm", kNormalised},
    Sign{"k_norm", kNormalised},
    Sign{"norm_q", kNormalised},
    Sign{"norm_k", kNormalised},
    Sign{"query_norm", kNormalised},
    Sign{"key_norm", kNormalised},
    Sign{"q_layernorm", kNormalised},
    Sign{"k_layernorm", kNormalised},
    Sign{"query_layernorm", kNormalised},
    Sign{"key_layernorm", kNormalised},
    Sign{"qk_norm_q_scale", kNormalised},
    Sign{"qk_norm_k_scale", kNormalised},
    Sign{"distance_embedding", kRelative},
    Sign{"relative_position_bias_table", kRelative},
    Sign{"continuous_position_bias_mlp", kRelative},
    Sign{"cpb_mlp", kRelative},
    Sign{"rel_pos_h", kRelative},
    Sign{"emb_rel_k", kRelative},
    Sign{"rel_attn_embed", kRelative},
    Sign{"gru_rel_pos_const", kRelative},
    Sign{"group_norm", kInput},
    Sign{"ln", kInput},
    Sign{"layernorm1", kInput},
    Sign{"self_attn_layer_norm", kInput},
    Sign{"inner_attn_ln", kHeads},
    Sign{"attn_sub_norm", kHeads},
    Sign{"sr", kShorter},
    Sign{"sequence_reduction", kShorter},
    Sign{"rotary_emb", kRotated},
    Sign{"rotary_embeddings", kRotated},
    Sign{"sinks", "the model adds a learned sink to its softmax, which is left out"},
    Sign{"logit_scale", "the model compares query and key by their angle (cosine), which is left out"},
    Sign{"scaling", "the model scales every feature of the query, which is left out"},
    Sign{"conv", "the model adds a convolution of the values, which is left out"},
    Sign{"dt_proj", "the model adds scores that it computes from the values, which is left out"},
    Sign{"lambda_q1", "the model subtracts a second attention (differential attention), which is left out"},
    Sign{"layout_query", "the model adds the scores of a second stream for the layout, which is left out"},
    Sign{"query_global",
         "the model attends within a window and globally from some tokens, which is left out"},
    Sign{"w2e_query", "the model has queries of their own for words and entities, which are left out"},
};

// Components of the prefix.
constexpr std::array kPrefix{
    Sign{"channel_attn", "the model attends over channels, not over the sequence"},
    Sign{"initial_char_encoder", kWindow},
    Sign{"final_char_encoder", kWindow},
    Sign{"LocalSelfAttention", kWindow},
    Sign{"TransientGlobalSelfAttention", kWindow},
};

/// A name beside the block, or beside what the block is part of.
struct Neighbour {
  std::string_view name;
  std::string_view what;
  std::string_view layout = {};  ///< only for blocks in this one; empty: in any
};

constexpr std::array kAround{
    Neighbour{"rel_pos_bias", kRelative},             // LayoutLMv3
    Neighbour{"relative_attention_bias", kRelative},  // MPNet
    Neighbour{"relative_position_bias", kRelative},   // BEiT, shared by all layers
    Neighbour{"embed_positions.pe_k", kRelative},     // SpeechT5
    Neighbour{"graph_attn_bias", "the model adds a bias from a graph to its scores, which is left out"},
    Neighbour{"bbox_embeddings", "the model adds scores from boxes' positions, which are left out"},
    Neighbour{"embed_positions", kRotated, "bert"},  // RoFormer
    Neighbour{"merger", kRotated, "timm"},           // Qwen2-VL and its like
};

/// Whether `all` has `name` or names below it.
bool has_below(const AllNames& all, const std::string& name) {
  const auto found = all.lower_bound(name);
  if (found != all.end() && *found == name) {
    return true;
  }
  const auto below = all.lower_bound(name + ".");
  return below != all.end() && below->starts_with(name + ".");
}

/// Whether `all` has `name` in a place that `prefix` lies in.
bool is_around(const AllNames& all, const std::string& prefix, std::string_view name) {
  bool found = has_below(all, std::string(name));
  for (std::size_t dot = prefix.find('.'); !found && dot != std::string::npos;
       dot = prefix.find('.', dot + 1)) {
    found = has_below(all, prefix.substr(0, dot + 1) + std::string(name));
  }
  return found;
}

/// What all signs tell, each sentence once.
std::vector<std::string_view> told(const Layout& layout, const Names& block, const std::string& prefix,
                                   const AllNames& all) {
  std::vector<std::string_view> sentences;
  const auto tell = [&](std::string_view what) {
    if (std::find(sentences.begin(), sentences.end(), what) == sentences.end()) {
      sentences.push_back(what);
    }
  };
  for (const Sign& sign : kInside) {
    if (has_component_among(block, sign.name)) {
      tell(sign.what);
    }
  }
  for (const Sign& sign : kPrefix) {
    if (has_component(prefix, sign.name)) {
      tell(sign.what);
    }
  }
  for (const Neighbour& neighbour : kAround) {
    const bool meant = neighbour.layout.empty() || neighbour.layout == layout.name;
    if (meant && !prefix.empty() && is_around(all, prefix, neighbour.name)) {
      tell(neighbour.what);
    }
  }
  return sentences;
}

}  // namespace

AllNames names_without_wrappers(const StateDict& state_dict) {
  AllNames names;
  for (const StateDict::Item& item : state_dict) {
    names.insert(strip_wrappers(item.key()));
  }
  return names;
}

std::string caveat(const Layout& layout, const Names& block, const std::string& prefix, const AllNames& all) {
  std::string text(layout.caveat);
  const auto add = [&text](std::string_view more) {
    text += (text.empty() || more.empty() ? "" : "; ") + std::string(more);
  };
  if (!block.contains(bias_name(layout.query))) {
    add(layout.caveat_without_query_bias);
  }
  std::string place = strip_wrappers(without_final_dot(prefix) + ".");
  if (!place.empty()) {
    place.pop_back();
  }
  for (const std::string_view more : told(layout, block, place, all)) {
    const bool said = more == kRotated && text.find("rotary") != std::string::npos;
    add(said ? "" : more);
  }
  return text;
}

}  // namespace mha::weights
