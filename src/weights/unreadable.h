/// Which tensors have values to read.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mha::weights {

/// What keeps values from being read out of `source`; empty: nothing.
inline std::string unreadable(const at::Tensor& source) {
  if (!source.defined()) {
    return "an undefined tensor";
  }
  if (source.layout() != at::kStrided || source.is_nested()) {
    return "a tensor that is not dense";
  }
  return source.is_quantized() ? "a quantized tensor"
         : source.is_meta()    ? "a meta tensor, which has no data"
                               : "";
}

}  // namespace mha::weights
