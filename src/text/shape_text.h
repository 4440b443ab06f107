// Text for error messages, in the project's one way to write a shape.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

namespace mha {

/// `(32, 8, 50, 64)`; `(5,)` and `()` as Python writes them.
inline std::string shape_text(c10::IntArrayRef sizes) {
  std::string text = "(";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  }
  return text + (sizes.size() == 1 ? ",)" : ")");
}

}  // namespace mha
