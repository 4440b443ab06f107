// Arithmetic on numbers that come from files.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace mha {

/// a * b; nothing when that exceeds int64, in which LibTorch counts elements and bytes. Neither may be
/// negative.
inline std::optional<std::int64_t> multiply(std::int64_t a, std::int64_t b) {
  if (b != 0 && a > std::numeric_limits<std::int64_t>::max() / b) {
    return std::nullopt;
  }
  return a * b;
}

/// a + b; nothing when that exceeds int64. Neither may be negative.
inline std::optional<std::int64_t> add(std::int64_t a, std::int64_t b) {
  if (a > std::numeric_limits<std::int64_t>::max() - b) {
    return std::nullopt;
  }
  return a + b;
}

}  // namespace mha
