// The module, the fused engine and LibTorch's own module beside each other, the engine's attention alone, and steps with a
// cache: compare rows of the same size in one run, not runs.
#include <benchmark/benchmark.h>
#include <torch/nn/modules/activation.h>
#include <torch/utils.h>

#include "fused/attend.h"
#include "mha/attention.h"
#include "mha/cache.h"
#include "mha/fused.h"

namespace {

/// Batch, length, d_model, num_heads.
void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "L", "D", "H"});
  benchmark->Args({1, 1, 512, 8})
      ->Args({1, 4, 512, 8})
      ->Args({1, 16, 512, 8})
      ->Args({32, 50, 512, 8})
      ->Args({8, 512, 768, 12});
  benchmark->UseRealTime()->Unit(benchmark::kMicrosecond);
}

/// Products and sums of the whole module: four projections and two products of scores.
void count_work(benchmark::State& state) {
  const auto batch = static_cast<double>(state.range(0));
  const auto length = static_cast<double>(state.range(1));
  const auto width = static_cast<double>(state.range(2));
  state.counters["FLOP/s"] =
      benchmark::Counter(8 * batch * length * width * width + 4 * batch * length * length * width,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void lesson_forward(benchmark::State& state) {
  const torch::InferenceMode inference;
  mha::MultiHeadAttention attention(state.range(2), state.range(3));
  attention->eval();
  const auto x = torch::randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) {
    benchmark::DoNotOptimize(attention(x, x, x));
  }
  count_work(state);
}

void fused_forward(benchmark::State& state) {
  const torch::InferenceMode inference;
  const mha::FusedMultiHeadAttention attention(mha::MultiHeadAttention(state.range(2), state.range(3)));
  const auto x = torch::randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) {
    benchmark::DoNotOptimize(attention(x));
  }
  count_work(state);
}

/// Without projections: query, key and value as one product leaves them.
void attend(benchmark::State& state, torch::ScalarType dtype) {
  const torch::InferenceMode inference;
  const int64_t batch = state.range(0);
  const int64_t length = state.range(1);
  const int64_t num_heads = state.range(3);
  const int64_t d_k = state.range(2) / num_heads;
  const auto projected = torch::randn({batch, length, 3, num_heads, d_k}).to(dtype);
  const auto output = torch::empty({batch, length, num_heads, d_k}, dtype);
  for (auto _ : state) {
    mha::fused::attend(projected.select(2, 0), projected.select(2, 1), projected.select(2, 2), {}, output);
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] = benchmark::Counter(
      4 * static_cast<double>(batch * length) * static_cast<double>(length * state.range(2)),
      benchmark::Counter::kIsIterationInvariantRate);
}

/// One position more, of B items that have L.
void step(benchmark::State& state, torch::ScalarType dtype) {
  const torch::InferenceMode inference;
  mha::MultiHeadAttention module(state.range(2), state.range(3));
  module->to(dtype);
  const int64_t batch = state.range(0);
  const int64_t length = state.range(1);
  mha::KeyValueCache cache(mha::FusedMultiHeadAttention(module), batch, length);
  cache.prefill(torch::randn({batch, length - 1, state.range(2)}).to(dtype));
  const auto x = torch::randn({batch, 1, state.range(2)}).to(dtype);
  const auto output = torch::empty_like(x);
  for (auto _ : state) {
    cache.step_into(x, output);
    benchmark::ClobberMemory();
    for (int64_t item = 0; item < batch; ++item) {
      cache.truncate(item, length - 1);
    }
  }
}

void steps(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "S", "D", "H"});
  benchmark->Args({1, 2048, 1024, 16})->Args({1, 500, 512, 8})->Args({8, 500, 512, 8});
  benchmark->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void libtorch_forward(benchmark::State& state) {
  const torch::InferenceMode inference;
  torch::nn::MultiheadAttention attention(state.range(2), state.range(3));
  attention->eval();
  const auto x = torch::randn({state.range(1), state.range(0), state.range(2)});
  for (auto _ : state) {
    benchmark::DoNotOptimize(std::get<0>(attention->forward(x, x, x)));
  }
  count_work(state);
}

BENCHMARK(lesson_forward)->Apply(sizes);
BENCHMARK(libtorch_forward)->Apply(sizes);
BENCHMARK(fused_forward)->Apply(sizes);
BENCHMARK_CAPTURE(attend, float32, torch::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(attend, bfloat16, torch::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(step, float32, torch::kFloat)->Apply(steps);
BENCHMARK_CAPTURE(step, bfloat16, torch::kBFloat16)->Apply(steps);

}  // namespace
