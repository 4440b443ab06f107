#include "fused/packed_weight.h"

#include <utility>

#include "fused/attend.h"
#include "fused/parallel.h"

namespace mha::fused {

using torch::Tensor;

PackedWeight::PackedWeight(const Tensor& weight, Tensor bias)
    : shape_{element_of(weight.scalar_type()), weight.size(0), weight.size(1)},
      packed_(at::empty({static_cast<int64_t>(packed_size(shape_))}, torch::kByte)),
      bias_(std::move(bias)) {
  pack_weight(shape_, weight.contiguous().const_data_ptr(), packed_.mutable_data_ptr());
}

void PackedWeight::operator()(const void* x, int64_t rows, int64_t first, int64_t count, void* y) const {
  multiply({.shape = shape_,
            .packed = packed_.const_data_ptr(),
            .bias = bias_.const_data_ptr(),
            .first = first,
            .count = count,
            .rows = rows,
            .x = x,
            .y = y});
}

Tensor PackedWeight::weight() const {
  auto result = at::empty({shape_.outputs, shape_.inputs}, bias_.options());
  unpack_weight(shape_, packed_.const_data_ptr(), result.mutable_data_ptr());
  return result;
}

}  // namespace mha::fused
