// Attention of projected heads: softmax(Q K^T / sqrt(d_k)) V with the lesson's masking, nothing of L x S kept.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fused/core.h"
#include "mha/masks.h"

namespace mha::fused {

/// What is blocked. `keep` is bool or uint8, broadcast to (B, H, L, S) by strides of 0, its last stride 0 or 1;
/// undefined: no mask tensor. 0 blocks.
struct Blocking {
  torch::Tensor keep;
  std::optional<CausalAlignment> causal;

  /// For some items of the batch and some heads.
  Blocking part(int64_t item, int64_t items, int64_t head, int64_t heads) const;
};

/// A mask of any dtype that broadcasts to `sizes` (B, H, L, S), without expanding it in memory.
Blocking make_blocking(const torch::Tensor& mask, std::optional<CausalAlignment> causal,
                       c10::IntArrayRef sizes);

/// Whether `attend` has kernels of its own for this dtype and device.
bool has_core(torch::ScalarType dtype, torch::Device device);

/// `dtype` is one that has a core.
Element element_of(torch::ScalarType dtype);

/// Brings the blocking into a core's arguments; their lengths are set.
void set_blocking(CoreArguments& arguments, const Blocking& blocking);

/// Query (B, L, H, d_k), key and value (B, S, H, d_k), output (B, L, H, d_k); any strides, but features side by side.
/// Overwrites output. Bits do not depend on the number of threads or on the rest of the batch with our own kernels.
void attend(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
            const Blocking& blocking, const torch::Tensor& output);

/// What `attend` does with these, in a few words.
std::string describe_attend(torch::ScalarType dtype, torch::Device device, bool masked,
                            std::optional<CausalAlignment> causal, int64_t query_len, int64_t key_len);

/// The lesson's weights (B, H, L, S) of query (B, L, H, d_k) and key (B, S, H, d_k).
torch::Tensor attention_weights(const torch::Tensor& query, const torch::Tensor& key,
                                const Blocking& blocking);

}  // namespace mha::fused
