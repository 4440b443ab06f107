#include "mha/attention.h"

#include <cmath>
#include <ostream>

#include "attention/checks.h"

namespace mha {
namespace {

using torch::Tensor;

/// Keeps a step for whoever asked for the steps; a handle to the very tensor, so nothing else changes.
void keep(AttentionSteps* steps, Tensor AttentionSteps::*step, const Tensor& tensor) {
  if (steps != nullptr) {
    steps->*step = tensor;
  }
}

/// Python's nn.Linear. torch::nn::Linear::forward adds the bias after the product, which rounds differently.
Tensor linear(const torch::nn::Linear& layer, const Tensor& input) {
  return torch::linear(input, layer->weight, layer->bias);
}

AttentionResult scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const Tensor& mask, torch::nn::Dropout& dropout,
                                             AttentionSteps* steps) {
  const auto d_k = static_cast<double>(query.size(-1));
  auto scores = torch::matmul(query, key.transpose(-2, -1)) / std::sqrt(d_k);  // (..., query_len, key_len)
  keep(steps, &AttentionSteps::scores, scores);
  if (mask.defined()) {
    scores = scores.masked_fill(mask == 0, -1e9);  // (..., query_len, key_len)
    keep(steps, &AttentionSteps::masked_scores, scores);
  }

  auto attention_weights = torch::softmax(scores, /*dim=*/-1);  // (..., query_len, key_len)
  keep(steps, &AttentionSteps::softmax, attention_weights);

  if (!dropout.is_empty()) {
    attention_weights = dropout(attention_weights);  // (..., query_len, key_len)
  }
  keep(steps, &AttentionSteps::attention_weights, attention_weights);

  auto output = torch::matmul(attention_weights, value);  // (..., query_len, d_v)
  return {output, attention_weights};
}

}  // namespace

AttentionResult scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const Tensor& mask, torch::nn::Dropout dropout) {
  attention::check_scaled_dot_product(query, key, value, mask);
  return scaled_dot_product_attention(query, key, value, mask, dropout, /*steps=*/nullptr);
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options) : options(options) {
  MultiHeadAttentionImpl::reset();
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(int64_t d_model, int64_t num_heads, double dropout)
    : MultiHeadAttentionImpl(MultiHeadAttentionOptions(d_model, num_heads).dropout(dropout)) {}

void MultiHeadAttentionImpl::reset() {
  attention::check_options(options);

  // Made before anything is replaced: should memory run out, the module stays as it was.
  const auto width = options.d_model();
  torch::nn::Linear query_layer(width, width);
  torch::nn::Linear key_layer(width, width);
  torch::nn::Linear value_layer(width, width);
  torch::nn::Linear output_layer(width, width);

  d_model = options.d_model();
  num_heads = options.num_heads();
  d_k = d_model / num_heads;  // width of each head

  for (const char* name : {"W_q", "W_k", "W_v", "W_o", "dropout"}) {
    if (named_children().contains(name)) {
      unregister_module(name);
    }
  }
  W_q = register_module("W_q", query_layer);
  W_k = register_module("W_k", key_layer);
  W_v = register_module("W_v", value_layer);
  W_o = register_module("W_o", output_layer);

  dropout = register_module("dropout", torch::nn::Dropout(options.dropout()));
  attention_weights = Tensor();
  train(is_training());
}

void MultiHeadAttentionImpl::reset_parameters() {
  for (auto layer : {W_q, W_k, W_v, W_o}) {
    layer->reset_parameters();
  }
  attention_weights = Tensor();
}

Tensor MultiHeadAttentionImpl::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const Tensor& mask) {
  return attend(query, key, value, mask, /*steps=*/nullptr);
}

AttentionSteps MultiHeadAttentionImpl::forward_steps(const Tensor& query, const Tensor& key,
                                                     const Tensor& value, const Tensor& mask) {
  AttentionSteps steps;
  steps.output = attend(query, key, value, mask, &steps);
  return steps;
}

Tensor MultiHeadAttentionImpl::attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const Tensor& mask, AttentionSteps* steps) {
  attention::check_forward(*this, query, key, value, mask);
  const auto batch_size = query.size(0);

  // 1. Linear projections
  auto Q = linear(W_q, query);  // (batch, query_len, d_model)
  auto K = linear(W_k, key);    // (batch, key_len, d_model)
  auto V = linear(W_v, value);  // (batch, key_len, d_model)

  // 2. Split into heads
  Q = Q.view({batch_size, -1, num_heads, d_k}).transpose(1, 2);  // (batch, num_heads, query_len, d_k)
  K = K.view({batch_size, -1, num_heads, d_k}).transpose(1, 2);  // (batch, num_heads, key_len, d_k)
  V = V.view({batch_size, -1, num_heads, d_k}).transpose(1, 2);  // (batch, num_heads, key_len, d_k)
  keep(steps, &AttentionSteps::Q, Q);
  keep(steps, &AttentionSteps::K, K);
  keep(steps, &AttentionSteps::V, V);

  // 3. Scaled dot-product attention, all heads at once
  auto [output, weights] = scaled_dot_product_attention(Q, K, V, mask, dropout, steps);
  attention_weights = weights;  // (batch, num_heads, query_len, key_len)

  // 4. Concatenate the heads
  output =
      output.transpose(1, 2).contiguous().view({batch_size, -1, d_model});  // (batch, query_len, d_model)
  keep(steps, &AttentionSteps::context, output);

  // 5. Output projection
  output = linear(W_o, output);  // (batch, query_len, d_model)

  return output;
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "mha::MultiHeadAttention(d_model=" << d_model << ", num_heads=" << num_heads
         << ", dropout=" << dropout->options.p() << ")";
}

std::shared_ptr<torch::nn::Module> MultiHeadAttentionImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = Cloneable::clone(device);
  // Cloneable forgets which parameters were frozen.
  auto copied_parameters = copy->named_parameters();
  for (const auto& parameter : named_parameters()) {
    copied_parameters[parameter.key()].requires_grad_(parameter.value().requires_grad());
  }
  return copy;
}

}  // namespace mha
