// Where the positions of queries and keys meet.
#pragma once

#include <cstdint>

#include "mha/masks.h"

namespace mha::attention {

/// By the causal rule query i sees the keys up to i + this.
inline int64_t causal_shift(CausalAlignment alignment, int64_t query_len, int64_t key_len) {
  return alignment == CausalAlignment::bottom_right ? key_len - query_len : 0;
}

}  // namespace mha::attention
