/// What a model computes beyond the lesson, as far as the names in its file tell.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "mha/state_dict.h"
#include "weights/attention_block.h"
#include "weights/layouts.h"

namespace mha::weights {

/// Every name of a state dict without its wrappers.
using AllNames = std::set<std::string, std::less<>>;

AllNames names_without_wrappers(const StateDict& state_dict);

/// What the model does more than the lesson, in one line: from the layout's row, from other names in the block,
/// from the block's `prefix` and from names beside it or above it in the model. Empty: nothing known.
std::string caveat(const Layout& layout, const Names& block, const std::string& prefix, const AllNames& all);

}  // namespace mha::weights
