#include "fused/thread_buffer.h"

#include <array>
#include <new>

namespace mha::fused {
namespace {

constexpr std::align_val_t alignment{64};

struct Buffer {
  std::byte* memory;
  std::size_t bytes;

  void free() {
    ::operator delete(memory, alignment);
    *this = {};
  }
};

// Without destructors, these outlive the thread's other objects, whose destructors may call for buffers.
thread_local std::array<Buffer, 2> buffers{};
thread_local bool is_ending = false;

struct Release {
  ~Release() {
    is_ending = true;
    for (auto& buffer : buffers) {
      buffer.free();
    }
  }
};

Buffer& buffer_of(BufferUse use) {
  return buffers.at(static_cast<std::size_t>(use));
}

}  // namespace

ThreadBuffer::ThreadBuffer(BufferUse use, std::size_t bytes) : use_(use) {
  thread_local const Release at_exit;
  auto& buffer = buffer_of(use);
  if (buffer.bytes < bytes) {
    buffer.free();  // before there are two
    buffer.memory = static_cast<std::byte*>(::operator new(bytes, alignment));
    buffer.bytes = bytes;
  }
}

ThreadBuffer::~ThreadBuffer() {
  if (is_ending) {
    buffer_of(use_).free();
  }
}

std::byte* ThreadBuffer::data() const {
  return buffer_of(use_).memory;
}

}  // namespace mha::fused
