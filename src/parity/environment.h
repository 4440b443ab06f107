// What decides the last bits besides the inputs.
#pragma once

#include <string>
#include <vector>

#include "mha/parity.h"

namespace mha::parity {

/// How a run's environment differs from a case's, one sentence each; empty when bits can be required.
std::vector<std::string> environment_differences(const Environment& reference, const Environment& ours);

}  // namespace mha::parity
