// The readable module beside LibTorch's own, in one run: compare rows of the same size, not runs.
#include <benchmark/benchmark.h>
#include <torch/nn/modules/activation.h>
#include <torch/utils.h>

#include "mha/attention.h"

namespace {

/// Batch, length, d_model, num_heads.
void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "L", "D", "H"});
  benchmark->Args({1, 1, 512, 8})->Args({32, 50, 512, 8})->Args({8, 512, 768, 12});
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

}  // namespace
