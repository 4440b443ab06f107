// What a file holds, for programs.
#pragma once

#include <string>

#include "cli/inspection.h"

namespace mha::cli {

/// One JSON object, a line for each tensor and each block.
std::string inspection_json(const Inspection& inspection);

}  // namespace mha::cli
