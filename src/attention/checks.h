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

/// One input of a module, on its own.
void check_input(const Expected& expected, const char* name, const torch::Tensor& input);

/// A mask, undefined or not, for scores of these sizes, which `scores_name` names, of queries such as `query`.
void check_mask(const torch::Tensor& mask, c10::IntArrayRef scores_sizes, const char* scores_name,
                const torch::Tensor& query);

/// Inputs and mask of a module's call.
void check_inputs(const Expected& expected, const torch::Tensor& query, const torch::Tensor& key,
                  const torch::Tensor& value, const torch::Tensor& mask);

/// Parameters and arguments of MultiHeadAttentionImpl::forward.
void check_forward(const MultiHeadAttentionImpl& module, const torch::Tensor& query, const torch::Tensor& key,
                   const torch::Tensor& value, const torch::Tensor& mask);

}  // namespace mha::attention
