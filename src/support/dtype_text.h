// Dtypes in messages and reports.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace mha {

/// A dtype by its name in Python: `float32`, `bfloat16`, `int64`, `bool`.
inline std::string dtype_text(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

}  // namespace mha
