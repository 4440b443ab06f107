// Every tolerance of the project, in one place.
#pragma once

#include <torch/types.h>

namespace mha::parity {

/// Against a float64 twin: at most twice PyTorch's own error, plus a few roundings of the result itself, so
/// that an exact reference does not demand an exact result.
inline constexpr double twin_error_factor = 2;
inline constexpr double twin_roundings = 8;
/// A reference whose own error is a larger share of the largest value says nothing about ours: the defaults
/// decide.
inline constexpr double twin_largest_share = 0.25;

/// Roundings of the largest number in a sum that are rounding, whatever the sum is. Measured over the exporter's grid
/// on other instruction sets (ATEN_CPU_CAPABILITY=default and avx2, MKL_CBWR=COMPATIBLE): at most 8.
inline constexpr double scale_roundings = 8;

/// Where errors are amplified, never more than this share of the largest value: else anything would pass.
inline constexpr double scale_largest_share = 0.25;

/// A gradient whose float64 twin is a smaller share of the largest gradient is zero but for rounding.
inline constexpr double vanishing_share = 1e-9;

/// The element-wise bound absolute + relative * |reference|.
struct Tolerance {
  double relative;
  double absolute;
};

/// The defaults of torch.testing.assert_close (torch/testing/_comparison.py) by dtype; exact for integers.
Tolerance default_tolerance(torch::ScalarType dtype);

/// The distance from 1 to the next number of a floating point dtype, as torch.finfo(dtype).eps.
double epsilon(torch::ScalarType dtype);

}  // namespace mha::parity
