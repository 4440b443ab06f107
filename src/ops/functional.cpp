// torch.ops.mha: attention as functions of tensors alone.
#include <ATen/core/LegacyTypeDispatch.h>

#include "attention/parameter_names.h"
#include "mha/fused.h"
#include "ops/classes.h"
#include "ops/shapes.h"

namespace mha::ops {
namespace {

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Mask& mask, bool causal) {
  return fused_scaled_dot_product_attention(query, key, value, masking(mask, causal));
}

Tensor scaled_dot_product_attention_shape(const Tensor& query, const Tensor& key, const Tensor& value,
                                          const Mask& mask, bool /*causal*/) {
  check_heads(query, key, value, mask);
  return at::empty_symint(query.sym_sizes(), query.options());
}

/// The width of the lesson's eight tensors, which fit each other.
int64_t checked_width(at::TensorList weights) {
  const auto name = [](size_t i) { return parameter_names.at(i).data(); };
  TORCH_CHECK_VALUE(weights.size() == parameter_names.size(),
                    "weights: expected W_q.weight, W_q.bias, W_k.weight, ..., W_o.bias, found ",
                    weights.size(), " tensors");
  const auto& first = weights[0];
  expect(first.dim() == 2, name(0), "shape (d_model, d_model)", first);
  const auto d_model = first.sym_size(0).guard_int(__FILE__, __LINE__);
  const auto width = std::to_string(d_model);
  for (size_t i = 0; i < parameter_names.size(); ++i) {
    const auto& tensor = weights[i];
    check_inference(name(i), tensor);
    if (i % 2 == 0) {
      expect(tensor.dim() == 2 && tensor.sym_size(0) == d_model && tensor.sym_size(1) == d_model, name(i),
             "shape (" + width + ", " + width + ")", tensor);
    } else {
      expect(tensor.dim() == 1 && tensor.sym_size(0) == d_model, name(i), "shape (" + width + ",)", tensor);
    }
    check_dtype(name(i), tensor, first.scalar_type(), "that of W_q.weight");
  }
  return d_model;
}

/// The lesson's forward, of operators that tracers know and the one above.
Tensor multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                            at::TensorList weights, int64_t num_heads, const Mask& mask, bool causal) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto d_model = checked_width(weights);
  TORCH_CHECK_VALUE(num_heads > 0 && d_model % num_heads == 0, "num_heads: expected a divisor of d_model ",
                    d_model, ", found ", num_heads);
  check_call({d_model, num_heads, weights[0].scalar_type()}, query, key, value, mask);
  const auto heads = [&](const Tensor& x, size_t part) {
    const auto projected = at::linear(x, weights[2 * part], weights[2 * part + 1]);  // (B, L, D)
    return projected.view_symint({x.sym_size(0), x.sym_size(1), num_heads, d_model / num_heads})
        .transpose(1, 2);  // (B, H, L, d_k)
  };
  static const auto op = operation("mha::scaled_dot_product_attention", &scaled_dot_product_attention);
  const auto context = op.call(heads(query, 0), heads(key, 1), heads(value, 2), mask, causal);
  return at::linear(context.transpose(1, 2).flatten(2), weights[6], weights[7]);  // (B, L, D)
}

}  // namespace

void register_functional(torch::Library& library) {
  define(library,
         "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? mask=None, "
         "bool causal=False) -> Tensor",
         &scaled_dot_product_attention, &scaled_dot_product_attention_shape);
  library.def(
      "multi_head_attention(Tensor query, Tensor key, Tensor value, Tensor[] weights, int num_heads, "
      "Tensor? mask=None, bool causal=False) -> Tensor");
  library.impl("multi_head_attention", c10::DispatchKey::CompositeImplicitAutograd, &multi_head_attention);
}

}  // namespace mha::ops
