/// Names for the tensors of a pickle.
#pragma once

#include <string>

#include "mha/state_dict.h"
#include "weights/pickle_value.h"
#include "weights/script_classes.h"
#include "weights/torch_tensors.h"

namespace mha::weights {

/// Every tensor in `value` under its keys and indices, joined by dots. `file` begins all messages.
///
/// Looks into dicts, lists, tuples and their subclasses; into modules, for what Python's `state_dict()`
/// lists; into the attributes of TorchScript objects (classes under `__torch__`), but for tensors that
/// `classes`, where given, tells to be neither parameters nor buffers. Other objects, sets and values that are
/// no tensors are left out. A tensor that is the whole value has the empty name.
StateDict flatten(const PickleValue& value, TensorMaker& tensors, ScriptClasses* classes,
                  const std::string& file);

}  // namespace mha::weights
