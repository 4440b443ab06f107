#include "parity/hints.h"

#include <algorithm>

namespace mha::parity {
namespace {

using torch::Tensor;

/// Close enough to say "that is it", far from anything that a wrong guess gives by chance.
bool resembles(const Tensor& guess, const Tensor& reference) {
  return guess.sizes() == reference.sizes() &&
         torch::allclose(guess.to(torch::kDouble), reference.to(torch::kDouble), /*rtol=*/1e-2, /*atol=*/1e-3,
                         /*equal_nan=*/true);
}

Tensor split_heads(const Tensor& projected, const MultiHeadAttention& module) {
  return projected.view({projected.size(0), -1, module->num_heads, module->d_k}).transpose(1, 2);
}

/// A reference projection that came from another matrix than ours.
std::string projection_cause(const Tensor& reference, const Tensor& input, const torch::nn::Linear& layer,
                             const std::string& layer_name, const MultiHeadAttention& module) {
  const auto weight = layer->weight;
  const auto bias = layer->bias;
  if (resembles(split_heads(torch::linear(input, weight.t(), bias), module), reference)) {
    return layer_name + ".weight is transposed: torch.nn.Linear stores (out_features, in_features)";
  }
  if (resembles(split_heads(torch::linear(input, weight), module), reference)) {
    return "the reference was computed without " + layer_name + ".bias";
  }
  const std::pair<const char*, torch::nn::Linear> others[] = {
      {"W_q", module->W_q}, {"W_k", module->W_k}, {"W_v", module->W_v}, {"W_o", module->W_o}};
  for (const auto& [name, other] : others) {
    if (name != layer_name &&
        resembles(split_heads(torch::linear(input, other->weight, other->bias), module), reference)) {
      return layer_name + " and " + name + " are exchanged: the reference was computed with the weights of " +
             name;
    }
  }
  return "the weights or the input of " + layer_name + " are not those of the reference";
}

std::string attention_cause(const std::string& name, const ReferenceCase& reference, const CaseInputs& inputs,
                            const Tensor& expected) {
  if (name == "steps/masked_scores" && inputs.mask.defined()) {
    if (const auto* scores = reference.tensors.find("steps/scores")) {
      if (resembles(scores->masked_fill(inputs.mask.to(torch::kCPU) != 0, -1e9), expected)) {
        return "the mask is inverted: here 0 blocks and anything else keeps";
      }
    }
    return "the mask differs, or the fill is not -1e9";
  }
  if (name == "steps/scores") {
    return "the scores are scaled otherwise: here they are divided by sqrt(d_k)";
  }
  if (name == "steps/attention_weights" || name == "outputs/attention_weights") {
    const auto* softmax = reference.tensors.find("steps/softmax");
    const bool dropped = softmax != nullptr && !torch::equal(*softmax, expected);
    if (!reference.train && dropped) {
      return "the reference applied dropout: eval() was forgotten when it was computed";
    }
    if (reference.train && reference.dropout > 0) {
      return dropped ? "another dropout pattern: the seed must be set just before forward"
                     : "the reference applied no dropout: it ran in eval mode";
    }
  }
  return "";
}

/// Whether a difference is as small as rounding makes it, not as another formula does.
bool is_rounding(const TensorReport& first, const Tensor& expected) {
  constexpr double small = 1e-3;
  const auto finite = expected.to(torch::kDouble).nan_to_num(0, 0, 0).abs();
  const auto largest = finite.numel() == 0 ? 0.0 : finite.max().item<double>();
  return first.non_finite == first.reference_non_finite && first.max_abs <= small * std::max(1.0, largest);
}

}  // namespace

std::string likely_cause(const ReferenceCase& reference, const CaseInputs& inputs,
                         const MultiHeadAttention& module, const CaseReport& report,
                         const TensorReport& first) {
  const torch::NoGradGuard no_grad;
  if (first.verdict == Verdict::not_comparable) {
    return first.note;
  }
  if (first.name.starts_with("init/")) {
    return "freshly initialised parameters differ: another init_seed, or other modules drew random numbers "
           "first";
  }
  const auto& expected = reference.tensors[first.name];
  if (is_rounding(first, expected)) {
    return report.differences.empty() ? "the same maths, rounded otherwise: other strides or alignment, "
                                        "another order of operations, or a "
                                        "setting that changes rounding (MKL_CBWR, ATEN_CPU_CAPABILITY, TF32)"
                                      : "the same maths, rounded otherwise, as the environment differs (" +
                                            report.differences.front() + ")";
  }
  const auto reference_on_device = expected.to(inputs.query.device());
  if (first.name == "steps/Q") {
    return projection_cause(reference_on_device, inputs.query, module->W_q, "W_q", module);
  }
  if (first.name == "steps/K") {
    return projection_cause(reference_on_device, inputs.key, module->W_k, "W_k", module);
  }
  if (first.name == "steps/V") {
    return projection_cause(reference_on_device, inputs.value, module->W_v, "W_v", module);
  }
  if (first.name.starts_with("grads/")) {
    return "the forward pass agrees: another grad_outputs/output, or one tensor passed several times there "
           "and copies "
           "of it here";
  }
  const auto cause = attention_cause(first.name, reference, inputs, expected);
  return cause.empty() ? "export the case with its steps to see where it begins" : cause;
}

}  // namespace mha::parity
