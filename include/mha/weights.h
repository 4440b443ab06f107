/// Weights from and to files, and into any module.
///
/// File errors are `mha::Error`; a state dict that does not fit a module is a `c10::Error`.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <string>

#include "mha/error.h"
#include "mha/export.h"
#include "mha/state_dict.h"

namespace mha {

/// A file's tensors together with its free text: what a safetensors file holds.
struct MHA_EXPORT WeightsFile {
  /// Tensors in the order of their data in the file, on the CPU.
  StateDict tensors;
  /// The `__metadata__` of a safetensors file; empty when the file has none.
  std::map<std::string, std::string> metadata;
};

/// Reads every tensor of `path`, recognising the format by content, never by name. No code in a file is run.
///
/// | format | names |
/// |---|---|
/// | safetensors (every dtype but those of less than a byte) | as they stand |
/// | `torch.save` of dicts, lists, tuples, nested as they may be | keys and indices, joined by dots |
/// | `torch.save` of a whole module, or of dicts and lists with modules in them | those of `state_dict()` |
/// | the same in the format of before PyTorch 1.6 | the same |
/// | TorchScript, traced or scripted | those of `state_dict()`, and of other attributes that hold tensors |
/// | C++'s `torch::save` of modules, tensors, lists of tensors | those of the module |
///
/// A tensor saved alone has the empty name. What is no tensor is left out, and so are tensors inside objects
/// of unknown classes that are no modules. Tensors come to the CPU, without `requires_grad`; two that shared
/// memory when they were saved share it again. Refused by name: meta, sparse, quantized and nested tensors.
///
/// Nothing is copied where that can be avoided: tensors are views of a private mapping of the file, kept
/// alive by the tensors themselves. Only deflated data, and data that does not lie on a multiple of its item
/// size (common in the format of before 1.6) are copied. Writing to them changes neither the file nor other
/// readers. The file must not be shortened while a tensor of it lives. Clone a tensor before arithmetic whose
/// last bits matter: mapped data is aligned to its item size only, and alignment can change the order in
/// which a kernel adds. Checksums are not compared.
///
/// Throws `mha::Error` when the file cannot be opened or breaks a rule of its format; never returns part of a
/// file.
MHA_EXPORT StateDict read_weights(const std::filesystem::path& path);

/// As `read_weights`, with the file's metadata.
MHA_EXPORT WeightsFile read_weights_file(const std::filesystem::path& path);

/// Writes `tensors` (any strides, any device) as a safetensors file: to a temporary name beside `path`, then
/// renamed, so that `path` never holds part of a file. A symbolic link at `path` stays one.
///
/// Tensors of larger items come first, so that all are aligned without gaps, otherwise in the given order.
/// Shared or strided tensors are written out in full, row-major. The same arguments give the same bytes.
///
/// Throws `mha::Error` when a tensor is undefined, sparse, quantized, on the meta device or of a dtype that
/// safetensors lacks (complex128), when a name or metadata is not UTF-8, or when the file cannot be written.
MHA_EXPORT void write_weights(const std::filesystem::path& path, const StateDict& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// How `load_state_dict` finds a module's tensors in a state dict.
struct MHA_EXPORT LoadOptions {
  /// Only names under this prefix count, with or without its final dot. Empty: all names.
  ///
  /// Full names are tried first. When they lack some of the module's names, names with wrappers stripped are
  /// taken if they give more: `_orig_mod` components (torch.compile) and leading `module` ones
  /// (DataParallel), in any order. Names that become equal then are an error, and so is a prefix that matches
  /// nothing.
  std::string prefix;  // NOLINT(readability-redundant-member-init)
};

/// Copies `state_dict` into the parameters and buffers of `module`, as Python's
/// `load_state_dict(strict=True)`.
///
/// All or nothing: every name, shape and dtype kind is checked before the first copy, and one `c10::Error`
/// lists all that is missing, unexpected or of another shape. Values are cast to the module's dtype and moved
/// to its device; the module's tensors keep their memory, dtype, device and `requires_grad`.
///
/// Refused: undefined, sparse, quantized and meta tensors on either side, complex values for a real tensor,
/// inference tensors outside InferenceMode, expanded parameters. Tied tensors take the value of their last
/// name in the module.
MHA_EXPORT void load_state_dict(torch::nn::Module& module, const StateDict& state_dict,
                                const LoadOptions& options = {});

}  // namespace mha
