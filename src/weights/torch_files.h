/// PyTorch's own files: bytes to tensors, and tensors to a file. No code in them is run, whatever classes they name.
#pragma once

#include <filesystem>
#include <string_view>

#include "mha/weights.h"
#include "weights/source.h"

namespace mha::weights {

/// The tensors of a zip archive: of Python's `torch.save`, of TorchScript, of C++'s `torch::save`.
///
/// They are views of its bytes that keep their owner alive; those that are deflated or do not lie on a multiple
/// of their item size are copied.
WeightsFile read_torch_archive(const Source& source);

/// The same for the stream that `torch.save` wrote before PyTorch 1.6, and writes still with
/// `_use_new_zipfile_serialization=False`.
WeightsFile read_legacy(const Source& source);

/// Whether `content` begins as such a stream does.
bool is_legacy(std::string_view content);

/// Writes what `torch.save` writes for a dict of tensors; see `mha::write_weights`.
void write_torch_archive(const std::filesystem::path& path, const StateDict& tensors,
                         const WriteOptions& options);

}  // namespace mha::weights
