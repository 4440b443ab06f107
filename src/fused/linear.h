// Products with fixed weights.
#pragma once

#include <torch/types.h>

namespace mha::fused {

/// Whether weights of this kind are packed for oneDNN: a matter of the processor too.
bool has_packed_products(torch::ScalarType dtype, torch::Device device);

/// y = x W^T + b for inference: W packed once for oneDNN where this processor and dtype have such products.
class Linear {
 public:
  /// weight (out, in), bias (out); both detached.
  Linear(torch::Tensor weight, torch::Tensor bias);

  /// x (..., in) -> (..., out), contiguous; it may be the beginning of somewhat more memory.
  torch::Tensor operator()(const torch::Tensor& x) const;

 private:
  torch::Tensor multiply(const torch::Tensor& rows) const;

  torch::Tensor weight_;  // as given, or packed
  torch::Tensor bias_;
  bool packed_;
};

}  // namespace mha::fused
