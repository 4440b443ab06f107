#include "mha/masks.h"

#include <ATen/ExpandUtils.h>
#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "attention/causal_shift.h"
#include "attention/checks.h"
#include "support/dtype_text.h"
#include "support/shape_text.h"

namespace mha {
namespace {

using attention::check_defined;
using torch::Tensor;

void check_length(const char* name, int64_t length) {
  TORCH_CHECK_VALUE(length >= 0, name, " must not be negative, found ", length);
}

void check_bool(const char* name, const Tensor& tensor) {
  check_defined(name, tensor);
  TORCH_CHECK_VALUE(tensor.scalar_type() == torch::kBool, name,
                    ": expected dtype bool (true = blocked), found ", dtype_text(tensor.scalar_type()),
                    tensor.is_floating_point() ? "; keep_from_additive() takes additive masks" : "");
}

}  // namespace

Tensor causal_mask(int64_t length, torch::Device device) {
  return causal_mask(length, length, CausalAlignment::top_left, device);
}

Tensor causal_mask(int64_t query_len, int64_t key_len, CausalAlignment alignment, torch::Device device) {
  return sliding_window_mask(query_len, key_len, Window{}, alignment, device);
}

Tensor sliding_window_mask(int64_t query_len, int64_t key_len, Window window, CausalAlignment alignment,
                           torch::Device device) {
  check_length("query_len", query_len);
  check_length("key_len", key_len);
  check_length("window.before", window.before);
  check_length("window.after", window.after);
  // Distances never exceed this, so a wider window is no limit, and sums cannot overflow.
  const auto farthest = std::max(query_len, key_len);
  const auto before = std::min(window.before, farthest);
  const auto after = std::min(window.after, farthest);
  const auto shift = attention::causal_shift(alignment, query_len, key_len);

  const auto options = torch::TensorOptions().dtype(torch::kLong).device(device);
  const auto position = torch::arange(query_len, options).unsqueeze(1) + shift;  // (L, 1)
  const auto key = torch::arange(key_len, options).unsqueeze(0);                 // (1, S)
  return (key >= position - before).logical_and(key <= position + after);        // (L, S)
}

Tensor padding_mask(const Tensor& lengths, int64_t key_len) {
  check_defined("lengths", lengths);
  check_length("key_len", key_len);
  TORCH_CHECK_VALUE(lengths.dim() == 1 && at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
                    "lengths: expected a 1-D integer tensor, found shape ", shape_text(lengths.sizes()),
                    " of ", dtype_text(lengths.scalar_type()));
  const auto wide = lengths.to(torch::kLong);
  const auto outside = wide.lt(0).logical_or(wide.gt(key_len)).nonzero();
  TORCH_CHECK_VALUE(outside.size(0) == 0, "lengths: expected values within [0, ", key_len,
                    "] (key_len), found ", wide[outside[0].item<int64_t>()].item<int64_t>(), " at index ",
                    outside[0].item<int64_t>());
  const auto key = torch::arange(key_len, wide.options());                  // (S,)
  return (key < wide.unsqueeze(1)).view({lengths.size(0), 1, 1, key_len});  // (B, 1, 1, S)
}

Tensor combine(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) {
    const auto& only = a.defined() ? a : b;
    return only.defined() ? only != 0 : Tensor();
  }
  TORCH_CHECK_VALUE(at::are_expandable(a.sizes(), b.sizes()),
                    "masks to combine: expected shapes that broadcast, found ", shape_text(a.sizes()),
                    " and ", shape_text(b.sizes()));
  TORCH_CHECK_VALUE(a.device() == b.device(), "masks to combine: expected one device, found ", a.device(),
                    " and ", b.device());
  return (a != 0).logical_and(b != 0);
}

Tensor keep_from_key_padding_mask(const Tensor& key_padding_mask) {
  check_bool("key_padding_mask", key_padding_mask);
  TORCH_CHECK_VALUE(key_padding_mask.dim() == 2,
                    "key_padding_mask: expected 2 dimensions (batch, key_len), found shape ",
                    shape_text(key_padding_mask.sizes()));
  return key_padding_mask.logical_not().unsqueeze(1).unsqueeze(1);  // (B, 1, 1, S)
}

Tensor keep_from_additive(const Tensor& additive_mask) {
  check_defined("additive_mask", additive_mask);
  TORCH_CHECK_VALUE(additive_mask.is_floating_point() && !c10::isFloat8Type(additive_mask.scalar_type()),
                    "additive_mask: expected float32, float64, bfloat16 or float16, found ",
                    dtype_text(additive_mask.scalar_type()));
  auto keep = additive_mask == 0;
  const auto lowest = AT_DISPATCH_FLOATING_TYPES_AND2(
      torch::kHalf, torch::kBFloat16, additive_mask.scalar_type(), "keep_from_additive",
      [] { return static_cast<double>(std::numeric_limits<scalar_t>::lowest()); });
  const auto block = additive_mask <= lowest;
  const auto other = keep.logical_or(block).logical_not().nonzero();
  if (other.size(0) > 0) {
    const auto index = other[0].to(torch::kCPU);
    auto found = additive_mask;
    for (int64_t i = 0; i < index.size(0); ++i) {
      found = found[index[i].item<int64_t>()];
    }
    const auto where =
        std::vector<int64_t>(index.data_ptr<int64_t>(), index.data_ptr<int64_t>() + index.size(0));
    TORCH_CHECK_VALUE(false,
                      "additive_mask: expected 0 (keep), -inf or the lowest finite value (block), found ",
                      found.item<double>(), " at index ", shape_text(where));
  }
  return keep;
}

Tensor keep_from_blocked(const Tensor& blocked) {
  check_bool("blocked", blocked);
  return blocked.logical_not();
}

}  // namespace mha
