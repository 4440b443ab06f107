#include "support/tensor_values.h"

namespace mha {

std::string not_dense(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "an undefined tensor";
  }
  if (tensor.layout() != at::kStrided) {
    return "a tensor of layout " + c10::str(tensor.layout());
  }
  if (tensor.is_nested()) {
    return "a nested tensor";
  }
  if (tensor.is_quantized()) {
    return "a quantized tensor";
  }
  return tensor.is_meta() ? "a meta tensor, which has no data" : "";
}

at::Tensor row_major(const at::Tensor& tensor) {
  // A ZeroTensor has no memory at all until it is cloned.
  const at::Tensor values = tensor._is_zerotensor() ? tensor.clone() : tensor;
  return values.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace mha
