/// A decoder's memory of what it has seen: keys and values of earlier positions, so that a new position costs one row
/// and not the whole sequence.
///
///     mha::KeyValueCache cache(fused, /*batch=*/2, /*capacity=*/1024);
///     auto y = cache.prefill(prompt, {7, 5});   // (2, 7, D): the second prompt has 5 positions, then padding
///     y = cache.step(x);                        // (2, 1, D): one position more for each item
///     cache.reorder({0, 0});                    // beam search: both go on from item 0
///
/// Letters in shapes: B batch, L new positions, D d_model, H num_heads, d_k = D / H.
/// Argument errors are `c10::ValueError`, thrown before anything is changed.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "mha/export.h"
#include "mha/fused.h"

namespace mha {

/// Causal self-attention over what came before, for a batch of sequences that grow.
///
/// What `prefill` and `step` return are the rows that `attention(sequence, CausalAlignment::top_left)` gives for these
/// positions, within the engine's accuracy; bits may differ, for a few rows are computed in another order than many. Only
/// scores below -1e9, the mask's fill, would tell: later positions, which the forward blocks, do not exist yet in a step.
/// One cache is for one thread at a time; many caches may share an engine. A moved-from cache can be assigned to or
/// destroyed, nothing else.
///
/// A step of float32 or bfloat16 on CPU reads the weights and the keys and values of each item once. For up to 64 items,
/// `step_into` with a contiguous x allocates nothing, but in the first step of a thread or of one of LibTorch's workers.
class MHA_EXPORT KeyValueCache {
 public:
  /// Room for `capacity` positions of each of `batch` items, 2 x B x D x capacity elements in the engine's dtype, on its
  /// device. The memory is taken now, and touched when it is first written.
  KeyValueCache(const FusedMultiHeadAttention& attention, int64_t batch, int64_t capacity);

  /// Copies have memory of their own and share the engine.
  KeyValueCache(const KeyValueCache& other);
  KeyValueCache& operator=(const KeyValueCache& other);
  KeyValueCache(KeyValueCache&&) noexcept;
  KeyValueCache& operator=(KeyValueCache&&) noexcept;
  ~KeyValueCache();

  /// Adds positions: x (B, L, D) -> (B, L, D). Each sees itself and what came before in its own item. Of item b the first
  /// `lengths[b]` of the L count, the rest is padding whose output is 0; without lengths all count. A prompt may come in
  /// pieces; with lengths of 0 and 1, some items make a step and others stand still.
  ///
  /// Errors: those of `FusedMultiHeadAttention`; another batch; lengths outside [0, L] or not one for each item; an item
  /// that would exceed the capacity.
  torch::Tensor prefill(const torch::Tensor& x, c10::ArrayRef<int64_t> lengths = {});

  /// One position more for every item: x (B, 1, D) -> (B, 1, D).
  torch::Tensor step(const torch::Tensor& x);

  /// The same into memory at hand: output (B, 1, D), contiguous, of the engine's dtype and device.
  void step_into(const torch::Tensor& x, const torch::Tensor& output);

  /// Forgets all items, or one.
  void reset();
  void reset(int64_t item);

  /// Forgets the positions of an item from `length` on, such as rejected guesses.
  void truncate(int64_t item, int64_t length);

  /// Item `to` becomes a copy of item `from`.
  void copy(int64_t from, int64_t to);

  /// Item b becomes what item `sources[b]` was, for all b at once, as beams do. Only items that occur more than once are
  /// copied.
  void reorder(c10::ArrayRef<int64_t> sources);

  /// How many positions each item has.
  const std::vector<int64_t>& lengths() const;
  int64_t batch() const;
  int64_t capacity() const;

  /// Item `item` becomes what `keys` and `values` of a cache with the same weights gave, (H, length, d_k) both: a prompt
  /// that many share is computed once. Copies them.
  void assign(int64_t item, const torch::Tensor& keys, const torch::Tensor& values);

  /// Copies of what is stored of an item: (H, length, d_k).
  torch::Tensor keys(int64_t item) const;
  torch::Tensor values(int64_t item) const;

  const FusedMultiHeadAttention& attention() const;

 private:
  struct State;
  void check_step(const torch::Tensor& x) const;
  torch::Tensor stored_view(const torch::Tensor& memory, int64_t item) const;
  std::unique_ptr<State> state_;
};

}  // namespace mha
