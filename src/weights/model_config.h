/// What the `config.json` of a model tells of its attention.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mha::weights {

/// One object of the config: the whole, or one model of several (`text_config`, `decoder`, ...).
struct ConfigSection {
  /// A key and its value; without a value, what was found in its place.
  struct Told {
    std::string key;
    std::optional<std::int64_t> value;
    std::string found;
  };

  std::string name;               ///< empty for the whole
  std::vector<Told> num_heads;    ///< `num_attention_heads`, `n_head`, ...
  std::vector<Told> widths;       ///< `hidden_size`, `d_model`, ...
  std::vector<Told> head_widths;  ///< `head_dim`, `d_kv`
};

/// Reads `json`; only what is named above is kept. Throws `mha::Error` that begins with `file` when it is no
/// JSON object or nested deeper than any config.
std::vector<ConfigSection> parse_model_config(std::string_view json, const std::string& file);

/// The number of heads for attention of width `d_model` (0: unknown); nothing when no section tells it. Throws
/// `mha::Error` that begins with `file` when what they tell cannot be used or contradicts itself.
std::optional<std::int64_t> choose_num_heads(const std::vector<ConfigSection>& sections, std::int64_t d_model,
                                             const std::string& file);

}  // namespace mha::weights
