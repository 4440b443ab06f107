/// y = x W^T + b without LibTorch, for few rows of x: the weights are read once, in the order in which they lie.
///
/// Weights are packed for this processor: 64 rows of W (fewer with narrow vectors) are a panel, which holds its rows'
/// first elements side by side, then the second ones. The bits of a row of y depend on that row of x only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fused/core.h"

namespace mha::fused {

/// W (outputs, inputs), row by row.
struct WeightShape {
  Element element = Element::float32;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

/// Bytes of the packed weights.
std::size_t packed_size(const WeightShape& shape);

/// Packs `weight` (outputs x inputs, contiguous) into `packed`, aligned to 64 bytes.
void pack_weight(const WeightShape& shape, const void* weight, void* packed);

/// The reverse.
void unpack_weight(const WeightShape& shape, const void* packed, void* weight);

struct ProductArguments {
  WeightShape shape;
  const void* packed = nullptr;
  const void* bias = nullptr;  ///< `outputs` of them
  std::int64_t first = 0;      ///< the outputs to compute, from this one on
  std::int64_t count = 0;
  std::int64_t rows = 0;
  const void* x = nullptr;  ///< rows x inputs, contiguous
  void* y = nullptr;        ///< rows x count, contiguous
};

/// The work in independent pieces, to be shared out among threads in runs of neighbours.
std::int64_t product_tasks(const ProductArguments& arguments);

/// Bytes of scratch memory that each thread needs.
std::size_t product_scratch(const ProductArguments& arguments);

/// Does the tasks from `begin` to before `end`. `scratch` is aligned to 64 bytes.
void run_product(const ProductArguments& arguments, std::int64_t begin, std::int64_t end, void* scratch);

}  // namespace mha::fused
