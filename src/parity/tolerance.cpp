#include "parity/tolerance.h"

#include <limits>

namespace mha::parity {

Tolerance default_tolerance(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
    case torch::kComplexDouble:
      return {.relative = 1e-7, .absolute = 1e-7};
    case torch::kFloat:
    case torch::kComplexFloat:
      return {.relative = 1.3e-6, .absolute = 1e-5};
    case torch::kHalf:
      return {.relative = 1e-3, .absolute = 1e-5};
    case torch::kBFloat16:
      return {.relative = 1.6e-2, .absolute = 1e-5};
    default:
      return {.relative = 0, .absolute = 0};
  }
}

double epsilon(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
      return std::numeric_limits<double>::epsilon();
    case torch::kFloat:
      return static_cast<double>(std::numeric_limits<float>::epsilon());
    case torch::kHalf:
      return 0x1p-10;
    case torch::kBFloat16:
      return 0x1p-7;
    default:
      return 0;
  }
}

}  // namespace mha::parity
