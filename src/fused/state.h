// What an engine holds, and the calls of few rows: between plain memory, without a tensor or an allocation.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>

#include "fused/attend.h"
#include "fused/core.h"
#include "fused/projections.h"
#include "fused/thread_buffer.h"
#include "mha/fused.h"
#include "mha/state_dict.h"

namespace mha {

namespace fused {

/// No gradients are recorded, and autocast changes no dtype, while this lives.
struct PlainDispatch {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// Errors for tensors that are not plain memory, and for those whose derivatives would be lost.
void check_plain(const char* name, const torch::Tensor& tensor);

/// What a call of few rows works on, in memory of this thread.
struct CallBuffer {
  CallBuffer(size_t projected_bytes, size_t context_bytes)
      : memory(BufferUse::call, projected_bytes + context_bytes),
        projected(memory.data()),
        context(projected + projected_bytes) {}

  ThreadBuffer memory;
  std::byte* projected;  ///< rows x `layers` x D
  std::byte* context;    ///< rows x D
};

}  // namespace fused

struct FusedMultiHeadAttention::State {
  int64_t d_model;
  int64_t num_heads;
  fused::Projections projections;  // W_q, W_k, W_v
  fused::Projections output;       // W_o

  /// The lesson's eight weights.
  State(const StateDict& weights, int64_t num_heads);

  int64_t d_k() const { return d_model / num_heads; }
  torch::ScalarType dtype() const { return output.dtype(); }
  torch::Device device() const { return output.device(); }
  size_t itemsize() const { return c10::elementSize(dtype()); }

  /// Errors of a call's arguments.
  void check(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
             const torch::Tensor& mask) const;

  /// Errors of one input on its own.
  void check_input(const char* name, const torch::Tensor& input) const;

  /// Errors of a tensor that is not of this dtype and device.
  void check_kind(const char* name, const torch::Tensor& tensor) const;

  /// Errors of keys and values (..., H, length, d_k) of so many dimensions, which must be alike.
  void check_stored(const torch::Tensor& keys, const torch::Tensor& values, int64_t dimensions) const;

  /// Errors of a tensor that is to hold a call's result.
  void check_output(const torch::Tensor& result, c10::IntArrayRef sizes) const;

  /// Tells autograd that a tensor that it may need has other values now.
  static void mark_changed(const torch::Tensor& tensor);

  fused::Blocking blocking(const torch::Tensor& query, const torch::Tensor& key,
                           const Masking& masking) const;

  /// The product with W_o: context (B, L, D) or (B, L, H, d_k) -> (B, L, D).
  torch::Tensor project_output(const torch::Tensor& context) const;

  /// Self-attention of few rows.
  torch::Tensor attend_few(const torch::Tensor& x, const fused::Blocking& blocking) const;

  fused::CallBuffer call_buffer(int64_t rows, int64_t layers) const;

  /// Bytes from one layer's features to the next one's in a row of a CallBuffer.
  size_t layer_bytes() const { return static_cast<size_t>(d_model) * itemsize(); }

  /// What our kernels' arguments have in common: queries of `layers` x D elements a row, one after the other; results
  /// of D elements a row.
  fused::CoreArguments core_arguments(int64_t batch, int64_t query_len, int64_t layers) const;
};

}  // namespace mha
