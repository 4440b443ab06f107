// One pass over two buffers of equal length and dtype.
#pragma once

#include <torch/types.h>

#include "mha/report.h"
#include "parity/tolerance.h"

namespace mha::parity {

/// What one pass finds.
struct ElementStatistics {
  double max_abs = 0;
  double max_rel = 0;
  std::optional<uint64_t> max_ulp;
  int64_t worst = -1;  ///< flat index of max_abs, or of the first other bits; -1 when all bits are equal
  int64_t mismatched = 0;
  int64_t beyond = 0;  ///< elements beyond the given tolerance, or not finite on one side only
  int64_t non_finite_mismatched = 0;
  double max_reference = 0;  ///< largest finite |reference|
  NonFinite ours;
  NonFinite reference;
  bool all_zero = true;
};

/// `ours` and `reference` are contiguous CPU tensors of the same dtype and number of elements.
ElementStatistics compare_elements(const torch::Tensor& ours, const torch::Tensor& reference,
                                   Tolerance tolerance);

}  // namespace mha::parity
