#include "fused/projections.h"

#include <utility>

namespace mha::fused {

using torch::Tensor;

Projections::Projections(Tensor weight, Tensor bias, int64_t d_k)
    : weight_(std::move(weight)), bias_(std::move(bias)), d_k_(d_k) {}

Tensor Projections::rows(const Tensor& stacked, const Part& part) const {
  auto sizes = stacked.sizes().vec();
  sizes[0] = part.count * part.heads * d_k_;
  return stacked.unflatten(0, {3, -1})
      .narrow(0, part.first, part.count)
      .narrow(1, part.first_head * d_k_, part.heads * d_k_)
      .reshape(sizes);
}

std::shared_ptr<const Linear> Projections::linear(const Part& part) const {
  const std::lock_guard lock(mutex_);
  auto& found = packed_[part];
  if (!found) {
    found = std::make_shared<const Linear>(rows(weight_, part), rows(bias_, part));
  }
  return found;
}

Tensor Projections::operator()(const Tensor& x, const Part& part) const {
  return (*linear(part))(x).view({x.size(0), x.size(1), part.count, part.heads, d_k_});
}

}  // namespace mha::fused
