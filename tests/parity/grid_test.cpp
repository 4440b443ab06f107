// Every case of the exporter's grid, bit for bit.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "mha/parity.h"

namespace {

/// The cases in the folder that the environment names; skips the test when it names none.
std::vector<std::filesystem::path> cases() {
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
  return paths;
}

struct Totals {
  int cases = 0;
  int64_t tensors = 0;
  int64_t elements = 0;
};

/// Verifies every case and counts those with a verdict up to `worst`, the only ones that do not fail the test.
Totals verify_all(mha::parity::Requirement require, mha::parity::Verdict worst) {
  const auto paths = cases();
  REQUIRE(paths.size() >= 200);
  Totals passed;
  for (const auto& path : paths) {
    mha::parity::VerifyOptions options;
    options.require = require;
    const auto report = mha::parity::verify(mha::parity::read_case(path), options);
    INFO(path.filename().string() << " " << report.first_divergence.value_or(mha::parity::Divergence{}).name
                                  << ": "
                                  << report.first_divergence.value_or(mha::parity::Divergence{}).hint);
    CHECK(report.verdict <= worst);
    if (report.verdict <= worst) {
      ++passed.cases;
      for (const auto& tensor : report.tensors) {
        ++passed.tensors;
        passed.elements += tensor.total;
      }
    }
  }
  return passed;
}

}  // namespace

TEST_CASE("every case of the grid is bit-exact", "[grid]") {
  const auto exact = verify_all(mha::parity::Requirement::bit_exact, mha::parity::Verdict::bit_exact);
  std::cout << "bit-exact: " << exact.cases << " cases, " << exact.tensors << " tensors, " << exact.elements
            << " elements\n";
  // The environment is this very one, so that bits are required by default as well.
  const auto report = mha::parity::verify(mha::parity::read_case(cases().front()));
  CHECK(report.bits_required);
  CHECK(report.differences.empty());
}

TEST_CASE("every eval case of the grid passes with the fused engine", "[grid-fused]") {
  mha::parity::VerifyOptions options;
  options.engine = mha::parity::Engine::fused;
  Totals passed;
  int train = 0;
  int empty = 0;
  for (const auto& path : cases()) {
    const auto reference = mha::parity::read_case(path);
    if (reference.train) {
      ++train;
      continue;
    }
    const auto report = mha::parity::verify(reference, options);
    INFO(path.filename().string());
    CHECK(report.engine == "fused");
    CHECK_FALSE(report.bits_required);
    CHECK(report.tensors.size() == 2);
    int64_t elements = 0;
    for (const auto& tensor : report.tensors) {
      INFO(tensor.name << " " << tensor.max_abs << " " << tensor.note);
      CHECK(mha::parity::passed(tensor.verdict));
      elements += tensor.total;
      ++passed.tensors;
    }
    // Without queries there are no outputs: nothing to compare is no pass of a case, but here all there is to ask for.
    empty += elements == 0 ? 1 : 0;
    CHECK(mha::parity::passed(report.verdict) == (elements > 0));
    passed.elements += elements;
    ++passed.cases;
  }
  CHECK(passed.cases >= 200);
  CHECK(train >= 50);
  CHECK(empty == 5);
  std::cout << "fused engine: " << passed.cases << " cases, " << passed.tensors << " tensors, "
            << passed.elements << " elements; " << train << " cases of training skipped\n";
}

TEST_CASE("every case of the grid passes by tolerance on other instruction sets", "[other-cpu]") {
  const auto passed = verify_all(mha::parity::Requirement::tolerance, mha::parity::Verdict::within_tolerance);
  std::cout << "within tolerance: " << passed.cases << " cases, " << passed.tensors << " tensors, "
            << passed.elements << " elements\n";
  // The instruction set is part of the build's description: bits are not required by default.
  const auto report = mha::parity::verify(mha::parity::read_case(cases().front()));
  CHECK_FALSE(report.bits_required);
}
