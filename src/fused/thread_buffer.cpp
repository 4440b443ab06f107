#include "fused/thread_buffer.h"

#include <array>
#include <new>

namespace mha::fused {
namespace {

constexpr std::align_val_t alignment{64};

struct Buffer {
  void* memory;
  std::size_t bytes;

  void free() {
    ::operator delete(memory, alignment);
    *this = {};
  }
};

// Without a destructor, it outlives the thread's other objects, whose destructors may call for it.
thread_local std::array<Buffer, 2> buffers{};

struct Release {
  ~Release() {
    for (auto& buffer : buffers) {
      buffer.free();
    }
  }
};

}  // namespace

void* thread_buffer(BufferUse use, std::size_t bytes) {
  thread_local const Release at_exit;
  auto& buffer = buffers.at(static_cast<std::size_t>(use));
  if (buffer.bytes < bytes) {
    buffer.free();  // before there are two
    buffer.memory = ::operator new(bytes, alignment);
    buffer.bytes = bytes;
  }
  return buffer.memory;
}

}  // namespace mha::fused
