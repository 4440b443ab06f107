// Shapes in messages and reports.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace mha {

/// `(32, 8, 50, 64)`; `(5,)` and `()` as Python writes them.
inline std::string shape_text(std::span<const int64_t> sizes) {
  std::string text = "(";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  }
  return text + (sizes.size() == 1 ? ",)" : ")");
}

}  // namespace mha
