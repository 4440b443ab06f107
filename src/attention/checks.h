// What attention refuses, each with one sentence that names what was expected and what was found.
#pragma once

#include <torch/types.h>

#include "mha/attention.h"

namespace mha::attention {

void check_defined(const char* name, const torch::Tensor& tensor);

void check_options(const MultiHeadAttentionOptions& options);

/// Arguments of scaled_dot_product_attention.
void check_scaled_dot_product(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, const torch::Tensor& mask);

/// What the inputs of a module must fit: its sizes and the dtype and device of its parameters.
struct Expected {
  int64_t d_model;
  int64_t num_heads;
  const torch::Tensor& weight;
};

/// Inputs and mask of a module's call.
void check_inputs(const Expected& expected, const torch::Tensor& query, const torch::Tensor& key,
                  const torch::Tensor& value, const torch::Tensor& mask);

/// Parameters and arguments of MultiHeadAttentionImpl::forward.
void check_forward(const MultiHeadAttentionImpl& module, const torch::Tensor& query, const torch::Tensor& key,
                   const torch::Tensor& value, const torch::Tensor& mask);

}  // namespace mha::attention
