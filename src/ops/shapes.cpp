#include "ops/shapes.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>

#include <array>
#include <sstream>
#include <utility>

#include "fused/check_dtype.h"
#include "support/dtype_text.h"

namespace mha::ops {

using torch::Tensor;

namespace {

template <typename Value>
std::string text(const Value& value) {
  std::ostringstream result;
  result << value;
  return result.str();
}

/// A symbol prints as its expression.
std::string text(c10::SymIntArrayRef sizes) {
  std::string result;
  for (const auto& size : sizes) {
    result += (result.empty() ? "(" : ", ") + text(size);
  }
  return result.empty() ? "()" : result + (sizes.size() == 1 ? ",)" : ")");
}

/// `scores` (B, H, L, S), to which the mask must broadcast; `scores_name` in words.
void check_mask(const std::optional<Tensor>& mask, c10::SymIntArrayRef scores, const char* scores_name,
                torch::ScalarType dtype) {
  if (!mask) {
    return;
  }
  check_inference("mask", *mask);
  const auto sizes = mask->sym_sizes();
  const auto expect_fit = [&](const c10::SymBool& fits) {
    TORCH_CHECK_VALUE(fits.expect_true(__FILE__, __LINE__), "mask: expected a shape that broadcasts to ",
                      scores_name, " = ", text(scores), " without enlarging it, found ", text(sizes));
  };
  expect_fit(sizes.size() <= scores.size());
  const auto tail = scores.slice(scores.size() - sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!TORCH_GUARD_OR_FALSE(sizes[i].sym_eq(1))) {
      expect_fit(sizes[i].sym_eq(tail[i]));
    }
  }
  TORCH_CHECK_VALUE(
      dtype != torch::kHalf,
      "mask: expected none with float16 scores, found one: the fill -1e9 is a value that cannot be "
      "converted to type at::Half without overflow. Use bfloat16 or float32, or no mask");
}

}  // namespace

void expect(const c10::SymBool& fits, const char* name, const std::string& expected, const Tensor& found) {
  TORCH_CHECK_VALUE(fits.expect_true(__FILE__, __LINE__), name, ": expected ", expected, ", found shape ",
                    text(found.sym_sizes()));
}

void check_inference(const char* name, const Tensor& tensor) {
  const bool recorded = at::GradMode::is_enabled() && tensor.requires_grad();
  TORCH_CHECK_VALUE(
      !recorded && !tensor._fw_grad(/*level=*/0).defined(), name,
      ": expected no gradients to record, found a tensor that requires them; this is for inference: call it "
      "under torch.no_grad()");
}

void check_not_traced(const char* name) {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  TORCH_CHECK_VALUE(
      !TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE), name,
      ": expected a call outside of what torch.compile and torch.export trace, found one inside");
}

void check_dtype(const char* name, const Tensor& tensor, torch::ScalarType expected, const char* whose) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == expected, name, ": expected dtype ", dtype_text(expected), " (",
                    whose, "), found ", dtype_text(tensor.scalar_type()));
}

void check_input(const Expected& expected, const char* name, const Tensor& tensor, const c10::SymInt& batch,
                 const char* whose) {
  check_inference(name, tensor);
  const auto d_model = text(expected.d_model);
  expect(tensor.dim() == 3, name, "3 dimensions (batch, length, d_model = " + d_model + ")", tensor);
  expect(tensor.sym_size(2).sym_eq(expected.d_model), name, "last dimension " + d_model + " (d_model)",
         tensor);
  expect(tensor.sym_size(0).sym_gt(0), name, "a batch of at least 1", tensor);
  expect(tensor.sym_size(0).sym_eq(batch), name, "batch " + text(batch) + " (" + whose + ")", tensor);
  check_dtype(name, tensor, expected.dtype, "that of the parameters");
}

void check_call(const Expected& expected, const Tensor& query, const Tensor& key, const Tensor& value,
                const std::optional<Tensor>& mask) {
  const auto batch = query.dim() == 0 ? c10::SymInt(0) : query.sym_size(0);
  check_input(expected, "query", query, batch, "that of query");
  check_input(expected, "key", key, batch, "that of query");
  check_input(expected, "value", value, batch, "that of query");
  expect(value.sym_size(1).sym_eq(key.sym_size(1)), "value", "length " + text(key.sym_size(1)) + " (key_len)",
         value);
  const std::array<c10::SymInt, 4> scores = {batch, expected.num_heads, query.sym_size(1), key.sym_size(1)};
  check_mask(mask, scores, "(batch, num_heads, query_len, key_len)", expected.dtype);
}

void check_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& mask) {
  const std::pair<const char*, const Tensor&> inputs[] = {{"query", query}, {"key", key}, {"value", value}};
  for (const auto& [name, tensor] : inputs) {
    check_inference(name, tensor);
    expect(tensor.dim() == 4, name, "4 dimensions (batch, num_heads, length, d_k)", tensor);
    for (const int64_t dimension : {0, 1, 3}) {
      expect(tensor.sym_size(dimension).sym_eq(query.sym_size(dimension)), name,
             "batch, num_heads and d_k of query, " + text(query.sym_sizes()), tensor);
    }
    fused::check_dtype(name, tensor.scalar_type());
    check_dtype(name, tensor, query.scalar_type(), "that of query");
  }
  expect(value.sym_size(2).sym_eq(key.sym_size(2)), "value", "length " + text(key.sym_size(2)) + " (key_len)",
         value);
  const std::array<c10::SymInt, 4> scores = {query.sym_size(0), query.sym_size(1), query.sym_size(2),
                                             key.sym_size(2)};
  check_mask(mask, scores, "the scores (..., query_len, key_len)", query.scalar_type());
}

}  // namespace mha::ops
