// Products with fixed weights of D inputs: the projections of query, key and value, any of them that come from one tensor
// in one product; and that of the output.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "fused/linear.h"
#include "fused/packed_weight.h"

namespace mha::fused {

/// Which rows of stacked weights (W_q, W_k, W_v) a product takes.
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

/// Stacked weights: in our own order for few rows, and packed for oneDNN for each part when it is first asked for with
/// many. Safe to use from several threads.
class Projections {
 public:
  /// weight (n D, D) and bias (n D) of n layers; D = num_heads d_k.
  Projections(torch::Tensor weight, torch::Tensor bias, int64_t num_heads);

  /// x (B, L, D) -> (B, L, part.count, part.heads, d_k); it may be the beginning of somewhat more memory.
  torch::Tensor operator()(const torch::Tensor& x, const Part& part) const;

  /// Whether so many rows are few enough for our own products: a matter of dtype and device too.
  bool are_few(int64_t rows) const;

  /// The same for few rows of plain memory: x (rows, D) -> y (rows, count D), of layers [first, first + count).
  void project(const void* x, int64_t rows, int64_t first, int64_t count, void* y) const;

  /// How so many rows are multiplied, in words.
  std::string describe(int64_t rows) const;

  /// A copy of the stacked weights.
  torch::Tensor weight() const { return packed_ ? packed_->weight() : weight_.clone(); }

  torch::ScalarType dtype() const { return bias_.scalar_type(); }
  torch::Device device() const { return bias_.device(); }
  const torch::Tensor& bias() const { return bias_; }

 private:
  std::shared_ptr<const Linear> linear(const Part& part) const;
  torch::Tensor rows(const torch::Tensor& stacked, const Part& part) const;

  torch::Tensor weight_;  // where we have no products of our own
  torch::Tensor bias_;
  int64_t num_heads_;
  int64_t d_model_;
  std::optional<PackedWeight> packed_;
  mutable std::mutex mutex_;
  mutable std::map<Part, std::shared_ptr<const Linear>> linears_;
};

}  // namespace mha::fused
