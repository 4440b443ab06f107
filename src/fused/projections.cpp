#include "fused/projections.h"

#include <utility>

#include "fused/attend.h"

namespace mha::fused {
namespace {

/// Up to so many rows our own products are faster than oneDNN's, whose calls have a cost of their own.
constexpr int64_t few_rows = 64;

}  // namespace

using torch::Tensor;

Projections::Projections(Tensor weight, Tensor bias, int64_t num_heads)
    : weight_(std::move(weight)), bias_(std::move(bias)), num_heads_(num_heads), d_model_(weight_.size(1)) {
  if (has_core(dtype(), device())) {
    packed_.emplace(weight_, bias_);
    weight_ = Tensor();
  }
}

Tensor Projections::rows(const Tensor& stacked, const Part& part) const {
  const int64_t d_k = d_model_ / num_heads_;
  auto sizes = stacked.sizes().vec();
  sizes[0] = part.count * part.heads * d_k;
  return stacked.unflatten(0, {-1, d_model_})
      .narrow(0, part.first, part.count)
      .narrow(1, part.first_head * d_k, part.heads * d_k)
      .reshape(sizes);
}

std::shared_ptr<const Linear> Projections::linear(const Part& part) const {
  const std::lock_guard lock(mutex_);
  auto& found = linears_[part];
  if (!found) {
    found =
        std::make_shared<const Linear>(rows(packed_ ? packed_->weight() : weight_, part), rows(bias_, part));
  }
  return found;
}

Tensor Projections::operator()(const Tensor& x, const Part& part) const {
  const int64_t d_k = d_model_ / num_heads_;
  if (part.heads == num_heads_ && are_few(x.size(0) * x.size(1))) {
    auto result = at::empty({x.size(0), x.size(1), part.count, part.heads, d_k}, x.options());
    project(x.contiguous().const_data_ptr(), x.size(0) * x.size(1), part.first, part.count,
            result.mutable_data_ptr());
    return result;
  }
  return (*linear(part))(x).view({x.size(0), x.size(1), part.count, part.heads, d_k});
}

bool Projections::are_few(int64_t rows) const {
  return packed_ && rows <= few_rows;
}

void Projections::project(const void* x, int64_t rows, int64_t first, int64_t count, void* y) const {
  (*packed_)(x, rows, first * d_model_, count * d_model_, y);
}

std::string Projections::describe(int64_t rows) const {
  if (are_few(rows)) {
    return "own kernels for few rows";
  }
  return has_packed_products(dtype(), device()) ? "oneDNN's packed products" : "at::linear";
}

}  // namespace mha::fused
