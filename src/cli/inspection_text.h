// What a file holds, as text for people.
#pragma once

#include <string>

#include "cli/inspection.h"

namespace mha::cli {

/// Format and totals, a line for each tensor, the attention blocks, how to go on.
std::string inspection_text(const Inspection& inspection);

}  // namespace mha::cli
