/// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>

namespace mha {

/// Writes to a temporary file beside `path`; `commit()` renames it to `path`. Without commit it is removed
/// again.
///
/// A link at `path` stays a link: what it points to is replaced. Readers that have the old file open keep it.
class AtomicFile {
 public:
  /// Throws `mha::Error` when `path` exists but is not a regular file, or the temporary file cannot be made.
  explicit AtomicFile(const std::filesystem::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends `size` bytes, all of them, or throws `mha::Error`.
  void write(const void* data, std::size_t size);

  /// Makes the file visible under its name.
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::filesystem::path path_;    // as given, for messages
  std::filesystem::path target_;  // links resolved
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

}  // namespace mha
