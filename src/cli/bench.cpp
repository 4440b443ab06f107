#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/report_json.h"
#include "cli/speed.h"
#include "cli/table.h"
#include "mha/error.h"
#include "mha/fused.h"
#include "mha/parity.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/shape_text.h"

namespace mha::cli {
namespace {

struct BenchArguments {
  std::vector<std::string> shapes;
  std::vector<std::string> dtypes = {"float32", "bfloat16"};
  std::vector<int> threads;
  bool causal = false;
  double seconds = 1;
  std::string json;
};

const std::vector<std::string> usual_shapes = {"32,50,512,8",  "1,128,768,12",   "8,512,768,12",
                                               "1,2048,512,8", "4,1024,2048,16", "1,4096,1024,16"};

Workload parse_shape(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const auto& part : CLI::detail::split(text, ',')) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc() || end != part.data() + part.size() || size <= 0) {
      sizes.clear();
      break;
    }
    sizes.push_back(size);
  }
  if (sizes.size() != 4) {
    throw Error("--shape: expected four positive numbers B,L,D,H, found " + quote(text));
  }
  // Sizes whose product does not fit would only fail later, with worse words.
  constexpr int64_t most = 1 << 20;
  if (*std::max_element(sizes.begin(), sizes.end()) > most || sizes[2] % sizes[3] != 0) {
    throw Error("--shape: expected sizes up to 1,048,576 and D divisible by H, found " + quote(text));
  }
  return {.batch = sizes[0], .length = sizes[1], .d_model = sizes[2], .num_heads = sizes[3]};
}

torch::ScalarType parse_dtype(const std::string& name) {
  return name == "bfloat16" ? torch::kBFloat16 : name == "float64" ? torch::kDouble : torch::kFloat;
}

std::string shape_of(const Workload& w) {
  return shape_text(std::array{w.batch, w.length, w.d_model, w.num_heads});
}

std::vector<Workload> workloads(const BenchArguments& arguments) {
  std::vector<Workload> found;
  for (const auto& shape : arguments.shapes.empty() ? usual_shapes : arguments.shapes) {
    auto workload = parse_shape(shape);
    workload.causal = arguments.causal;
    for (const auto& dtype : arguments.dtypes) {
      workload.dtype = parse_dtype(dtype);
      for (const int threads : arguments.threads) {
        workload.threads = threads;
        found.push_back(workload);
      }
    }
  }
  return found;
}

nlohmann::ordered_json row_json(const Speed& speed) {
  const auto& w = speed.workload;
  return {{"shape", {w.batch, w.length, w.d_model, w.num_heads}},
          {"case", w.causal ? "causal" : "self"},
          {"dtype", dtype_text(w.dtype)},
          {"threads", w.threads},
          {"engine", speed.engine},
          {"min_ms", speed.min_ms},
          {"median_ms", speed.median_ms},
          {"gflops", speed.gflops},
          {"percent_of_peak", speed.percent_of_peak},
          {"max_error", speed.max_error},
          {"extra_bytes", nullptr}};
}

int run(BenchArguments arguments) {
  if (arguments.threads.empty()) {
    arguments.threads = {at::get_num_threads()};
  }
  constexpr double longest = 3600;
  // Written so that NaN fails too.
  if (!(arguments.seconds >= 0 && arguments.seconds <= longest)) {
    throw Error(fmt::format("--seconds: expected 0 to {}, found {}", longest, arguments.seconds));
  }
  const auto all = workloads(arguments);
  JsonOutput json(arguments.json);
  Table table({{"B, L, D, H"},
               {"dtype"},
               {"threads", Align::right},
               {"lesson ms", Align::right},
               {"fused ms", Align::right},
               {"times faster", Align::right},
               {"fused GF/s", Align::right},
               {"of peak", Align::right},
               {"lesson error", Align::right},
               {"fused error", Align::right}});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  {
    Progress progress("measuring");
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& w = all[i];
      progress.say(fmt::format("{} of {}: {} {}", i + 1, all.size(), shape_of(w), dtype_text(w.dtype)));
      const auto speeds = measure(w, arguments.seconds);
      const auto& lesson = speeds.front();
      const auto& fused = speeds.back();
      table.add({shape_of(w), dtype_text(w.dtype), std::to_string(w.threads),
                 fmt::format("{:.3f}", lesson.min_ms), fmt::format("{:.3f}", fused.min_ms),
                 fmt::format("{:.2f}", lesson.min_ms / fused.min_ms), fmt::format("{:.0f}", fused.gflops),
                 fmt::format("{:.0f} %", fused.percent_of_peak), fmt::format("{:.1e}", lesson.max_error),
                 fmt::format("{:.1e}", fused.max_error)});
      for (const auto& speed : speeds) {
        rows.push_back(row_json(speed));
      }
    }
  }
  const auto environment = parity::current_environment(torch::kCPU);
  std::FILE* const stream = arguments.json == "-" ? stderr : stdout;
  print(stream, fmt::format("{}, LibTorch {} ({}); fastest of the rounds; errors against float64{}\n\n{}",
                            environment.cpu_model, TORCH_VERSION, at::get_cpu_capability(),
                            arguments.causal ? "; causal" : "", table.text()));
  const nlohmann::ordered_json machine = {{"cpu_model", environment.cpu_model},
                                          {"torch_version", TORCH_VERSION},
                                          {"cpu_capability", at::get_cpu_capability()}};
  json.write(nlohmann::ordered_json{{"machine", machine}, {"rows", rows}});
  return all_passed;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_status) {
  auto arguments = std::make_shared<BenchArguments>();
  auto* command = app.add_subcommand("bench", "How fast the module and the fused engine are on this machine");
  command
      ->add_option(
          "--shape", arguments->shapes,
          "Batch, length, d_model, num_heads; may be given again\n(default: six usual shapes, some minutes)")
      ->type_name("B,L,D,H")
      ->delimiter(' ');
  command->add_option("--dtype", arguments->dtypes, "float32, bfloat16 or float64 (default: the first two)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float64"}))
      ->default_str("")
      ->type_name("DTYPE");
  command->add_option("--threads", arguments->threads, "Numbers of threads (default: LibTorch's)")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',')
      ->type_name("N");
  command->add_flag("--causal", arguments->causal, "Each position sees itself and what came before");
  command->add_option("--seconds", arguments->seconds, "How long to measure each row (default: 1)")
      ->default_str("")
      ->type_name("S");
  command->add_option("--json", arguments->json, "Write the rows as JSON to FILE, or - for standard output")
      ->check(not_empty)
      ->type_name("FILE");
  command->footer(
      "The module and the engine take turns with a matrix product, so that what else the machine does falls "
      "on all\n"
      "alike; the product's rate is the peak that is told of. A call counts 8 B L D^2 + 4 B L^2 D "
      "operations, half of\n"
      "the second term with --causal.\n"
      "\n"
      "  mha bench --shape 8,512,768,12 --threads 1,2 --dtype float32\n"
      "\n"
      "Exit status: 0 measured, 2 bad usage.");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace mha::cli
