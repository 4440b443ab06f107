#include "parity/environment.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "support/quote.h"

#include <sys/utsname.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace mha::parity {
namespace {

/// The processor's name as the exporter records it.
std::string cpu_model() {
#ifdef __APPLE__
  std::array<char, 256> text{};
  size_t size = text.size();
  if (sysctlbyname("machdep.cpu.brand_string", text.data(), &size, nullptr, 0) == 0) {
    return text.data();
  }
#else
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      const auto start = line.find_first_not_of(" \t", colon + 1);
      return start == std::string::npos ? "" : line.substr(start);
    }
  }
#endif
  // Linux on ARM names no model: the architecture is all there is.
  utsname system{};
  return uname(&system) == 0 ? system.machine : "";
}

/// The first line in which two texts differ, to name a difference in something as long as a build's settings.
std::string first_other_line(const std::string& text, const std::string& other) {
  size_t start = 0;
  while (start < text.size()) {
    const auto end = std::min(text.find('\n', start), text.size());
    const auto line = text.substr(start, end - start);
    if (other.find(line) == std::string::npos) {
      const auto first = line.find_first_not_of(" -");
      constexpr size_t longest = 80;
      const auto trimmed = first == std::string::npos ? "" : line.substr(first);
      return trimmed.size() > longest ? trimmed.substr(0, longest) + "..." : trimmed;
    }
    start = end + 1;
  }
  return "fewer settings";
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string matmul_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return "highest";
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      break;
  }
  return "medium";
}

/// `2.13.0` of `2.13.0`, `2.13.0+cpu` and `2.13.0a0+git123`.
std::string release_of(const std::string& version) {
  return version.substr(0, version.find_first_not_of("0123456789."));
}

}  // namespace

std::map<std::string, std::string> current_settings() {
  return {{"float32_matmul_precision", matmul_precision()},
          {"deterministic", at::globalContext().deterministicAlgorithms() ? "true" : "false"},
          {"mkldnn", at::globalContext().userEnabledMkldnn() ? "true" : "false"},
          {"MKL_CBWR", variable("MKL_CBWR")},
          {"ONEDNN_MAX_CPU_ISA", variable("ONEDNN_MAX_CPU_ISA")}};
}

Environment current_environment(torch::Device device) {
  return {.torch_version = TORCH_VERSION,
          .build = at::show_config(),
          .cpu_model = cpu_model(),
          .num_threads = at::get_num_threads(),
          .device = c10::DeviceTypeName(device.type(), /*lower_case=*/true),
          .settings = current_settings()};
}

std::vector<std::string> environment_differences(const Environment& reference, const Environment& ours) {
  std::vector<std::string> differences;
  const auto differ = [&](const std::string& what, const std::string& theirs, const std::string& here) {
    differences.push_back(what + ": the case has " + (theirs.empty() ? "none recorded" : escape(theirs)) +
                          ", here it is " + here);
  };
  const auto release = release_of(reference.torch_version);
  if (!release.empty() && release != release_of(ours.torch_version)) {
    differ("LibTorch version", reference.torch_version, ours.torch_version);
  } else if (reference.build != ours.build) {
    differ("LibTorch build", reference.build.empty() ? "" : first_other_line(reference.build, ours.build),
           first_other_line(ours.build, reference.build));
  }
  if (reference.cpu_model != ours.cpu_model) {
    differ("processor", reference.cpu_model, ours.cpu_model);
  }
  if (reference.num_threads != ours.num_threads) {
    differ("threads", reference.num_threads == 0 ? "" : std::to_string(reference.num_threads),
           std::to_string(ours.num_threads));
  }
  if (reference.device != ours.device) {
    differ("device", reference.device, ours.device);
  }
  for (const auto& [name, value] : reference.settings) {
    const auto here = ours.settings.find(name);
    if (here != ours.settings.end() && here->second != value) {
      differ(name, value, here->second.empty() ? "not set" : here->second);
    }
  }
  return differences;
}

}  // namespace mha::parity
