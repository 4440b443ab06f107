// The names in a reference case.
#pragma once

#include <array>
#include <string_view>

#include "mha/attention.h"

namespace mha::parity {

/// A step of the forward pass by its name in a case, in the order of computation.
struct NamedStep {
  std::string_view name;
  torch::Tensor AttentionSteps::*step;
};

inline constexpr std::array<NamedStep, 8> named_steps = {{
    {"steps/Q", &AttentionSteps::Q},
    {"steps/K", &AttentionSteps::K},
    {"steps/V", &AttentionSteps::V},
    {"steps/scores", &AttentionSteps::scores},
    {"steps/masked_scores", &AttentionSteps::masked_scores},
    {"steps/softmax", &AttentionSteps::softmax},
    {"steps/attention_weights", &AttentionSteps::attention_weights},
    {"steps/context", &AttentionSteps::context},
}};

inline constexpr std::array<std::string_view, 4> input_names = {"query", "key", "value", "mask"};

}  // namespace mha::parity
