// Every case of the exporter's grid, bit for bit.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "mha/parity.h"

TEST_CASE("every case of the grid is bit-exact", "[grid]") {
  const char* folder = std::getenv("MHA_CASES");
  if (folder == nullptr) {
    SKIP("MHA_CASES names no folder of cases: run this test through ctest");
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  REQUIRE(paths.size() >= 200);

  mha::parity::VerifyOptions options;
  options.require = mha::parity::Requirement::bit_exact;
  int64_t tensors = 0;
  int64_t elements = 0;
  for (const auto& path : paths) {
    const auto report = mha::parity::verify(mha::parity::read_case(path), options);
    INFO(path.filename().string());
    if (report.first_divergence) {
      INFO(report.first_divergence->name << ": " << report.first_divergence->hint);
      CHECK(report.verdict == mha::parity::Verdict::bit_exact);
    } else {
      CHECK(report.verdict == mha::parity::Verdict::bit_exact);
    }
    // The environment is this very one, so that the default is to require bits as well.
    CHECK(report.differences.empty());
    for (const auto& tensor : report.tensors) {
      ++tensors;
      elements += tensor.total;
    }
  }
  std::cout << paths.size() << " cases, " << tensors << " tensors, " << elements
            << " elements: all bit-exact\n";
}
