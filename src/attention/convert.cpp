// To and from LibTorch's own multi-head attention.
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "mha/attention.h"

namespace mha {
namespace {

using torch::Tensor;

/// A missing bias is a zero one.
void copy_bias(Tensor& target, const Tensor& bias) {
  if (bias.defined()) {
    target.copy_(bias);
  } else {
    target.zero_();
  }
}

Tensor third(const Tensor& packed, int64_t index) {
  return packed.defined() ? packed.chunk(3)[index] : Tensor();
}

}  // namespace

MultiHeadAttention from_torch(const torch::nn::MultiheadAttention& module) {
  TORCH_CHECK_VALUE(!module.is_empty(),
                    "module: expected a torch::nn::MultiheadAttention, found an empty holder");
  const auto& options = module->options;
  TORCH_CHECK_VALUE(options.kdim() == options.embed_dim() && options.vdim() == options.embed_dim(),
                    "module: expected kdim and vdim equal to embed_dim ", options.embed_dim(),
                    ", found kdim ", options.kdim(), " and vdim ", options.vdim());
  TORCH_CHECK_VALUE(!module->bias_k.defined() && !module->bias_v.defined(),
                    "module: expected no bias_k and bias_v, found them (add_bias_kv)");
  TORCH_CHECK_VALUE(!options.add_zero_attn(), "module: expected add_zero_attn false, found true");

  auto result = MultiHeadAttention(
      MultiHeadAttentionOptions(options.embed_dim(), options.num_heads()).dropout(options.dropout()));
  const auto& out_weight = module->out_proj->weight;
  result->to(out_weight.device(), out_weight.scalar_type());

  const torch::NoGradGuard no_grad;
  const auto& packed = module->in_proj_weight;
  result->W_q->weight.copy_(packed.defined() ? third(packed, 0) : module->q_proj_weight);
  result->W_k->weight.copy_(packed.defined() ? third(packed, 1) : module->k_proj_weight);
  result->W_v->weight.copy_(packed.defined() ? third(packed, 2) : module->v_proj_weight);
  result->W_o->weight.copy_(out_weight);
  copy_bias(result->W_q->bias, third(module->in_proj_bias, 0));
  copy_bias(result->W_k->bias, third(module->in_proj_bias, 1));
  copy_bias(result->W_v->bias, third(module->in_proj_bias, 2));
  copy_bias(result->W_o->bias, module->out_proj->bias);
  result->train(module->is_training());
  return result;
}

torch::nn::MultiheadAttention to_torch(const MultiHeadAttention& module) {
  TORCH_CHECK_VALUE(!module.is_empty(), "module: expected a mha::MultiHeadAttention, found an empty holder");
  auto result =
      torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(module->d_model, module->num_heads)
                                        .dropout(module->dropout->options.p()));
  const auto& out_weight = module->W_o->weight;
  result->to(out_weight.device(), out_weight.scalar_type());

  const torch::NoGradGuard no_grad;
  result->in_proj_weight.copy_(torch::cat({module->W_q->weight, module->W_k->weight, module->W_v->weight}));
  result->in_proj_bias.copy_(torch::cat({module->W_q->bias, module->W_k->bias, module->W_v->bias}));
  result->out_proj->weight.copy_(out_weight);
  result->out_proj->bias.copy_(module->W_o->bias);
  result->train(module->is_training());
  return result;
}

}  // namespace mha
