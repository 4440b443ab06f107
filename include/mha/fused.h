/// Multi-head attention for inference: what `mha::MultiHeadAttention` computes, faster, and without anything of size
/// query_len x key_len.
///
///     const mha::FusedMultiHeadAttention fused(module);      // once
///     auto y = fused(x, mask);                               // self-attention, from any number of threads
///     y = fused(query, memory, mask);                        // cross-attention
///     y = fused(x, mha::CausalAlignment::top_left);          // a decoder's mask, without a mask tensor
///     const auto projected = fused.project_memory(memory, mask);   // once, for many queries
///     y = projected.attend(query);
///
/// Generation, one position at a time: mha/cache.h.
///
/// Letters in shapes: B batch, L query_len, S key_len, H num_heads, D d_model, d_k = D / H.
/// Argument errors are `c10::ValueError`, thrown before any arithmetic.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "mha/attention.h"
#include "mha/export.h"
#include "mha/masks.h"
#include "mha/state_dict.h"

namespace mha {

/// Which keys a query sees: a mask tensor, a causal rule, both or neither. Converts from either.
struct MHA_EXPORT Masking {
  Masking() = default;
  Masking(torch::Tensor mask) : mask(std::move(mask)) {}  // NOLINT(google-explicit-constructor)
  Masking(CausalAlignment causal) : causal(causal) {}     // NOLINT(google-explicit-constructor)
  Masking(torch::Tensor mask, CausalAlignment causal) : mask(std::move(mask)), causal(causal) {}

  /// As in `MultiHeadAttention::forward`: any dtype, broadcast to (B, H, L, S), 0 blocks. Never expanded in memory.
  /// Undefined: none.
  torch::Tensor mask;
  /// As if combined with `causal_mask(L, S, causal)`, but keys that no query of a block sees are skipped: half the
  /// work for L = S.
  std::optional<CausalAlignment> causal;
};

class KeyValueCache;

/// A memory that many queries attend to, projected once by `FusedMultiHeadAttention::project_memory`, whose weights it
/// keeps. Immutable; copies share it.
class MHA_EXPORT ProjectedMemory {
 public:
  /// Cross-attention: query (B, L, D) -> (B, L, D). Beams of one item share its memory as more query rows:
  /// `query.view({B, beams * L, D})`, since rows do not see each other.
  ///
  /// Errors: those of `FusedMultiHeadAttention`; another batch.
  torch::Tensor attend(const torch::Tensor& query) const;

  /// The same into memory at hand: output (B, L, D), contiguous, of the engine's dtype and device. For up to 64
  /// contiguous rows of float32 or bfloat16 on CPU it allocates nothing, but in the first call of a thread or worker.
  void attend_into(const torch::Tensor& query, const torch::Tensor& output) const;

  int64_t batch() const;  ///< B

  /// Copies of what it holds.
  torch::Tensor keys() const;    ///< (B, H, S, d_k)
  torch::Tensor values() const;  ///< (B, H, S, d_k)
  torch::Tensor mask() const;    ///< as given; undefined: none

 private:
  friend class FusedMultiHeadAttention;
  struct State;
  explicit ProjectedMemory(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

/// The lesson's multi-head attention with fixed weights, for inference.
///
/// Immutable: calls are const, need no lock and may run at once. Copies share the weights. Training mode, dropout
/// and autocast play no part.
///
/// **Semantics** are those of `MultiHeadAttention` in eval mode: blocked scores are replaced by -1e9 (a fully blocked
/// row takes the mean of the values), NaN and infinity come out where they would there, float16 takes no mask. With
/// `Masking::causal` two things differ: NaN or infinity in a blocked key reaches a row only if the key is not skipped,
/// and a row that keeps no key at all takes the mean over all keys, which for `bottom_right` with L > S is what the mask
/// would give. In float32 and bfloat16 values beyond the dtype's largest number divided by S may overflow; bfloat16's
/// denormal numbers may count as 0.
///
/// **Accuracy**: the error against float64 is at most twice that of PyTorch's module and eight roundings; the
/// products are up to twice less exact than `at::linear`, which very peaked attention can amplify beyond that. Bits differ
/// from the module's. Those of the attention itself do not depend on the number of threads, nor on what else is in the
/// batch, only on whether there are few query rows (16) or more; those of the projections may.
///
/// **Paths**, chosen by dtype, device and sizes, never by values; `describe` tells:
///
/// | dtype, device | projections | attention |
/// |---|---|---|
/// | float32, bfloat16 on CPU, up to 64 rows | own kernels, at the speed of memory | own kernels for this processor |
/// | float32, bfloat16 on CPU | oneDNN with weights packed once, or `at::linear` | own kernels for this processor |
/// | float64, float16 on CPU | `at::linear` | the lesson's steps, some query rows at a time |
/// | other devices, no mask | `at::linear` | ATen's `scaled_dot_product_attention` |
/// | other devices, mask | `at::linear` | the lesson's steps, some query rows at a time |
class MHA_EXPORT FusedMultiHeadAttention {
 public:
  /// Copies the module's weights; later changes of the module do not reach this.
  explicit FusedMultiHeadAttention(const MultiHeadAttention& module);

  /// From weights by the lesson's eight names, no more and no less (`to_lesson` in mha/weights.h brings others
  /// there), in `dtype`, or in that of `W_q.weight`.
  ///
  /// Errors: missing or unexpected names, shapes other than (D, D) and (D), num_heads that does not divide D, dtypes
  /// or devices that differ from those of `W_q.weight` (dtypes only where no `dtype` is given).
  FusedMultiHeadAttention(const StateDict& weights, int64_t num_heads,
                          std::optional<torch::ScalarType> dtype = std::nullopt);

  /// Self-attention: x (B, L, D) -> (B, L, D); query, key and value in one product.
  ///
  /// Errors of all calls: those of `MultiHeadAttention::forward`, and inputs that require gradients while gradients
  /// are recorded: use a `torch::NoGradGuard`, or the module.
  torch::Tensor operator()(const torch::Tensor& x, const Masking& masking = {}) const;

  /// Cross-attention: query (B, L, D), memory (B, S, D) -> (B, L, D); key and value in one product. The masking has
  /// no default, so that `fused(a, b)` can only mean a mask: pass `{}` for none.
  torch::Tensor operator()(const torch::Tensor& query, const torch::Tensor& memory,
                           const Masking& masking) const;

  /// As the module's forward: query (B, L, D), key and value (B, S, D) -> (B, L, D). Where they are one and the same
  /// tensor they are projected in one product. Mind that without the masking the value would be taken for one.
  torch::Tensor operator()(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                           const Masking& masking) const;

  /// Keys and values of memory (B, S, D), for queries of any length that will attend to it. `mask` says which keys all
  /// those queries see: it broadcasts to (B, H, 1, S), such as a `padding_mask`. Undefined: all.
  ProjectedMemory project_memory(const torch::Tensor& memory, const torch::Tensor& mask = {}) const;

  /// A memory from what an earlier one's `keys()`, `values()` and `mask()` gave, such as those of a file. Copies them.
  ProjectedMemory restore_memory(const torch::Tensor& keys, const torch::Tensor& values,
                                 const torch::Tensor& mask = {}) const;

  /// (B, H, L, S): the weights that a call with these arguments gives the values, for those who want to look. Keeps
  /// what the call avoids to keep, and is no faster than the module.
  torch::Tensor attention_weights(const torch::Tensor& query, const torch::Tensor& key,
                                  const Masking& masking = {}) const;

  /// One line: which path a call with these arguments takes, such as `float32 on cpu: query + key + value projected by
  /// oneDNN's packed products; attention by own kernels, AVX3`. `+` joins what one product computes.
  std::string describe(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                       const Masking& masking = {}) const;

  /// Copies of the weights by the lesson's eight names.
  StateDict state_dict() const;

  int64_t d_model() const;          ///< D
  int64_t num_heads() const;        ///< H
  torch::ScalarType dtype() const;  ///< of weights, inputs and outputs
  torch::Device device() const;     ///< of weights, inputs and outputs

 private:
  friend class KeyValueCache;
  friend class ProjectedMemory;
  struct State;
  void check_memory_mask(const torch::Tensor& mask, int64_t batch, int64_t key_len) const;
  ProjectedMemory make_memory(const torch::Tensor& keys, const torch::Tensor& values,
                              const torch::Tensor& mask) const;

  std::shared_ptr<const State> state_;
};

/// The lesson's `scaled_dot_product_attention` by the same kernels: query (..., H, L, d_k), key and value (..., H, S, d_k),
/// 4 dimensions each -> (B, H, L, d_k). Features must lie side by side, or are copied.
///
/// Errors: other numbers of dimensions, sizes, dtypes or devices that do not fit, a mask that would enlarge the scores,
/// gradients to record.
MHA_EXPORT torch::Tensor fused_scaled_dot_product_attention(const torch::Tensor& query,
                                                            const torch::Tensor& key,
                                                            const torch::Tensor& value,
                                                            const Masking& masking = {});

}  // namespace mha
