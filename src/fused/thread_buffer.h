// Memory that a thread keeps between calls, so that small calls allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mha::fused {

/// A call uses its buffer while its tasks, one of which may run on the same thread, use theirs.
enum class BufferUse : std::uint8_t { call, task };

/// At least `bytes` bytes of this thread, aligned to 64. One at a time for each use; while the thread ends they are
/// given back at once.
class ThreadBuffer {
 public:
  ThreadBuffer(BufferUse use, std::size_t bytes);
  ThreadBuffer(const ThreadBuffer&) = delete;
  ThreadBuffer& operator=(const ThreadBuffer&) = delete;
  ~ThreadBuffer();

  std::byte* data() const;

 private:
  BufferUse use_;
};

}  // namespace mha::fused
