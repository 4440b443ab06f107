/// What every reader is given.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "mha/weights.h"

namespace mha::weights {

/// Bytes and who keeps them alive.
struct OwnedBytes {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
  bool is_mapped = false;  ///< whether they are pages of a file that nothing has been written to
};

/// A whole file in memory.
struct Source {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;  ///< keeps the bytes alive
  std::string file;             ///< its name, with which all messages begin
  ReadOptions options = {};     // NOLINT(readability-redundant-member-init)
  bool is_mapped = false;       ///< whether the bytes are a `MappedFile`'s
};

}  // namespace mha::weights
