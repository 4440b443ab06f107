/// One attention block of a state dict, seen through a layout.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mha/state_dict.h"
#include "weights/layouts.h"

namespace mha::weights {

/// Tensors of one place in a state dict by their names below it.
using Names = std::map<std::string, const StateDict::Item*, std::less<>>;

/// A layout whose weights are all there, and why they cannot be the lesson's (empty: they can).
struct Match {
  const Layout* layout = nullptr;
  std::string problem;
};

/// Those of `rows` that `names` has all weights of. Where some of them can be the lesson's, only these: names
/// may be shared, shapes tell then.
std::vector<Match> match(const Names& names, std::span<const Layout> rows);

/// Whether `name` has `component` between its dots.
bool has_component(std::string_view name, std::string_view component);

/// The same of any of `names`.
bool has_component_among(const Names& names, std::string_view component);

/// Whether the name of every weight of `layout` is there, and query's bias as it must be.
bool has_weights(const Layout& layout, const Names& names);

/// The width of the block's output; 0 when its weight is not a matrix.
int64_t d_model(const Layout& layout, const Names& names);

/// The four projections in the lesson's order; an absent bias is undefined.
struct Projection {
  at::Tensor weight;  // (d_model, d_model)
  at::Tensor bias;    // (d_model,)
};

/// Takes a block apart that `match` has no problem with. `num_heads` must divide d_model where the layout needs
/// it.
std::array<Projection, 4> projections(const Layout& layout, const Names& names, int64_t num_heads);

}  // namespace mha::weights
