#include "weights/attention_block.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/shape_text.h"
#include "weights/unreadable.h"

namespace mha::weights {
namespace {

using at::Tensor;

constexpr std::size_t kParts = 3;  // query, key and value, in this order

/// A name in the block that rules the lesson out.
struct Sign {
  std::string_view name;
  std::string_view what;
};

constexpr std::string_view kAddedKey =
    "a learned key and value added to every sequence (add_bias_kv), which the lesson has not";
constexpr std::string_view kBiasApart =
    "biases kept apart from their layers (q_bias, v_bias, dense_bias), which no layout here has";

// Components of names.
constexpr std::array kNever{
    Sign{"bias_k", kAddedKey},  Sign{"bias_v", kAddedKey},      Sign{"q_bias", kBiasApart},
    Sign{"v_bias", kBiasApart}, Sign{"dense_bias", kBiasApart},
};

Tensor find(const Names& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? Tensor() : found->second->value();
}

/// The key under which the file has it: for messages.
std::string full_name(const Names& names, const std::string& name) {
  return quote(names.find(name)->second->key());
}

/// Rows and columns of a weight as `torch.nn.Linear` has them.
struct Width {
  int64_t out;
  int64_t in;

  bool operator==(const Width&) const = default;
};

Width width(const Layout& layout, const Names& names, std::string_view pattern) {
  const Tensor weight = find(names, weight_name(pattern));
  return layout.transposed ? Width{weight.size(1), weight.size(0)} : Width{weight.size(0), weight.size(1)};
}

/// Why a tensor cannot be a weight or bias of that many dimensions; empty: it can.
std::string unusable(const Names& names, const std::string& name, int64_t dimensions) {
  const auto found = names.find(name);
  if (found == names.end()) {
    return "";
  }
  const Tensor& tensor = found->second->value();
  const std::string title = full_name(names, name) + ": expected ";
  if (const std::string what = unreadable(tensor); !what.empty()) {
    return title + "a dense tensor, found " + what;
  }
  if (!at::isFloatingType(tensor.scalar_type())) {
    return title + "floating-point numbers, found " + dtype_text(tensor.scalar_type());
  }
  if (tensor.dim() != dimensions || tensor.numel() == 0) {
    return title + (dimensions == 1 ? "a vector" : "a matrix") + ", found shape " +
           shape_text(tensor.sizes());
  }
  return "";
}

/// All weights with their shapes, as found.
std::string shapes(const Layout& layout, const Names& names) {
  std::string text;
  for (const std::string_view pattern : patterns(layout)) {
    const std::string name = weight_name(pattern);
    text += (text.empty() ? "" : ", ") + full_name(names, name) + " " + shape_text(find(names, name).sizes());
  }
  return text;
}

/// What separate weights are that are not the lesson's four squares; empty: they are.
std::string other_separate_widths(const Layout& layout, const Names& names) {
  const Width query = width(layout, names, layout.query);
  const Width key = width(layout, names, layout.key);
  const Width value = width(layout, names, layout.value);
  const Width output = width(layout, names, layout.output);
  if (query.out == query.in && query == key && query == value && query == output) {
    return "";
  }
  if (key == value && key.in == query.in && key.out < query.out && query.out % key.out == 0) {
    return "grouped key/value heads (" + std::to_string(query.out / key.out) +
           " query heads share a key and a value head; the lesson's heads have their own)";
  }
  if (key.in != query.in || value.in != query.in) {
    return "keys and values of other widths than the query (the lesson's are all d_model)";
  }
  if (query == key && query == value && output == Width{query.in, query.out}) {
    return "heads of " + std::to_string(query.out) + " features in all for a d_model of " +
           std::to_string(query.in) + " (the lesson's add up to d_model)";
  }
  return "weights of other widths than the lesson's, which are all d_model";
}

/// The same of a packed weight. Divisions only: sizes come from files, and three times one may overflow.
std::string other_packed_widths(const Layout& layout, const Names& names) {
  const auto parts = static_cast<int64_t>(kParts);
  const Width packed = width(layout, names, layout.query);
  const Width output = width(layout, names, layout.output);
  const bool square = output == Width{packed.in, packed.in};
  if (square && packed.out % parts == 0 && packed.out / parts == packed.in) {
    return "";
  }
  if (square && packed.out % 2 == 0 && packed.out / 2 == packed.in) {
    return "a packed weight of two parts (key and value of a cross-attention whose query is elsewhere, "
           "or grouped key/value heads), where the lesson's has three";
  }
  if (square && packed.out > packed.in && packed.out / parts < packed.in &&
      (packed.out - packed.in) % 2 == 0) {
    return "grouped key/value heads (query has " + std::to_string(packed.in) + " rows, key and value have " +
           std::to_string((packed.out - packed.in) / 2) + " each; the lesson's heads have their own)";
  }
  if (packed.out % parts == 0 && output == Width{packed.in, packed.out / parts}) {
    return "heads of " + std::to_string(output.in) + " features in all for a d_model of " +
           std::to_string(packed.in) + " (the lesson's add up to d_model)";
  }
  return "weights of other widths than the lesson's, which are d_model, packed 3 * d_model";
}

/// A bias of another length than its layer's rows; empty: there is none.
std::string other_bias(const Names& names, const std::string& name, int64_t expected) {
  const Tensor bias = find(names, name);
  if (!bias.defined() || bias.size(0) == expected) {
    return "";
  }
  return full_name(names, name) + ": expected " + shape_text({&expected, 1}) + ", found " +
         shape_text(bias.sizes());
}

/// A tensor inside a projection's layer that is neither weight nor bias: adapters and quantised weights have
/// such, and without it the projection would silently be another.
std::string stray(const Layout& layout, const Names& names) {
  for (const std::string_view pattern : patterns(layout)) {
    if (!pattern.ends_with(".*")) {
      continue;
    }
    const std::string_view layer = pattern.substr(0, pattern.size() - 1);
    for (auto each = names.lower_bound(layer); each != names.end() && each->first.starts_with(layer);
         ++each) {
      if (each->first != weight_name(pattern) && each->first != bias_name(pattern)) {
        return "expected a layer of weight and bias, found " + quote(each->second->key()) +
               " beside them (merge adapters and undo quantisation first)";
      }
    }
  }
  return "";
}

std::vector<std::string> bias_names(const Layout& layout) {
  std::vector<std::string> names;
  for (const std::string_view pattern : patterns(layout)) {
    const bool stacked = !layout.stacked_bias.empty() && pattern != layout.output;
    names.push_back(stacked ? std::string(layout.stacked_bias) : bias_name(pattern));
  }
  return names;
}

/// Why the block cannot be the lesson's; empty: it can.
std::string problem(const Layout& layout, const Names& names) {
  for (const std::string_view pattern : patterns(layout)) {
    if (std::string why = unusable(names, weight_name(pattern), 2); !why.empty()) {
      return why;
    }
  }
  const std::vector<std::string> biases = bias_names(layout);
  for (const std::string& bias : biases) {
    if (std::string why = unusable(names, bias, 1); !why.empty()) {
      return why;
    }
  }
  const bool separate = layout.packing == Packing::separate;
  const std::string other =
      separate ? other_separate_widths(layout, names) : other_packed_widths(layout, names);
  if (!other.empty()) {
    return "found " + other + ": " + shapes(layout, names);
  }
  const int64_t rows = width(layout, names, layout.output).out;
  const bool packed_bias = !separate || !layout.stacked_bias.empty();
  for (const std::string& bias : biases) {
    const bool packed = packed_bias && bias != biases.back();
    // No overflow: a weight of that many rows, or three of them, is there.
    std::string why = other_bias(names, bias, packed ? static_cast<int64_t>(kParts) * rows : rows);
    if (!why.empty()) {
      return why;
    }
  }
  if (std::string why = stray(layout, names); !why.empty()) {
    return why;
  }
  for (const Sign& sign : kNever) {
    if (has_component_among(names, sign.name)) {
      return "found " + std::string(sign.what);
    }
  }
  return "";
}

/// Part `index` of (3 * d_model, ...), taken together from the heads where they are interleaved.
Tensor part(const Tensor& packed, Packing packing, int64_t index, int64_t num_heads) {
  if (!packed.defined()) {
    return packed;
  }
  const int64_t rows = packed.size(0) / static_cast<int64_t>(kParts);
  if (packing == Packing::stacked) {
    return packed.narrow(0, index * rows, rows);
  }
  std::vector<int64_t> shape = packed.sizes().vec();
  shape[0] = rows;
  const Tensor heads = packed.unflatten(0, {num_heads, static_cast<int64_t>(kParts), rows / num_heads});
  return heads.select(1, index).reshape(shape);
}

/// Multiplied in float64, so that only the result is rounded.
Tensor scaled(const Tensor& tensor, double factor) {
  return tensor.to(at::kDouble).mul(factor).to(tensor.scalar_type());
}

}  // namespace

bool has_component(std::string_view name, std::string_view component) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (name.substr(begin, end - begin) == component) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

bool has_component_among(const Names& names, std::string_view component) {
  return std::any_of(names.begin(), names.end(),
                     [&](const auto& each) { return has_component(each.first, component); });
}

bool has_weights(const Layout& layout, const Names& names) {
  if (layout.query_bias != QueryBias::any &&
      names.contains(bias_name(layout.query)) != (layout.query_bias == QueryBias::always)) {
    return false;
  }
  const std::vector<std::string_view> all = patterns(layout);
  return std::all_of(all.begin(), all.end(),
                     [&](std::string_view pattern) { return names.contains(weight_name(pattern)); });
}

std::vector<Match> match(const Names& names, std::span<const Layout> rows) {
  std::vector<Match> matches;
  for (const Layout& layout : rows) {
    if (has_weights(layout, names)) {
      matches.push_back({&layout, problem(layout, names)});
    }
  }
  const auto fits = [](const Match& each) { return each.problem.empty(); };
  if (std::any_of(matches.begin(), matches.end(), fits)) {
    std::erase_if(matches, [&](const Match& each) { return !fits(each); });
  }
  return matches;
}

int64_t d_model(const Layout& layout, const Names& names) {
  const bool is_matrix = unusable(names, weight_name(layout.output), 2).empty();
  return is_matrix ? width(layout, names, layout.output).out : 0;
}

std::array<Projection, 4> projections(const Layout& layout, const Names& names, int64_t num_heads) {
  const std::vector<std::string_view> all = patterns(layout);
  const std::vector<std::string> biases = bias_names(layout);
  const auto load = [&](std::size_t i) {
    const Tensor weight = find(names, weight_name(all[i])).detach();
    const Tensor bias = find(names, biases[i]);
    return Projection{.weight = layout.transposed ? weight.t() : weight,
                      .bias = bias.defined() ? bias.detach() : bias};
  };
  std::array<Projection, 4> result;
  for (std::size_t i = 0; i < kParts; ++i) {
    const auto index = static_cast<int64_t>(i);
    if (layout.packing == Packing::separate) {
      result[i] = load(i);
      if (!layout.stacked_bias.empty()) {
        result[i].bias = part(result[i].bias, Packing::stacked, index, num_heads);
      }
    } else {
      const Projection packed = load(0);
      result[i] = {.weight = part(packed.weight, layout.packing, index, num_heads),
                   .bias = part(packed.bias, layout.packing, index, num_heads)};
    }
  }
  result.back() = load(all.size() - 1);
  for (Projection& projection : result) {
    if (layout.transposed) {
      projection.weight = projection.weight.contiguous();
    }
  }
  if (layout.unscaled) {
    const int64_t d_k = result[0].weight.size(0) / num_heads;
    result[0].weight = scaled(result[0].weight, std::sqrt(static_cast<double>(d_k)));
  }
  return result;
}

}  // namespace mha::weights
