// Weights in our own kernels' order.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "fused/product.h"

namespace mha::fused {

/// y = x W^T + b for few rows, in float32 or bfloat16 on the CPU, between plain memory. Immutable.
class PackedWeight {
 public:
  /// weight (outputs, inputs), bias (outputs).
  PackedWeight(const torch::Tensor& weight, torch::Tensor bias);

  /// Rows of x, one after the other, times outputs [first, first + count): rows of y.
  void operator()(const void* x, int64_t rows, int64_t first, int64_t count, void* y) const;

  /// A copy, as it was given.
  torch::Tensor weight() const;

 private:
  WeightShape shape_;
  torch::Tensor packed_;
  torch::Tensor bias_;
};

}  // namespace mha::fused
