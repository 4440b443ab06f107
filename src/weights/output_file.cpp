#include "weights/output_file.h"

#include <algorithm>

namespace mha::weights {
namespace {

/// Large enough to be written at full speed, small enough to be reported some times a second.
constexpr std::size_t kPiece = std::size_t{16} << 20;

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, std::uint64_t total, const WriteOptions& options)
    : file_(path), options_(options), total_(total) {}

void OutputFile::write(const void* data, std::size_t size) {
  const auto* next = static_cast<const std::byte*>(data);
  while (size > 0) {
    const std::size_t piece = std::min(size, kPiece);
    file_.write(next, piece);
    next += piece;
    size -= piece;
    written_ += piece;
    if (options_.progress) {
      options_.progress(written_, total_);
    }
  }
}

}  // namespace mha::weights
