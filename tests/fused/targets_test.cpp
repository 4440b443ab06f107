// The kernels of other instruction sets than this processor's best: MHA_TEST_TARGET names the one that all tests of
// this process run with, as Highway calls it (AVX2, ...); LOWEST is the one that every processor has.
#include <hwy/targets.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "fused/attend.h"

namespace {

/// Highway's bits of the target that the environment asks for; 0 when it asks for none, or for one that this processor
/// lacks.
int64_t wanted_targets() {
  const char* wanted = std::getenv("MHA_TEST_TARGET");
  if (wanted == nullptr) {
    return 0;
  }
  if (std::string(wanted) == "LOWEST") {
    return HWY_EMU128 | HWY_SCALAR;  // which of them is compiled depends on the compiler
  }
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    if (std::string(hwy::TargetName(target)) == wanted) {
      return target;
    }
  }
  return 0;
}

/// The instruction set of our kernels by what is told about them.
std::string target_in_use(torch::ScalarType dtype) {
  const auto text = mha::fused::describe_attend(dtype, torch::kCPU, /*masked=*/false, std::nullopt, 1, 1);
  const std::string before = "kernels, ";
  const auto begin = text.find(before);
  if (begin == std::string::npos) {
    return "none in: " + text;
  }
  const auto name = text.substr(begin + before.size());
  return name.substr(0, name.find_first_of(", "));
}

class Targets : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    // Before the first call of a kernel; 0 is no restriction.
    hwy::SetSupportedTargetsForTest(wanted_targets());
  }
};
CATCH_REGISTER_LISTENER(Targets)

}  // namespace

TEST_CASE("the kernels in use are those of the instruction set that was asked for", "[fused]") {
  const char* wanted = std::getenv("MHA_TEST_TARGET");
  if (wanted != nullptr && wanted_targets() == 0) {
    SKIP("skipped: this processor has no " << wanted);
  }
  // Without a wish, the best of those that were compiled.
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  const std::string expected = wanted == nullptr ? hwy::TargetName(targets & -targets) : wanted;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto found = target_in_use(dtype);
    if (expected == "LOWEST") {
      CHECK((found == "SCALAR" || found == "EMU128"));
    } else {
      CHECK(found == expected);
    }
  }
}
