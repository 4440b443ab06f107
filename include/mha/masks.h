/// Builders for masks in the convention of `mha/attention.h`: true (or anything but 0) keeps, false (0)
/// blocks.
///
/// All results are bool, on the CPU unless a device is given, and broadcast to (batch, num_heads, query_len,
/// key_len). In the pictures rows are queries, columns are keys, `1` keeps and `.` blocks. Argument errors
/// are `c10::ValueError`.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>

#include "mha/export.h"

namespace mha {

/// Which query sees which key as the last one when query_len and key_len differ. With equal lengths both
/// agree.
enum class CausalAlignment : std::uint8_t {
  /// Query 0 sees key 0 only, as if both sequences started together.
  ///
  ///     causal_mask(2, 4, top_left):      1 . . .
  ///                                       1 1 . .
  top_left,
  /// The last query sees every key, as if both sequences ended together: what a decoder with a cache needs.
  /// With query_len > key_len the first queries see no key at all and attend to all keys equally.
  ///
  ///     causal_mask(2, 4, bottom_right):  1 1 1 .
  ///                                       1 1 1 1
  bottom_right,
};

/// (L, L): each query sees itself and what came before.
///
///     causal_mask(3):  1 . .
///                      1 1 .
///                      1 1 1
MHA_EXPORT torch::Tensor causal_mask(int64_t length, torch::Device device = torch::kCPU);

/// (L, S): each query sees its own position and what came before; `alignment` says where positions meet.
MHA_EXPORT torch::Tensor causal_mask(int64_t query_len, int64_t key_len, CausalAlignment alignment,
                                     torch::Device device = torch::kCPU);

/// How many keys on each side of its own position a query sees, besides that position itself.
struct MHA_EXPORT Window {
  /// A side without a limit.
  static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

  int64_t before = unlimited;  ///< keys before; 0 for none
  int64_t after = 0;           ///< keys after; 0 for none, as in a decoder
};

/// (L, S): each query sees the keys within `window` of its own position.
///
///     sliding_window_mask(4, 4, {.before = 1, .after = 0}, top_left):  1 . . .
///                                                                      1 1 . .
///                                                                      . 1 1 .
///                                                                      . . 1 1
MHA_EXPORT torch::Tensor sliding_window_mask(int64_t query_len, int64_t key_len, Window window,
                                             CausalAlignment alignment, torch::Device device = torch::kCPU);

/// (B, 1, 1, S): item b of the batch has `lengths[b]` real keys, the rest is padding. `lengths` is a 1-D
/// integer tensor with values within [0, key_len]; the mask is on its device.
///
///     padding_mask({3, 1}, 4):  1 1 1 .
///                               1 . . .
MHA_EXPORT torch::Tensor padding_mask(const torch::Tensor& lengths, int64_t key_len);

/// Keeps what both keep; the shapes broadcast: combine(causal (L, S), padding (B, 1, 1, S)) is (B, 1, L, S).
/// Either may be of any dtype, and undefined, which keeps everything.
MHA_EXPORT torch::Tensor combine(const torch::Tensor& a, const torch::Tensor& b);

/// (B, S) -> (B, 1, 1, S): from the `key_padding_mask` of PyTorch's own module, bool with true = blocked.
MHA_EXPORT torch::Tensor keep_from_key_padding_mask(const torch::Tensor& key_padding_mask);

/// From an additive mask, floating point of any shape: 0 keeps; -inf, or the dtype's lowest finite value,
/// blocks. Any other value is a bias that this module cannot express: an error that names the first one.
MHA_EXPORT torch::Tensor keep_from_additive(const torch::Tensor& additive_mask);

/// From the bool `attn_mask` of PyTorch's own module: true = blocked, any shape. (The bool mask of
/// `scaled_dot_product_attention` in PyTorch means true = keep already.)
MHA_EXPORT torch::Tensor keep_from_blocked(const torch::Tensor& blocked);

}  // namespace mha
