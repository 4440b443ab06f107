// Memory that a thread keeps between calls, so that small calls allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mha::fused {

/// A call uses its buffer while its tasks, one of which may run on the same thread, use theirs.
enum class BufferUse : std::uint8_t { call, task };

/// At least `bytes` bytes of this thread, aligned to 64, until it asks again for the same use. Grows when needed.
void* thread_buffer(BufferUse use, std::size_t bytes);

}  // namespace mha::fused
