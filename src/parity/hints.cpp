#include "parity/hints.h"

#include <algorithm>
#include <map>

namespace mha::parity {
namespace {

using torch::Tensor;

/// Close enough to say "that is it", far from anything that a wrong guess gives by chance.
bool resembles(const Tensor& guess, const Tensor& reference) {
  return guess.sizes() == reference.sizes() &&
         torch::allclose(guess.to(torch::kDouble), reference.to(torch::kDouble), /*rtol=*/1e-2, /*atol=*/1e-3,
                         /*equal_nan=*/true);
}

/// Why `projected` (batch, length, d_model), the reference's output of `name`, is not what that layer gives
/// here.
std::string projection_cause(const Tensor& projected, const Tensor& input, const std::string& name,
                             const MultiHeadAttention& module) {
  const std::map<std::string, torch::nn::Linear> layers = {
      {"W_q", module->W_q}, {"W_k", module->W_k}, {"W_v", module->W_v}, {"W_o", module->W_o}};
  const auto& layer = layers.at(name);
  if (resembles(torch::linear(input, layer->weight.t(), layer->bias), projected)) {
    return name + ".weight is transposed: torch.nn.Linear stores (out_features, in_features)";
  }
  if (resembles(torch::linear(input, layer->weight), projected)) {
    return "the reference was computed without " + name + ".bias";
  }
  for (const auto& [other_name, other] : layers) {
    if (other_name != name && resembles(torch::linear(input, other->weight, other->bias), projected)) {
      return name + " and " + other_name + " are exchanged: the reference was computed with the weights of " +
             other_name;
    }
  }
  return "the weights or the input of " + name + " are not those of the reference";
}

/// (batch, num_heads, length, d_k) -> (batch, length, d_model)
Tensor join_heads(const Tensor& split) {
  return split.transpose(1, 2).flatten(2);
}

std::string weights_cause(const ReferenceCase& reference, const Tensor& expected) {
  const auto* softmax = reference.tensors.find("steps/softmax");
  const bool dropped = softmax != nullptr && !torch::equal(*softmax, expected);
  if (!reference.train && dropped) {
    return "the reference applied dropout: eval() was forgotten when it was computed";
  }
  if (reference.train && reference.dropout > 0) {
    return dropped ? "another dropout pattern: the seed must be set just before forward"
                   : "the reference applied no dropout: it ran in eval mode";
  }
  return "";
}

std::string mask_cause(const ReferenceCase& reference, const CaseInputs& inputs, const Tensor& expected) {
  const auto* scores = reference.tensors.find("steps/scores");
  const bool inverted = scores != nullptr && inputs.mask.defined() &&
                        resembles(scores->masked_fill(inputs.mask.to(torch::kCPU) != 0, -1e9), expected);
  return inverted ? "the mask is inverted: here 0 blocks and anything else keeps"
                  : "the mask differs, or the fill is not -1e9";
}

/// What the values themselves say, whatever the step; empty when they say nothing.
std::string rounding_cause(const CaseReport& report, const TensorReport& first, const Tensor& expected) {
  if (first.non_finite != first.reference_non_finite) {
    return "NaN or infinity on one side only";
  }
  if (first.max_abs == 0) {
    return "the sign of a zero";
  }
  constexpr double small = 1e-3;
  const auto finite = expected.to(torch::kDouble).nan_to_num(0, 0, 0).abs();
  const auto largest = finite.numel() == 0 ? 0.0 : finite.max().item<double>();
  if (!(first.max_abs <= small * std::max(1.0, largest))) {
    return "";
  }
  return report.differences.empty() ? "the same maths, rounded otherwise: other strides or alignment, "
                                      "another order of operations, or a "
                                      "setting that changes rounding (MKL_CBWR, ATEN_CPU_CAPABILITY, TF32)"
                                    : "the same maths, rounded otherwise, as the environment differs (" +
                                          report.differences.front() + ")";
}

}  // namespace

std::string likely_cause(const ReferenceCase& reference, const CaseInputs& inputs,
                         const MultiHeadAttention& module, const CaseReport& report,
                         const TensorReport& first) {
  const torch::NoGradGuard no_grad;
  const auto& name = first.name;
  if (first.verdict == Verdict::not_comparable) {
    return first.note;
  }
  if (name.starts_with("init/")) {
    return "freshly initialised parameters differ: another init_seed, or other modules drew random numbers "
           "first";
  }
  const auto expected = reference.tensors[name].to(inputs.query.device());
  if (const auto cause = rounding_cause(report, first, expected); !cause.empty()) {
    return cause;
  }
  if (name == "steps/Q") {
    return projection_cause(join_heads(expected), inputs.query, "W_q", module);
  }
  if (name == "steps/K") {
    return projection_cause(join_heads(expected), inputs.key, "W_k", module);
  }
  if (name == "steps/V") {
    return projection_cause(join_heads(expected), inputs.value, "W_v", module);
  }
  if (name == "steps/scores") {
    return "the scores are scaled otherwise: here they are divided by sqrt(d_k)";
  }
  if (name == "steps/masked_scores") {
    return mask_cause(reference, inputs, reference.tensors[name]);
  }
  if (name == "steps/attention_weights" || name == "outputs/attention_weights") {
    return weights_cause(reference, reference.tensors[name]);
  }
  if (name == "steps/context") {
    return "the heads are concatenated in another order: here (batch, query_len, num_heads, d_k) becomes "
           "d_model";
  }
  if (name.starts_with("grads/")) {
    return "the forward pass agrees: another grad_outputs/output, or one tensor passed several times there "
           "and copies "
           "of it here";
  }
  if (const auto* context = reference.tensors.find("steps/context");
      context != nullptr && name == "outputs/output") {
    return projection_cause(expected, context->to(expected.device()), "W_o", module);
  }
  return "export the case with its steps to see where it begins";
}

}  // namespace mha::parity
