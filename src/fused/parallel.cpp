#include "fused/parallel.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>

#include "fused/thread_buffer.h"

namespace mha::fused {
namespace {

/// A thread that waits for work costs about as much as this many bytes read from the third-level cache.
constexpr int64_t bytes_worth_a_thread = int64_t{96} << 10;

/// How many tasks, each of which reads so many bytes for so many rows, are worth a thread.
int64_t grain(int64_t task_bytes, int64_t rows) {
  constexpr int64_t rows_free = 4;  // up to so many, reading is what takes the time
  const int64_t cost = task_bytes * std::max<int64_t>(1, rows / rows_free);
  return std::max<int64_t>(1, bytes_worth_a_thread / std::max<int64_t>(1, cost));
}

int64_t itemsize(Element element) {
  return element == Element::float32 ? 4 : 2;
}

}  // namespace

void attend(const CoreArguments& arguments) {
  const auto scratch_bytes = core_scratch(arguments);
  const bool keeps_scratch = arguments.query_len <= few_query_rows;  // little; packed keys and values are not
  const int64_t tasks = core_tasks(arguments);
  const int64_t all_rows = arguments.batch * arguments.num_heads * arguments.query_len;
  const int64_t task_bytes = 2 * arguments.key_len * arguments.d_k * itemsize(arguments.element);
  const int64_t rows = all_rows / std::max<int64_t>(1, tasks);
  at::parallel_for(0, tasks, grain(task_bytes, rows), [&](int64_t begin, int64_t end) {
    if (keeps_scratch) {
      const ThreadBuffer scratch(BufferUse::task, scratch_bytes);
      run_core(arguments, begin, end, scratch.data());
    } else {
      const auto scratch = at::detail::empty_cpu({static_cast<int64_t>(scratch_bytes)}, torch::kByte);
      run_core(arguments, begin, end, scratch.mutable_data_ptr());
    }
  });
}

void multiply(const ProductArguments& arguments) {
  const auto scratch_bytes = product_scratch(arguments);
  const int64_t tasks = product_tasks(arguments);
  const int64_t task_bytes = arguments.count * arguments.shape.inputs * itemsize(arguments.shape.element) /
                             std::max<int64_t>(1, tasks);
  at::parallel_for(0, tasks, grain(task_bytes, arguments.rows), [&](int64_t begin, int64_t end) {
    const ThreadBuffer scratch(BufferUse::task, scratch_bytes);
    run_product(arguments, begin, end, scratch.data());
  });
}

}  // namespace mha::fused
