/// Which tensors of a file are meant for a module.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mha/state_dict.h"

namespace mha::weights {

/// Tensors of a state dict, each under its name below the prefix.
using Selection = std::vector<std::pair<std::string, const StateDict::Item*>>;

/// The tensors of `from` under `prefix`, for a module whose names are those of `wanted`.
///
/// Full names are taken when they give every wanted name, or at least as many as names with their wrappers
/// stripped: a module may itself have a child called `module`. Throws `c10::ValueError` when nothing is under
/// the prefix, or two names are equal once stripped.
Selection select(const StateDict& from, const std::string& prefix, const StateDict& wanted);

/// The two ways of `select`: `prefix` (no final dot) against full names, and against names without wrappers.
Selection select_full(const StateDict& from, const std::string& prefix);
Selection select_stripped(const StateDict& from, const std::string& prefix);

/// Throws a `c10::ValueError` that begins with `caller` when two names of `selection` are equal.
void check_unique(const Selection& selection, const char* caller);

/// `prefix` as it is matched.
std::string without_final_dot(const std::string& prefix);

/// `name` without `_orig_mod` components (torch.compile) and without leading `module` components
/// (DataParallel).
std::string strip_wrappers(const std::string& name);

/// A few prefixes under which `from` has a name of `wanted` or, if there are none, any name: for hints in
/// messages.
std::vector<std::string> some_prefixes(const StateDict& from, const StateDict& wanted);

}  // namespace mha::weights
