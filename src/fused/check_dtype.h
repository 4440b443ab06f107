// The dtypes that the engine computes in.
#pragma once

#include <c10/util/Exception.h>
#include <torch/types.h>

#include "support/dtype_text.h"

namespace mha::fused {

/// An error for any other.
inline void check_dtype(const char* name, torch::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      dtype == torch::kFloat || dtype == torch::kBFloat16 || dtype == torch::kDouble || dtype == torch::kHalf,
      name, ": expected dtype float32, bfloat16, float64 or float16, found ", dtype_text(dtype));
}

}  // namespace mha::fused
