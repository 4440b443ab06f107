/// Scaled dot-product attention and multi-head attention, bit for bit what the Python module computes.
///
/// Letters in shapes: B batch, L query_len, S key_len, H num_heads, D d_model, d_k = D / H.
/// Argument errors are `c10::ValueError`, thrown before any arithmetic; `what_without_backtrace()` is one
/// line.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>

#include "mha/export.h"

namespace mha {

/// What `scaled_dot_product_attention` returns.
struct MHA_EXPORT AttentionResult {
  torch::Tensor output;             ///< (..., L, d_v)
  torch::Tensor attention_weights;  ///< (..., L, S), after dropout
};

/// Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.
///
/// query (..., L, d_k), key (..., S, d_k), value (..., S, d_v); leading dimensions broadcast.
/// mask: any dtype, any shape that broadcasts to the scores (..., L, S); 0 blocks, everything else keeps.
/// Blocked scores are *replaced* by -1e9: a fully blocked row attends to all keys equally, it is never NaN.
/// An additive mask (0 keeps, -inf blocks) means the opposite here: convert it with `keep_from_additive`
/// (mha/masks.h).
/// dropout: applied to the weights when it is in training mode; `nullptr` is none.
/// query, key and value are of one floating point dtype and on one device.
///
/// Errors: undefined tensors, fewer than 2 dimensions, unequal d_k, key_len, dtypes or devices, a mask that
/// does not broadcast to the scores or would enlarge them, and float16 with any mask (-1e9 does not fit).
/// Call it qualified: unqualified, argument-dependent lookup also finds ATen's function of this name, whose
/// boolean mask blocks with -inf.
/// Source: "Attention Is All You Need", equation 1.
MHA_EXPORT AttentionResult scaled_dot_product_attention(const torch::Tensor& query, const torch::Tensor& key,
                                                        const torch::Tensor& value,
                                                        const torch::Tensor& mask = {},
                                                        torch::nn::Dropout dropout = nullptr);

/// Every intermediate of one forward call, in the order in which it is computed. Q, K, V are after the head
/// split.
struct MHA_EXPORT AttentionSteps {
  torch::Tensor Q;                  ///< (B, H, L, d_k)
  torch::Tensor K;                  ///< (B, H, S, d_k)
  torch::Tensor V;                  ///< (B, H, S, d_k)
  torch::Tensor scores;             ///< (B, H, L, S), divided by sqrt(d_k)
  torch::Tensor masked_scores;      ///< (B, H, L, S); undefined without a mask
  torch::Tensor softmax;            ///< (B, H, L, S), before dropout
  torch::Tensor attention_weights;  ///< (B, H, L, S), after dropout
  torch::Tensor context;            ///< (B, L, D), heads concatenated
  torch::Tensor output;             ///< (B, L, D)
};

/// Options of `MultiHeadAttention`: `MultiHeadAttentionOptions(512, 8).dropout(0.1)`.
struct MHA_EXPORT MultiHeadAttentionOptions {
  MultiHeadAttentionOptions(int64_t d_model, int64_t num_heads) : d_model_(d_model), num_heads_(num_heads) {}

  /// Width of the input and of the output; a multiple of num_heads.
  TORCH_ARG(int64_t, d_model);
  /// Number of heads, each d_model / num_heads wide.
  TORCH_ARG(int64_t, num_heads);
  /// Probability of dropping an attention weight in training, within [0, 1]. Default: 0.1.
  TORCH_ARG(double, dropout) = 0.1;
};

/// Multi-head attention with four (D, D) projections with biases, as the Python module it reproduces.
///
/// One instance is not for concurrent forward calls: each call replaces `attention_weights`.
class MHA_EXPORT MultiHeadAttentionImpl : public torch::nn::Cloneable<MultiHeadAttentionImpl> {
 public:
  /// Errors: d_model or num_heads not positive, d_model not divisible by num_heads, dropout outside [0, 1].
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  /// The positional form of the Python module: `MultiHeadAttention(512, 8, 0.1)`.
  MultiHeadAttentionImpl(int64_t d_model, int64_t num_heads, double dropout = 0.1);

  /// Builds the sub-modules anew from `options` (CPU, default dtype), freshly initialised in the order W_q,
  /// W_k, W_v, W_o: after `torch::manual_seed(n)` their values are Python's after `torch.manual_seed(n)`.
  /// Clears `attention_weights`, keeps the training mode.
  void reset() override;

  /// Draws all parameters afresh in place, keeping dtype, device and identity. Clears `attention_weights`.
  void reset_parameters();

  /// Prints `mha::MultiHeadAttention(d_model=512, num_heads=8, dropout=0.1)`.
  void pretty_print(std::ostream& stream) const override;

  /// A deep copy that keeps dtype, training mode and `requires_grad`; its `attention_weights` are undefined.
  /// As every clone in LibTorch it draws random numbers on the way, which Python's deepcopy does not: set a
  /// seed after it.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// query (B, L, D), key (B, S, D), value (B, S, D), mask as in `scaled_dot_product_attention`, broadcast to
  /// (B, H, L, S); returns (B, L, D).
  ///
  /// Errors, besides those of `scaled_dot_product_attention`: rank other than 3, last dimension other than
  /// d_model, batch 0 or unequal, key_len unlike value_len, dtypes (outside autocast) or devices unlike the
  /// parameters'. A (B, L, S) mask is refused unless it broadcasts onto (B, H, L, S) as it stands; where B
  /// equals H it does, and its batch is then taken for heads, as in Python: pass (B, 1, L, S).
  torch::Tensor forward(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                        const torch::Tensor& mask = {});

  /// As `forward`, bit for bit, and returns every intermediate. Holding them costs memory, nothing else
  /// changes.
  AttentionSteps forward_steps(const torch::Tensor& query, const torch::Tensor& key,
                               const torch::Tensor& value, const torch::Tensor& mask = {});

  MultiHeadAttentionOptions options;

  torch::nn::Linear W_q{nullptr};       ///< query projection, D -> D
  torch::nn::Linear W_k{nullptr};       ///< key projection, D -> D
  torch::nn::Linear W_v{nullptr};       ///< value projection, D -> D
  torch::nn::Linear W_o{nullptr};       ///< output projection, D -> D
  torch::nn::Dropout dropout{nullptr};  ///< on the attention weights
  int64_t d_model = 0;                  ///< D
  int64_t num_heads = 0;                ///< H
  int64_t d_k = 0;                      ///< width of each head, D / H
  /// (B, H, L, S) of the last forward, after dropout, attached to the graph; undefined before it.
  torch::Tensor attention_weights;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({3, torch::nn::AnyValue(torch::Tensor())})

 private:
  torch::Tensor attend(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                       const torch::Tensor& mask, AttentionSteps* steps);
};

/// Holder of `MultiHeadAttentionImpl`: `mha::MultiHeadAttention attention(512, 8);`.
TORCH_MODULE(MultiHeadAttention);

/// The lesson's module with the weights, dtype, device and mode of LibTorch's own `MultiheadAttention`.
///
/// Missing biases become zero, which is the same function; all parameters of the result require gradients.
/// Mind the other conventions when calling it: inputs here are (B, L, D), not (L, B, D), and a mask's 1 keeps.
///
/// Errors: kdim or vdim unlike embed_dim, bias_k, bias_v or add_zero_attn, none of which this module has.
MHA_EXPORT MultiHeadAttention from_torch(const torch::nn::MultiheadAttention& module);

/// LibTorch's own `MultiheadAttention` with the weights, dtype, device and mode of `module`.
MHA_EXPORT torch::nn::MultiheadAttention to_torch(const MultiHeadAttention& module);

}  // namespace mha
