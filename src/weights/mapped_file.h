/// A file's bytes in memory, without reading them all first.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "weights/source.h"

namespace mha::weights {

/// A private mapping of a whole file: writing to it changes neither the file nor other mappings of it.
///
/// The file may be unlinked or renamed while mapped, but not shortened: touching a page past its end kills
/// the process.
class MappedFile {
 public:
  /// Throws `mha::Error` when `path` is not a readable, non-empty regular file. Never waits (a FIFO is
  /// refused).
  static std::shared_ptr<MappedFile> open(const std::filesystem::path& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  MappedFile() = default;

  std::span<std::byte> bytes_;
};

/// Gives back the memory of pages that lie wholly within `bytes`, if they are mapped: read again, they come from
/// the file. For what has been copied and will hardly be read again.
void release_pages(const OwnedBytes& bytes);

}  // namespace mha::weights
