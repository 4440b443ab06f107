#include "cli/speed.h"

#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "fused/linear.h"
#include "mha/attention.h"
#include "mha/fused.h"
#include "parity/guards.h"

namespace mha::cli {
namespace {

using torch::Tensor;

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double largest_difference(const Tensor& result, const Tensor& exact) {
  return (result.to(torch::kDouble) - exact).abs().max().item<double>();
}

}  // namespace

double work(const Workload& w) {
  const auto rows = static_cast<double>(w.batch * w.length);
  const auto width = static_cast<double>(w.d_model);
  const auto length = static_cast<double>(w.length);
  return 8 * rows * width * width + (w.causal ? 2 : 4) * rows * length * width;
}

std::vector<Speed> measure(const Workload& w, double seconds) {
  const torch::NoGradGuard no_grad;
  const parity::ThreadsGuard threads(w.threads);
  MultiHeadAttention module(w.d_model, w.num_heads);
  module->eval();
  const auto options = torch::TensorOptions(w.dtype);
  module->to(w.dtype);
  const FusedMultiHeadAttention fused(module);
  const auto x = torch::randn({w.batch, w.length, w.d_model}).to(w.dtype);
  const auto mask = w.causal ? causal_mask(w.length) : Tensor();
  const auto masking = w.causal ? Masking(CausalAlignment::top_left) : Masking();

  // A product that every library is tuned for.
  constexpr int64_t peak_rows = 2048;
  constexpr int64_t peak_width = 1024;
  const fused::Linear product(torch::randn({peak_width, peak_width}).to(options),
                              torch::zeros({peak_width}, options));
  const auto product_input = torch::randn({peak_rows, peak_width}).to(options);
  constexpr double product_work = 2.0 * peak_rows * peak_width * peak_width;

  Tensor result;
  const std::array<std::function<void()>, 3> calls = {[&] { result = product(product_input); },
                                                      [&] { result = module(x, x, x, mask); },
                                                      [&] { result = fused(x, masking); }};
  // float64 by the engine's other path: the module would keep the scores, gigabytes for long inputs.
  const auto exact = FusedMultiHeadAttention(state_dict(*module), w.num_heads, torch::kDouble)(
      x.to(torch::kDouble), masking);
  std::array<double, 3> errors{};
  for (size_t i = 1; i < calls.size(); ++i) {  // the round that does not count
    calls[i]();
    errors[i] = largest_difference(result, exact);
  }
  module->attention_weights = Tensor();

  std::array<std::vector<double>, 3> times;
  constexpr size_t least_rounds = 3;
  for (double spent = 0; spent < seconds || times[0].size() < least_rounds;) {
    for (size_t i = 0; i < calls.size(); ++i) {
      times[i].push_back(seconds_of(calls[i]));
      spent += times[i].back();
      module->attention_weights = Tensor();
    }
  }
  const double peak = product_work / *std::min_element(times[0].begin(), times[0].end());
  std::vector<Speed> speeds;
  for (size_t i = 1; i < calls.size(); ++i) {
    const double fastest = *std::min_element(times[i].begin(), times[i].end());
    const double rate = work(w) / fastest;
    speeds.push_back({i == 1 ? "mha lesson" : "mha fused", w, 1e3 * fastest, 1e3 * median(times[i]),
                      1e-9 * rate, 100 * rate / peak, errors[i]});
  }
  return speeds;
}

}  // namespace mha::cli
