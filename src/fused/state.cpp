#include "fused/state.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "attention/checks.h"
#include "fused/parallel.h"
#include "support/dtype_text.h"
#include "support/shape_text.h"

namespace mha {

using torch::Tensor;

namespace fused {

void check_plain(const char* name, const Tensor& tensor) {
  attention::check_defined(name, tensor);
  const bool dense = tensor.layout() == torch::kStrided && !tensor.is_nested() && tensor.has_storage();
  TORCH_CHECK_VALUE(dense && !tensor._is_zerotensor() && !tensor.is_neg() && !tensor.is_conj(), name,
                    ": expected a dense tensor with memory of its own, found one that is nested, of layout ",
                    tensor.layout(), ", a lazy negative or without memory");
  const bool recorded = at::GradMode::is_enabled() && tensor.requires_grad();
  TORCH_CHECK_VALUE(
      !recorded && !tensor._fw_grad(/*level=*/0).defined(), name,
      ": expected no gradients to record, found a tensor that requires them; FusedMultiHeadAttention is "
      "for inference: call it under torch::NoGradGuard, or train with MultiHeadAttention");
}

}  // namespace fused

FusedMultiHeadAttention::State::State(const StateDict& weights, int64_t num_heads)
    : d_model(weights["W_q.weight"].size(0)),
      num_heads(num_heads),
      projections(at::cat({weights["W_q.weight"], weights["W_k.weight"], weights["W_v.weight"]}),
                  at::cat({weights["W_q.bias"], weights["W_k.bias"], weights["W_v.bias"]}), num_heads),
      output(weights["W_o.weight"], weights["W_o.bias"], num_heads) {}

void FusedMultiHeadAttention::State::check(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const Tensor& mask) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::pair<const char*, const Tensor&> tensors[] = {
      {"query", query}, {"key", key}, {"value", value}, {"mask", mask}};
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) {
      fused::check_plain(name, tensor);
    }
  }
  attention::check_inputs({d_model, num_heads, output.bias()}, query, key, value, mask);
}

void FusedMultiHeadAttention::State::check_input(const char* name, const Tensor& input) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  fused::check_plain(name, input);
  attention::check_input({d_model, num_heads, output.bias()}, name, input);
}

void FusedMultiHeadAttention::State::check_kind(const char* name, const Tensor& tensor) const {
  fused::check_plain(name, tensor);
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype(), name, ": expected dtype ", dtype_text(dtype()),
                    ", found ", dtype_text(tensor.scalar_type()));
  TORCH_CHECK_VALUE(tensor.device() == device(), name, ": expected device ", device(), ", found ",
                    tensor.device());
}

void FusedMultiHeadAttention::State::check_stored(const Tensor& keys, const Tensor& values,
                                                  int64_t dimensions) const {
  check_kind("keys", keys);
  check_kind("values", values);
  TORCH_CHECK_VALUE(keys.dim() == dimensions && keys.size(-3) == num_heads && keys.size(-1) == d_k(),
                    "keys: expected shape (", dimensions == 4 ? "batch, " : "", "num_heads = ", num_heads,
                    ", length, d_k = ", d_k(), "), found ", shape_text(keys.sizes()));
  TORCH_CHECK_VALUE(values.sizes() == keys.sizes(), "values: expected shape ", shape_text(keys.sizes()),
                    " (that of keys), found ", shape_text(values.sizes()));
}

void FusedMultiHeadAttention::State::check_output(const Tensor& result, c10::IntArrayRef sizes) const {
  check_kind("output", result);
  TORCH_CHECK_VALUE(result.sizes() == sizes, "output: expected shape ", shape_text(sizes), ", found ",
                    shape_text(result.sizes()));
  TORCH_CHECK_VALUE(result.is_contiguous(), "output: expected contiguous memory, found strides ",
                    shape_text(result.strides()));
  TORCH_CHECK_VALUE(!result.is_inference() || c10::InferenceMode::is_enabled(),
                    "output: expected a tensor that may be changed here, found one of inference mode");
}

void FusedMultiHeadAttention::State::mark_changed(const Tensor& tensor) {
  tensor.unsafeGetTensorImpl()->bump_version();
}

fused::Blocking FusedMultiHeadAttention::State::blocking(const Tensor& query, const Tensor& key,
                                                         const Masking& masking) const {
  return fused::make_blocking(masking.mask, masking.causal,
                              {query.size(0), num_heads, query.size(1), key.size(1)});
}

Tensor FusedMultiHeadAttention::State::project_output(const Tensor& context) const {
  auto result =
      output(context.flatten(2), {0, 1, 0, num_heads}).view({context.size(0), context.size(1), d_model});
  // Whoever keeps the result need not keep the padding too.
  const bool padded = result.storage().nbytes() > result.nbytes();
  return padded ? result.clone() : result;
}

Tensor FusedMultiHeadAttention::State::attend_few(const Tensor& x, const fused::Blocking& blocking) const {
  auto result = at::empty(x.sizes(), x.options().memory_format(torch::MemoryFormat::Contiguous));
  const int64_t rows = x.size(0) * x.size(1);
  if (rows == 0) {
    return result;
  }
  const auto buffer = call_buffer(rows, /*layers=*/3);
  projections.project(x.contiguous().const_data_ptr(), rows, 0, 3, buffer.projected);
  auto arguments = core_arguments(x.size(0), x.size(1), /*layers=*/3);
  arguments.key_len = x.size(1);
  arguments.query = buffer.projected;
  arguments.key = buffer.projected + layer_bytes();
  arguments.value = buffer.projected + 2 * layer_bytes();
  arguments.key_strides = arguments.value_strides = arguments.query_strides;
  arguments.output = buffer.context;
  fused::set_blocking(arguments, blocking);
  fused::attend(arguments);
  output.project(buffer.context, rows, 0, 1, result.mutable_data_ptr());
  return result;
}

fused::CallBuffer FusedMultiHeadAttention::State::call_buffer(int64_t rows, int64_t layers) const {
  const size_t line = 64;
  const auto of_rows = [&](int64_t count) {
    return (static_cast<size_t>(rows * count) * layer_bytes() + line - 1) / line * line;
  };
  return {of_rows(layers), of_rows(1)};
}

fused::CoreArguments FusedMultiHeadAttention::State::core_arguments(int64_t batch, int64_t query_len,
                                                                    int64_t layers) const {
  const auto rows_of = [&](int64_t row) {
    return fused::Strides{.batch = query_len * row, .head = d_k(), .row = row};
  };
  fused::CoreArguments arguments;
  arguments.element = fused::element_of(dtype());
  arguments.batch = batch;
  arguments.num_heads = num_heads;
  arguments.query_len = query_len;
  arguments.d_k = d_k();
  arguments.query_strides = rows_of(layers * d_model);
  arguments.output_strides = rows_of(d_model);
  return arguments;
}

}  // namespace mha
