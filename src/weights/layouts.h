/// How other modules name and pack the four projections of attention: one table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mha::weights {

/// How a layout stores the projections of query, key and value.
enum class Packing : std::uint8_t {
  separate,     ///< a matrix each: (d_model, d_model)
  stacked,      ///< one matrix, first all of query, then key, then value: (3 * d_model, d_model)
  interleaved,  ///< one matrix, head by head: (num_heads, 3, d_k, d_model) as (3 * d_model, d_model)
};

/// Whether a layout's query has a bias: that alone tells some layouts apart.
enum class QueryBias : std::uint8_t { any, never, always };

/// A row of the table. In the patterns, `*` stands for `weight` and for `bias`.
struct Layout {
  std::string_view name;
  Packing packing = Packing::separate;
  std::string_view query;  ///< all three when they are packed: key and value are empty then
  std::string_view key = {};
  std::string_view value = {};
  std::string_view output;
  std::string_view stacked_bias = {};  ///< holds the three biases although the weights are separate
  bool transposed = false;             ///< weights are (in, out), as in GPT-2's Conv1D
  QueryBias query_bias = QueryBias::any;
  bool unscaled = false;         ///< scores are not divided by sqrt(d_k); query has no bias
  std::string_view caveat = {};  ///< what the model does more than the lesson, in one line
  std::string_view caveat_without_query_bias = {};  ///< the same, where query has no bias
};

/// The table.
std::span<const Layout> layouts();

/// The row called `name`; null when there is none.
const Layout* find_layout(std::string_view name);

/// `q_proj.*` as `q_proj.weight`.
std::string weight_name(std::string_view pattern);

/// `q_proj.*` as `q_proj.bias`.
std::string bias_name(std::string_view pattern);

/// The patterns of query, key, value and output, or of the packed one and output.
std::vector<std::string_view> patterns(const Layout& layout);

/// Whether the layout can only be mapped when the number of heads is known.
inline bool needs_num_heads(const Layout& layout) {
  return layout.packing == Packing::interleaved || layout.unscaled;
}

}  // namespace mha::weights
