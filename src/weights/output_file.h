/// A file of weights on its way to the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "mha/weights.h"
#include "support/atomic_file.h"

namespace mha::weights {

/// An `AtomicFile` that tells its progress.
class OutputFile {
 public:
  /// `total` is the size that the file will have.
  OutputFile(const std::filesystem::path& path, std::uint64_t total, const WriteOptions& options);

  void write(const void* data, std::size_t size);
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  const WriteOptions& options_;
  std::uint64_t total_;
  std::uint64_t written_ = 0;
};

}  // namespace mha::weights
