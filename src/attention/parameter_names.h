// The lesson's parameters by their names in a state dict, in its order.
#pragma once

#include <array>
#include <string_view>

namespace mha {

inline constexpr std::array<std::string_view, 8> parameter_names = {
    "W_q.weight", "W_q.bias", "W_k.weight", "W_k.bias", "W_v.weight", "W_v.bias", "W_o.weight", "W_o.bias"};

}  // namespace mha
