// The projections of query, key and value: any of them that come from one tensor, in one product.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "fused/linear.h"

namespace mha::fused {

/// Which rows of the stacked weights (W_q, W_k, W_v) a product takes.
struct Part {
  int64_t first = 0;       ///< 0 query, 1 key, 2 value
  int64_t count = 3;       ///< how many of the three, from `first` on
  int64_t first_head = 0;  ///< of the heads that are computed
  int64_t heads = 0;

  bool operator<(const Part& other) const {
    return std::tie(first, count, first_head, heads) <
           std::tie(other.first, other.count, other.first_head, other.heads);
  }
};

/// The stacked weights, packed for each part when it is first asked for. Safe to use from several threads.
class Projections {
 public:
  /// weight (3 D, D) and bias (3 D): W_q, W_k, W_v stacked.
  Projections(torch::Tensor weight, torch::Tensor bias, int64_t d_k);

  /// x (B, L, D) -> (B, L, part.count, part.heads, d_k).
  torch::Tensor operator()(const torch::Tensor& x, const Part& part) const;

  const torch::Tensor& weight() const { return weight_; }

 private:
  std::shared_ptr<const Linear> linear(const Part& part) const;
  torch::Tensor rows(const torch::Tensor& stacked, const Part& part) const;

  torch::Tensor weight_;
  torch::Tensor bias_;
  int64_t d_k_;
  mutable std::mutex mutex_;
  mutable std::map<Part, std::shared_ptr<const Linear>> packed_;
};

}  // namespace mha::fused
