// Steps allocate nothing after the first. A program of its own, for it counts what every library in it asks for.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdlib>
#include <new>

#include "fused/fused_testing.h"
#include "mha/cache.h"

using mha::FusedMultiHeadAttention;
using mha::KeyValueCache;
using mha::MultiHeadAttention;
using torch::Tensor;

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

// What glibc's allocator is called by: definitions in a program take the place of the library's in all that it loads.
// NOLINTBEGIN
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  ++allocations;
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  ++allocations;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;
}
}
// NOLINTEND

namespace {

/// How many allocations `action` makes, on all threads.
template <typename Action>
int64_t allocations_of(const Action& action) {
  const int64_t before = allocations;
  action();
  return allocations - before;
}

FusedMultiHeadAttention make(torch::ScalarType dtype) {
  MultiHeadAttention module(512, 8);
  module->to(dtype);
  return FusedMultiHeadAttention(module);
}

}  // namespace

TEST_CASE("allocations are counted") {
  CHECK(allocations_of([] { std::free(std::malloc(100)); }) == 1);
  CHECK(allocations_of([] { delete new int(1); }) == 1);
  CHECK(allocations_of([] { torch::empty({3}); }) >= 2);
  CHECK(allocations_of([] {}) == 0);
}

TEST_CASE("a step allocates nothing after the first") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto threads = GENERATE(1, 2);
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const auto attention = make(dtype);
  for (const int64_t batch : {1, 8}) {
    KeyValueCache cache(attention, batch, 1100);
    cache.prefill(torch::randn({batch, 500, 512}).to(dtype));
    const auto x = torch::randn({batch, 1, 512}).to(dtype);
    const auto output = torch::empty_like(x);
    const int64_t first = allocations_of([&] { cache.step_into(x, output); });
    const int64_t later = allocations_of([&] {
      for (int step = 0; step < 500; ++step) {
        cache.step_into(x, output);
      }
    });
    CAPTURE(dtype, threads, batch, first);
    CHECK(later == 0);
    // What it gives may be a tensor of its own: the only cause of more.
    const int64_t of_a_tensor = allocations_of([&] { torch::empty({batch, 1, 512}, dtype); });
    CHECK(allocations_of([&] { cache.step(x); }) <= of_a_tensor);
  }
  at::set_num_threads(before);
}

TEST_CASE("attending to a projected memory allocates nothing after the first time") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto attention = make(dtype);
  const auto mask = mha::padding_mask(torch::tensor({300, 20}), 300);
  const auto memory = attention.project_memory(torch::randn({2, 300, 512}).to(dtype), mask);
  const auto query = torch::randn({2, 1, 512}).to(dtype);
  const auto output = torch::empty_like(query);
  memory.attend_into(query, output);
  CHECK(allocations_of([&] {
          for (int step = 0; step < 100; ++step) {
            memory.attend_into(query, output);
          }
        }) == 0);
}
