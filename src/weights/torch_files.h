/// PyTorch's own files: bytes to tensors. No code in them is run, whatever classes they name.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "mha/weights.h"

namespace mha::weights {

/// The tensors of a zip archive: of Python's `torch.save`, of TorchScript, of C++'s `torch::save`.
///
/// They are views of `bytes`, a whole file, that keep `owner` (of the bytes) alive; those that are deflated
/// or do not lie on a multiple of their item size are copied. Messages begin with `file`.
WeightsFile read_torch_archive(std::span<std::byte> bytes, const std::shared_ptr<void>& owner,
                               const std::string& file);

/// The same for the stream that `torch.save` wrote before PyTorch 1.6, and writes still with
/// `_use_new_zipfile_serialization=False`.
WeightsFile read_legacy(std::span<std::byte> bytes, const std::shared_ptr<void>& owner,
                        const std::string& file);

/// Whether `content` begins as such a stream does.
bool is_legacy(std::string_view content);

}  // namespace mha::weights
