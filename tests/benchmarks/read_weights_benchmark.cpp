// Reads one file and prints a line of JSON: seconds to read it, seconds to go over all bytes after that, and the
// memory that was used. read_weights.py compares it with Python's readers.
#include <ATen/Parallel.h>
#include <ATen/ops/sum.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "mha/weights.h"

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// KiB, as in /proc/self/status: VmRSS, or VmHWM for the most there was.
long memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what + ":")) {
      return std::stol(line.substr(what.size() + 1));
    }
  }
  return 0;
}

/// The same kernel as Python's `tensor.view(torch.int64).sum()`.
std::int64_t sum_of_words(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kLong).sum().item<std::int64_t>();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: read_weights_benchmark FILE\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    sum_of_words(at::ones({1024}));
    const long before = memory("VmRSS");
    const auto start = std::chrono::steady_clock::now();
    const mha::StateDict tensors = mha::read_weights(arguments[1]);
    const double read = seconds_since(start);
    const long after = memory("VmHWM");
    std::uint64_t total = 0;
    for (const auto& item : tensors) {
      total += static_cast<std::uint64_t>(sum_of_words(item.value()));
    }
    const double all = seconds_since(start);
    std::printf(
        "{\"read\": %.6f, \"all\": %.6f, \"before\": %ld, \"peak_read\": %ld, \"peak\": %ld, \"tensors\": "
        "%zu, "
        "\"sum\": %llu}\n",
        read, all, before, after, memory("VmHWM"), tensors.size(), static_cast<unsigned long long>(total));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
