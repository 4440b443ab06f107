/// safetensors: bytes to tensors, and tensors to a file.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "mha/state_dict.h"
#include "mha/weights.h"
#include "weights/source.h"

namespace mha::weights {

/// The tensors of a safetensors file, as views that keep the owner of its bytes alive; those that do not lie
/// on a multiple of their item size are copied. In the order of their data.
WeightsFile read_safetensors(const Source& source);

/// Writes a safetensors file; see `mha::write_weights`.
///
/// Tensors of larger items come first, so that each is aligned without gaps, otherwise in the given order.
void write_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata, const WriteOptions& options);

}  // namespace mha::weights
