/// Names to tensors: what every reader returns and every writer takes.
#pragma once

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <string>

#include "mha/export.h"

namespace mha {

/// Tensors by name, in file or registration order.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

/// The parameters and buffers of `module` by their dotted names, in the order of Python's
/// `Module.state_dict()`.
///
/// The tensors are detached and share memory with the module: clone them to keep a snapshot. Tied parameters
/// appear under each of their names.
MHA_EXPORT StateDict state_dict(const torch::nn::Module& module);

}  // namespace mha
