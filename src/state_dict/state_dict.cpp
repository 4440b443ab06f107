#include "mha/state_dict.h"

namespace mha {
namespace {

void append(StateDict& into, const torch::nn::Module& module, const std::string& prefix) {
  // named_parameters and named_buffers leave undefined tensors out (bias=false), as Python leaves out None.
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    into.insert(prefix + parameter.key(), parameter.value().detach());
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    if (buffer.value().defined()) {
      into.insert(prefix + buffer.key(), buffer.value().detach());
    }
  }
  for (const auto& child : module.named_children()) {
    append(into, *child.value(), prefix + child.key() + ".");
  }
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict result("Tensor");
  append(result, module, "");
  return result;
}

}  // namespace mha
