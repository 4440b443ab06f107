// A reference case made in C++, to be changed by a test and written.
#pragma once

#include <map>
#include <string>

#include "mha/attention.h"
#include "mha/parity.h"
#include "mha/weights.h"
#include "testing.h"
#include "weights/weights_testing.h"

namespace mha::testing {

/// Metadata and tensors of a case, computed here: verifying it unchanged is bit-exact.
struct CaseBuilder {
  std::map<std::string, std::string> metadata;
  StateDict tensors;

  void set(const std::string& name, const torch::Tensor& tensor) {
    if (tensors.contains(name)) {
      tensors.erase(name);
    }
    tensors.insert(name, tensor);
  }

  /// Written, read and verified.
  parity::CaseReport verify(const parity::VerifyOptions& options = {}) const {
    const TemporaryFolder folder;
    write_weights(folder / "case.safetensors", tensors, metadata);
    return parity::verify(parity::read_case(folder / "case.safetensors"), options);
  }
};

/// A tensor's copy with the lowest bit of one element flipped.
inline torch::Tensor flipped(const torch::Tensor& tensor, int64_t element) {
  auto copy = tensor.clone().contiguous();
  auto* bytes = static_cast<uint8_t*>(copy.data_ptr());
  bytes[element * copy.element_size()] ^= 1U;
  return copy;
}

/// What a test may choose about the case.
struct CaseSettings {
  bool train = false;
  bool masked = true;
  bool gradients = true;
};

inline CaseBuilder make_case(const CaseSettings& settings = {}) {
  CaseBuilder builder;
  const auto environment = parity::current_environment(torch::kCPU);
  builder.metadata = {{"format", "mha.reference/1"},
                      {"module", "MultiHeadAttention"},
                      {"d_model", "12"},
                      {"num_heads", "3"},
                      {"dropout", "0.5"},
                      {"mode", settings.train ? "train" : "eval"},
                      {"dtype", "float32"},
                      {"device", "cpu"},
                      {"seed", "4"},
                      {"torch_version", environment.torch_version},
                      {"build", environment.build},
                      {"cpu_model", environment.cpu_model},
                      {"num_threads", std::to_string(environment.num_threads)}};
  torch::manual_seed(11);
  MultiHeadAttention attention(12, 3, 0.5);
  attention->train(settings.train);
  for (const auto& item : state_dict(*attention)) {
    builder.set("weights/" + item.key(), item.value());
  }
  auto query = torch::randn({2, 4, 12}).requires_grad_(settings.gradients);
  auto memory = torch::randn({2, 6, 12}).requires_grad_(settings.gradients);
  const auto mask = settings.masked ? torch::ones({4, 6}).tril(1) : torch::Tensor();
  builder.set("inputs/query", query.detach());
  builder.set("inputs/key", memory.detach());
  if (settings.masked) {
    builder.set("inputs/mask", mask);
  }

  torch::manual_seed(4);
  const auto steps = attention->forward_steps(query, memory, memory, mask);
  builder.set("steps/Q", steps.Q.detach());
  builder.set("steps/K", steps.K.detach());
  builder.set("steps/V", steps.V.detach());
  builder.set("steps/scores", steps.scores.detach());
  if (settings.masked) {
    builder.set("steps/masked_scores", steps.masked_scores.detach());
  }
  builder.set("steps/softmax", steps.softmax.detach());
  builder.set("steps/attention_weights", steps.attention_weights.detach());
  builder.set("steps/context", steps.context.detach());
  builder.set("outputs/output", steps.output.detach());
  builder.set("outputs/attention_weights", attention->attention_weights.detach());
  if (settings.gradients) {
    const auto grad_output = torch::randn({2, 4, 12});
    builder.set("grad_outputs/output", grad_output);
    auto leaves = std::vector<torch::Tensor>{query, memory};
    auto leaf_names = std::vector<std::string>{"query", "key"};
    for (const auto& parameter : attention->named_parameters()) {
      leaves.push_back(parameter.value());
      leaf_names.push_back(parameter.key());
    }
    const auto gradients = torch::autograd::grad({steps.output}, leaves, {grad_output});
    for (size_t i = 0; i < gradients.size(); ++i) {
      builder.set("grads/" + leaf_names[i], gradients[i]);
    }
  }
  return builder;
}

}  // namespace mha::testing
