/// Zip archives, as PyTorch writes them and as other tools pack them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weights/source.h"

namespace mha::weights {

struct ZipEntry {
  std::string name;
  std::span<std::byte> packed;  ///< as it lies in the file
  std::uint64_t size = 0;       ///< once unpacked
  std::uint64_t header = 0;     ///< where its local header begins in the file
  std::uint32_t crc = 0;
  bool deflated = false;
};

/// The entries of a zip archive in memory, found through its central directory.
class ZipArchive {
 public:
  /// Reads the directory of a whole file. An `mha::Error` tells what is broken: every entry must lie inside the
  /// file, before the directory, and overlap no other; its local header must agree with the directory. Zip64 is
  /// understood; encryption, several disks, methods other than stored and deflated, and deflated entries that
  /// would take far more than the file are refused.
  explicit ZipArchive(Source source);

  /// In the order of the directory. Names are unique.
  const std::vector<ZipEntry>& entries() const { return entries_; }

  /// The entry of that name, or nullptr.
  const ZipEntry* find(std::string_view name) const;

  /// An entry's bytes: those of the file when it is stored, a copy when it is deflated. `where` begins the
  /// message when they cannot be inflated, or do not have the CRC-32 that the directory tells.
  ///
  /// CRCs are compared only when that was asked for: it takes a pass over all bytes, and PyTorch itself can
  /// write archives without real ones (`torch.serialization.set_crc32_options(False)`).
  OwnedBytes read(const ZipEntry& entry, const std::string& where) const;

 private:
  Source source_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace mha::weights
