// How fast attention is on this machine: the module and the fused engine in turns, with the processor's own peak.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mha::cli {

/// What is measured: self-attention of x (batch, length, d_model).
struct Workload {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t d_model = 0;
  int64_t num_heads = 0;
  torch::ScalarType dtype = torch::kFloat;
  bool causal = false;
  int threads = 1;
};

/// One engine on one workload.
struct Speed {
  std::string engine;  ///< `mha lesson` or `mha fused`
  Workload workload;
  double min_ms = 0;
  double median_ms = 0;
  double gflops = 0;           ///< of the fastest round
  double percent_of_peak = 0;  ///< of a matrix product's, measured in the same rounds
  double max_error = 0;        ///< against float64
};

/// Additions and multiplications of a call: 8 B L D^2 + 4 B L^2 D, of the second term half when causal.
double work(const Workload& workload);

/// Takes turns for about `seconds`, and three rounds at least, after one that does not count.
///
/// Sets LibTorch's number of threads for the time of the call.
std::vector<Speed> measure(const Workload& workload, double seconds);

}  // namespace mha::cli
