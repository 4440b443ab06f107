#include "attention/checks.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "support/dtype_text.h"
#include "support/shape_text.h"

namespace mha::attention {
namespace {

using torch::Tensor;

/// The dtype in which matrix products of `tensor` are computed: autocast may lower it.
torch::ScalarType product_dtype(const Tensor& tensor) {
  const auto device = tensor.device().type();
  const bool lowered = at::autocast::is_autocast_available(device) &&
                       at::autocast::is_autocast_enabled(device) && tensor.is_floating_point() &&
                       tensor.scalar_type() != torch::kDouble;
  return lowered ? at::autocast::get_autocast_dtype(device) : tensor.scalar_type();
}

void check_same_device(const char* name, const Tensor& tensor, const char* other, torch::Device expected) {
  TORCH_CHECK_VALUE(tensor.device() == expected, name, ": expected device ", expected, " (that of ", other,
                    "), found ", tensor.device());
}

void check_same_dtype(const char* name, const Tensor& tensor, const char* other, const Tensor& reference) {
  TORCH_CHECK_VALUE(product_dtype(tensor) == product_dtype(reference), name, ": expected dtype ",
                    dtype_text(reference.scalar_type()), " (that of ", other, "), found ",
                    dtype_text(tensor.scalar_type()));
}

bool broadcasts_to(c10::IntArrayRef sizes, c10::IntArrayRef target) {
  if (sizes.size() > target.size()) {
    return false;
  }
  const auto tail = target.slice(target.size() - sizes.size());
  return std::equal(sizes.begin(), sizes.end(), tail.begin(),
                    [](int64_t size, int64_t wanted) { return size == wanted || size == 1; });
}

/// Widens `sizes` by the leading dimensions of `tensor`, as torch::matmul broadcasts them.
void broadcast_leading(std::vector<int64_t>& sizes, const Tensor& tensor, const char* name) {
  const auto leading = tensor.sizes().slice(0, static_cast<size_t>(tensor.dim() - 2));
  if (leading.size() > sizes.size()) {
    sizes.insert(sizes.begin(), leading.size() - sizes.size(), 1);
  }
  for (size_t i = 0; i < leading.size(); ++i) {
    auto& size = sizes[sizes.size() - leading.size() + i];
    TORCH_CHECK_VALUE(size == 1 || leading[i] == 1 || size == leading[i], name,
                      ": expected leading dimensions that broadcast with ", shape_text(sizes),
                      " (those before it), found shape ", shape_text(tensor.sizes()));
    size = size == 1 ? leading[i] : size;
  }
}

}  // namespace

void check_defined(const char* name, const Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), name, ": expected a tensor, found an undefined one");
}

void check_options(const MultiHeadAttentionOptions& options) {
  TORCH_CHECK_VALUE(options.d_model() > 0, "d_model must be positive, found ", options.d_model());
  TORCH_CHECK_VALUE(options.num_heads() > 0, "num_heads must be positive, found ", options.num_heads());
  TORCH_CHECK_VALUE(options.d_model() % options.num_heads() == 0,
                    "d_model must be divisible by num_heads, found d_model ", options.d_model(),
                    " and num_heads ", options.num_heads());
  // Written so that NaN fails too.
  TORCH_CHECK_VALUE(options.dropout() >= 0 && options.dropout() <= 1, "dropout must be within [0, 1], found ",
                    options.dropout());
}

void check_scaled_dot_product(const Tensor& query, const Tensor& key, const Tensor& value,
                              const Tensor& mask) {
  const std::pair<const char*, const Tensor*> inputs[] = {
      {"query", &query}, {"key", &key}, {"value", &value}};
  for (const auto& [name, tensor] : inputs) {
    check_defined(name, *tensor);
    TORCH_CHECK_VALUE(tensor->dim() >= 2, name,
                      ": expected at least 2 dimensions (..., length, width), found shape ",
                      shape_text(tensor->sizes()));
    TORCH_CHECK_VALUE(tensor->is_floating_point(), name, ": expected a floating point dtype, found ",
                      dtype_text(tensor->scalar_type()));
    check_same_device(name, *tensor, "query", query.device());
    check_same_dtype(name, *tensor, "query", query);
  }
  TORCH_CHECK_VALUE(key.size(-1) == query.size(-1), "key: expected last dimension ", query.size(-1),
                    " (d_k of query), found shape ", shape_text(key.sizes()));
  TORCH_CHECK_VALUE(value.size(-2) == key.size(-2), "value: expected length ", key.size(-2),
                    " (key_len), found shape ", shape_text(value.sizes()));

  std::vector<int64_t> scores_sizes;
  broadcast_leading(scores_sizes, query, "query");
  broadcast_leading(scores_sizes, key, "key");
  auto output_sizes = scores_sizes;
  broadcast_leading(output_sizes, value, "value");
  scores_sizes.push_back(query.size(-2));
  scores_sizes.push_back(key.size(-2));
  check_mask(mask, scores_sizes, "the scores (..., query_len, key_len)", query);
}

void check_mask(const Tensor& mask, c10::IntArrayRef scores_sizes, const char* scores_name,
                const Tensor& query) {
  if (!mask.defined()) {
    return;
  }
  TORCH_CHECK_VALUE(broadcasts_to(mask.sizes(), scores_sizes), "mask: expected a shape that broadcasts to ",
                    scores_name, " = ", shape_text(scores_sizes), " without enlarging it, found ",
                    shape_text(mask.sizes()));
  check_same_device("mask", mask, "query", query.device());
  TORCH_CHECK_VALUE(
      product_dtype(query) != torch::kHalf,
      "mask: expected none with float16 scores, found one: the fill -1e9 is a value that cannot be "
      "converted to type at::Half without overflow. Use bfloat16 or float32, or no mask");
}

void check_input(const Expected& expected, const char* name, const Tensor& input) {
  check_defined(name, input);
  TORCH_CHECK_VALUE(input.dim() == 3, name,
                    ": expected 3 dimensions (batch, length, d_model = ", expected.d_model, "), found shape ",
                    shape_text(input.sizes()));
  TORCH_CHECK_VALUE(input.size(2) == expected.d_model, name, ": expected last dimension ", expected.d_model,
                    " (d_model), found shape ", shape_text(input.sizes()));
  TORCH_CHECK_VALUE(input.size(0) > 0, name, ": expected a batch of at least 1, found shape ",
                    shape_text(input.sizes()));
  check_same_device(name, input, "the parameters", expected.weight.device());
  check_same_dtype(name, input, "the parameters", expected.weight);
}

void check_inputs(const Expected& expected, const Tensor& query, const Tensor& key, const Tensor& value,
                  const Tensor& mask) {
  check_input(expected, "query", query);
  const std::pair<const char*, const Tensor&> others[] = {{"key", key}, {"value", value}};
  for (const auto& [name, tensor] : others) {
    check_input(expected, name, tensor);
    TORCH_CHECK_VALUE(tensor.size(0) == query.size(0), name, ": expected batch ", query.size(0),
                      " (that of query), found shape ", shape_text(tensor.sizes()));
  }
  TORCH_CHECK_VALUE(value.size(1) == key.size(1), "value: expected length ", key.size(1),
                    " (key_len), found shape ", shape_text(value.sizes()));
  const int64_t scores_sizes[] = {query.size(0), expected.num_heads, query.size(1), key.size(1)};
  check_mask(mask, scores_sizes, "(batch, num_heads, query_len, key_len)", query);
}

void check_forward(const MultiHeadAttentionImpl& module, const Tensor& query, const Tensor& key,
                   const Tensor& value, const Tensor& mask) {
  struct Layer {
    const char* weight_name;
    const char* bias_name;
    const torch::nn::Linear& layer;
  };
  const Layer layers[] = {{"W_q.weight", "W_q.bias", module.W_q},
                          {"W_k.weight", "W_k.bias", module.W_k},
                          {"W_v.weight", "W_v.bias", module.W_v},
                          {"W_o.weight", "W_o.bias", module.W_o}};
  const auto& weight = module.W_q->weight;
  for (const auto& [weight_name, bias_name, layer] : layers) {
    check_same_device(weight_name, layer->weight, "W_q.weight", weight.device());
    check_same_dtype(weight_name, layer->weight, "W_q.weight", weight);
    if (layer->bias.defined()) {
      check_same_device(bias_name, layer->bias, "W_q.weight", weight.device());
      check_same_dtype(bias_name, layer->bias, "W_q.weight", weight);
    }
  }
  check_inputs({module.d_model, module.num_heads, weight}, query, key, value, mask);
}

}  // namespace mha::attention
