/// Zip archives as PyTorch writes them: entries are stored, and their data is aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mha::weights {

/// Where everything lies in an archive that is to be written: first each entry's header and data, in turn, then
/// the directory. Zip64 where it is needed.
class ZipLayout {
 public:
  /// Adds an entry; `name` is ASCII or UTF-8. Its number counts from 0.
  void add(std::string name, std::uint64_t size);

  /// Bytes of the whole archive.
  std::uint64_t total() const;

  /// What stands before the data of an entry, whose CRC-32 this is; it ends at a multiple of 64 bytes.
  std::string header(std::size_t number, std::uint32_t crc);

  /// What stands behind the last entry. Each has had its header by then.
  std::string directory() const;

 private:
  struct Entry {
    std::string name;
    std::uint64_t size;
    std::uint64_t begin;  // of its header
    std::uint64_t data;
    std::uint32_t crc;
  };

  static std::string directory_entry(const Entry& entry);

  std::vector<Entry> entries_;
  std::uint64_t end_ = 0;  // of the last entry
};

}  // namespace mha::weights
