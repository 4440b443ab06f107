/// Attention of many heads without LibTorch: pointers and strides in, rows out.
///
/// Nothing of query_len x key_len is kept: a few query rows at a time meet 512 keys at a time, with the running
/// maximum and sum of the softmax, in float32. For a few query rows keys and values are read once, where they lie; for
/// more they are packed first. The bits of a row depend on its own query, keys, values and mask and on which of the two
/// it is, not on the other rows, the number of threads or how the tasks are shared out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mha::fused {

/// What queries, keys, values and outputs are made of.
enum class Element : std::uint8_t { float32, bfloat16 };

/// Distances in elements; features lie side by side.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
};

/// Bytes that tell which keys a query keeps: 0 blocks. Strides of 0 broadcast.
struct KeepMask {
  const std::uint8_t* data = nullptr;  ///< null: all are kept
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t query = 0;
  std::int64_t key = 1;  ///< 0 or 1
};

/// The keys and values of one item, where items differ.
struct ItemKeys {
  std::int64_t place = 0;  ///< which of the batch of `key` and `value`
  std::int64_t key_len = 0;
  std::int64_t causal_shift = 0;
};

struct CoreArguments {
  Element element = Element::float32;
  std::int64_t batch = 0;
  std::int64_t num_heads = 0;
  std::int64_t query_len = 0;
  std::int64_t key_len = 0;
  std::int64_t d_k = 0;
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;
  Strides query_strides;
  Strides key_strides;
  Strides value_strides;
  Strides output_strides;
  KeepMask mask;
  bool causal = false;
  /// With `causal`, query i keeps the keys up to i + this.
  std::int64_t causal_shift = 0;
  /// One for each item of the batch, in place of key_len, which is then the most that any item has, and of
  /// causal_shift. Null: items are alike.
  const ItemKeys* items = nullptr;
};

/// Up to so many query rows keys and values are not packed.
inline constexpr std::int64_t few_query_rows = 16;

/// The work in independent pieces, to be shared out among threads in runs of neighbours.
std::int64_t core_tasks(const CoreArguments& arguments);

/// Bytes of scratch memory that each thread needs.
std::size_t core_scratch(const CoreArguments& arguments);

/// Does the tasks from `begin` to before `end`. `scratch` is aligned to 64 bytes.
void run_core(const CoreArguments& arguments, std::int64_t begin, std::int64_t end, void* scratch);

/// The instructions that are used here for this element, such as `AVX3`.
std::string core_target(Element element);

}  // namespace mha::fused
