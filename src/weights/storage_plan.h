/// Which parts of memory a file of `torch.save` holds, and how tensors lie in them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mha/state_dict.h"

namespace mha::weights {

struct StoragePlan {
  /// One storage of the file.
  struct Record {
    at::Tensor tensor;       ///< whose memory it is
    bool row_major = false;  ///< whether it holds that tensor's values; else a span of its storage, as it is
    std::int64_t begin = 0;  ///< of the span, in elements of the storage
    std::int64_t elements = 0;  ///< of the record

    std::uint64_t bytes() const { return static_cast<std::uint64_t>(elements) * tensor.element_size(); }
    /// What the record holds, on the CPU.
    at::Tensor values() const;
  };

  /// How a tensor lies in its record.
  struct View {
    std::size_t record = 0;
    std::int64_t offset = 0;  ///< in elements
    std::vector<std::int64_t> strides;
  };

  std::vector<Record> records;  ///< in the order of the first tensor in each
  std::vector<View> views;      ///< one for each tensor, in their order
};

/// Tensors that overlap in memory, and are of one dtype, share a record with their strides, unless what they
/// span takes more elements than each of them on its own; then, and otherwise, each has its own.
///
/// All must be dense. An `mha::Error` that begins with `file` when one is too large to count its bytes.
StoragePlan plan_storages(const StateDict& tensors, const std::string& file);

}  // namespace mha::weights
