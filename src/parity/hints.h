// What usually causes a difference, found by trying.
#pragma once

#include <string>

#include "mha/attention.h"
#include "mha/parity.h"
#include "parity/inputs.h"

namespace mha::parity {

/// One sentence on the likeliest cause of the first difference in `report`.
std::string likely_cause(const ReferenceCase& reference, const CaseInputs& inputs,
                         const MultiHeadAttention& module, const CaseReport& report,
                         const TensorReport& first);

}  // namespace mha::parity
