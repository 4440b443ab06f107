// A case's inputs as the reference run had them.
#pragma once

#include "mha/parity.h"

namespace mha::parity {

/// The tensors to call the module with. Absent key is query itself, absent value is key itself: one tensor
/// passed three times collects all three gradients.
struct CaseInputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor mask;
};

/// Copies the inputs to fresh memory with the case's strides, on `device`. Alignment and strides both change
/// bits.
CaseInputs rebuild_inputs(const ReferenceCase& reference, torch::Device device);

}  // namespace mha::parity
