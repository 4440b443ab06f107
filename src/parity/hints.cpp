#include "parity/hints.h"

#include <algorithm>
#include <map>

#include "parity/tolerance.h"

namespace mha::parity {
namespace {

using torch::Tensor;

double largest(const Tensor& tensor) {
  const auto finite = tensor.to(torch::kDouble).nan_to_num(0, 0, 0).abs();
  return finite.numel() == 0 ? 0.0 : finite.max().item<double>();
}

/// Whether a guess is near the reference, and much nearer than what was computed: then it explains the difference.
bool explains(const Tensor& guess, const Tensor& reference, const TensorReport& first) {
  constexpr double near = 1e-2;
  constexpr double much_nearer = 4;
  if (guess.sizes() != reference.sizes()) {
    return false;
  }
  const auto error = largest(guess.to(torch::kDouble) - reference.to(torch::kDouble));
  return error <= near * largest(reference) && much_nearer * error < first.max_abs;
}

/// Why `projected` (batch, length, d_model), the reference's output of layer `name`, is not what it gives here; empty
/// when no guess explains it.
std::string projection_cause(const Tensor& projected, const Tensor& input, const std::string& name,
                             const MultiHeadAttention& module, const TensorReport& first) {
  const std::map<std::string, torch::nn::Linear> layers = {
      {"W_q", module->W_q}, {"W_k", module->W_k}, {"W_v", module->W_v}, {"W_o", module->W_o}};
  const auto& layer = layers.at(name);
  if (explains(torch::linear(input, layer->weight.t(), layer->bias), projected, first)) {
    return name + ".weight is transposed: torch.nn.Linear stores (out_features, in_features)";
  }
  if (explains(torch::linear(input, layer->weight), projected, first)) {
    return "the reference was computed without " + name + ".bias";
  }
  for (const auto& [other_name, other] : layers) {
    if (other_name != name && explains(torch::linear(input, other->weight, other->bias), projected, first)) {
      return name + " and " + other_name + " are exchanged: the reference was computed with the weights of " +
             other_name;
    }
  }
  return "";
}

/// (batch, num_heads, length, d_k) -> (batch, length, d_model)
Tensor join_heads(const Tensor& split) {
  return split.transpose(1, 2).flatten(2);
}

/// Dropout leaves exact zeros; a softmax does only where it underflows or is masked, in the same places here.
std::string dropout_cause(const ReferenceCase& reference, const Tensor& expected, torch::Device device) {
  const auto* softmax = reference.tensors.find("steps/softmax");
  if (softmax == nullptr) {
    return "";
  }
  const bool dropped = ((expected == 0) & (*softmax != 0)).any().item<bool>();
  if (!reference.train && dropped) {
    return "the reference applied dropout: eval() was forgotten when it was computed";
  }
  if (!reference.train || reference.dropout == 0) {
    return "";
  }
  if (!dropped) {
    return "the reference applied no dropout: it ran in eval mode";
  }
  const auto here = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  return here == reference.environment.device
             ? "another dropout pattern: the seed must be set just before forward"
             : "another dropout pattern: " + here + " draws other random numbers than " +
                   reference.environment.device;
}

std::string mask_cause(const ReferenceCase& reference, const CaseInputs& inputs, const Tensor& expected,
                       const TensorReport& first) {
  const auto* scores = reference.tensors.find("steps/scores");
  const bool inverted =
      scores != nullptr && inputs.mask.defined() &&
      explains(scores->masked_fill(inputs.mask.to(torch::kCPU) != 0, -1e9), expected, first);
  return inverted ? "the mask is inverted: here 0 blocks and anything else keeps" : "";
}

/// A cause that the numbers of this very case show; empty when none does.
std::string shown_cause(const ReferenceCase& reference, const CaseInputs& inputs,
                        const MultiHeadAttention& module, const TensorReport& first) {
  const auto& name = first.name;
  const auto& expected = reference.tensors[name];
  const auto on_device = expected.to(inputs.query.device());
  if (name == "steps/Q") {
    return projection_cause(join_heads(on_device), inputs.query, "W_q", module, first);
  }
  if (name == "steps/K") {
    return projection_cause(join_heads(on_device), inputs.key, "W_k", module, first);
  }
  if (name == "steps/V") {
    return projection_cause(join_heads(on_device), inputs.value, "W_v", module, first);
  }
  if (name == "steps/masked_scores") {
    return mask_cause(reference, inputs, expected, first);
  }
  if (name == "steps/attention_weights" || name == "outputs/attention_weights") {
    return dropout_cause(reference, expected, inputs.query.device());
  }
  const auto* context = reference.tensors.find("steps/context");
  if (name == "outputs/output" && context != nullptr) {
    return projection_cause(on_device, context->to(on_device.device()), "W_o", module, first);
  }
  return "";
}

/// What the difference itself says; empty when it says nothing.
std::string rounding_cause(const CaseReport& report, const TensorReport& first, const Tensor& expected) {
  if (first.non_finite != first.reference_non_finite) {
    return "NaN or infinity on one side only";
  }
  if (first.max_abs == 0) {
    return "the sign of a zero";
  }
  constexpr double roundings = 256;  // far more than one product of this size makes, far less than a mistake
  const bool rounding = first.max_abs <= roundings * epsilon(expected.scalar_type()) * largest(expected);
  if (!rounding && first.verdict != Verdict::within_tolerance) {
    return "";
  }
  return report.differences.empty() ? "the same maths, rounded otherwise: other strides or alignment, "
                                      "another order of operations, or a "
                                      "setting that changes rounding (MKL_CBWR, ATEN_CPU_CAPABILITY, TF32)"
                                    : "the same maths, rounded otherwise, as the environment differs (" +
                                          report.differences.front() + ")";
}

/// The fused engine shows no steps, so only the difference itself says anything.
std::string fused_cause(const TensorReport& first) {
  if (first.non_finite != first.reference_non_finite) {
    return "NaN or infinity on one side only";
  }
  return first.verdict == Verdict::within_tolerance
             ? "the same maths, rounded otherwise by the fused engine"
             : "the lesson's engine compares every step and tells where it begins";
}

/// What usually makes this tensor differ when all before it agree.
std::string usual_cause(const ReferenceCase& reference, const std::string& name) {
  static const std::map<std::string, std::string> causes = {
      {"steps/Q", "the weights or the input of W_q are not those of the reference"},
      {"steps/K", "the weights or the input of W_k are not those of the reference"},
      {"steps/V", "the weights or the input of W_v are not those of the reference"},
      {"steps/scores", "the scores are scaled otherwise: here they are divided by sqrt(d_k)"},
      {"steps/masked_scores", "the mask differs, or the fill is not -1e9"},
      {"steps/context",
       "the heads are concatenated in another order: here (batch, query_len, num_heads, d_k) becomes "
       "(batch, query_len, d_model)"}};
  if (const auto cause = causes.find(name); cause != causes.end()) {
    return cause->second;
  }
  if (name.starts_with("grads/")) {
    return "the forward pass agrees: another grad_outputs/output, or one tensor passed several times there "
           "and copies "
           "of it here";
  }
  if (name == "outputs/output" && reference.tensors.contains("steps/context")) {
    return "the weights of W_o are not those of the reference";
  }
  return "export the case with all its steps to see where it begins";
}

}  // namespace

std::string likely_cause(const ReferenceCase& reference, const CaseInputs& inputs,
                         const MultiHeadAttention& module, const CaseReport& report,
                         const TensorReport& first) {
  const torch::NoGradGuard no_grad;
  if (first.verdict == Verdict::not_comparable) {
    return first.note;
  }
  if (report.engine == engine_text(Engine::fused)) {
    return fused_cause(first);
  }
  if (first.name.starts_with("init/")) {
    return "freshly initialised parameters differ: another init_seed, or other modules drew random numbers "
           "first";
  }
  for (const auto& cause : {shown_cause(reference, inputs, module, first),
                            rounding_cause(report, first, reference.tensors[first.name])}) {
    if (!cause.empty()) {
      return cause;
    }
  }
  return usual_cause(reference, first.name);
}

}  // namespace mha::parity
