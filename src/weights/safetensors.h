/// safetensors: bytes to tensors, and tensors to a file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "mha/state_dict.h"
#include "mha/weights.h"

namespace mha::weights {

/// The tensors of `bytes`, a whole safetensors file, as views that keep `owner` (of the bytes) alive; those
/// that do not lie on a multiple of their item size are copied. In the order of their data. Messages begin
/// with `file`.
WeightsFile read_safetensors(std::span<std::byte> bytes, const std::shared_ptr<void>& owner,
                             const std::string& file);

/// Writes a safetensors file; see `mha::write_weights`.
///
/// Tensors of larger items come first, so that each is aligned without gaps, otherwise in the given order.
void write_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace mha::weights
