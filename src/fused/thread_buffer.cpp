#include "fused/thread_buffer.h"

#include <array>
#include <memory>
#include <new>

namespace mha::fused {
namespace {

constexpr std::align_val_t alignment{64};

struct Free {
  void operator()(void* memory) const { ::operator delete(memory, alignment); }
};

struct Buffer {
  std::unique_ptr<void, Free> memory;
  std::size_t bytes = 0;
};

}  // namespace

void* thread_buffer(BufferUse use, std::size_t bytes) {
  thread_local std::array<Buffer, 2> buffers;
  auto& buffer = buffers.at(static_cast<std::size_t>(use));
  if (buffer.bytes < bytes) {
    buffer = {};  // before there are two
    buffer = {std::unique_ptr<void, Free>(::operator new(bytes, alignment)), bytes};
  }
  return buffer.memory.get();
}

}  // namespace mha::fused
