// What decides the last bits besides the inputs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mha/parity.h"

namespace mha::parity {

/// The switches of this run that change the last bits, by their names in a case: see `Environment::settings`.
std::map<std::string, std::string> current_settings();

/// How a run's environment differs from a case's, one sentence each; empty when bits can be required.
std::vector<std::string> environment_differences(const Environment& reference, const Environment& ours);

}  // namespace mha::parity
