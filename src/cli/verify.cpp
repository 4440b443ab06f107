#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/report_json.h"
#include "cli/report_table.h"
#include "mha/error.h"
#include "mha/parity.h"
#include "mha/weights.h"

namespace mha::cli {
namespace {

/// What `mha verify` was asked, as text from the command line.
struct VerifyArguments {
  std::vector<std::string> cases;
  std::string weights;
  std::optional<std::string> prefix;
  std::string layout;
  std::string engine = "lesson";
  std::string device;
  std::string require;
  std::string json;
  int64_t num_heads = 0;
  int threads = 0;
};

parity::VerifyOptions verify_options(const VerifyArguments& arguments) {
  parity::VerifyOptions options;
  options.weights = arguments.weights;
  options.prefix = arguments.prefix;
  options.layout = arguments.layout;
  if (arguments.num_heads > 0) {
    options.num_heads = arguments.num_heads;
  }
  if (!arguments.device.empty()) {
    options.device = torch::Device(arguments.device);
  }
  if (arguments.threads > 0) {
    options.num_threads = arguments.threads;
  }
  if (!arguments.require.empty()) {
    options.require =
        arguments.require == "bit-exact" ? parity::Requirement::bit_exact : parity::Requirement::tolerance;
  }
  options.engine = arguments.engine == "fused" ? parity::Engine::fused : parity::Engine::lesson;
  return options;
}

/// One case; one that cannot be used is told at once and does not keep the others from being verified.
parity::CaseReport verify_one(const std::string& path, const parity::VerifyOptions& options) {
  try {
    return parity::verify(parity::read_case(path), options);
  } catch (const std::exception& error) {
    report_error(error.what());
    parity::CaseReport report;
    report.name = path;
    report.engine = parity::engine_text(options.engine);
    report.error = error.what();
    return report;
  }
}

int run(const VerifyArguments& arguments) {
  const auto options = verify_options(arguments);
  if (options.engine == parity::Engine::fused && options.require == parity::Requirement::bit_exact) {
    throw CLI::ValidationError(
        "--require", "expected tolerance with --engine fused, whose bits are its own, found bit-exact");
  }
  JsonOutput json(arguments.json);
  // With the report on standard output, people read on standard error.
  std::FILE* const stream = arguments.json == "-" ? stderr : stdout;
  const bool color = use_color(stream);
  const bool many = arguments.cases.size() > 1;
  auto status = all_passed;
  std::vector<parity::CaseReport> reports;
  for (const auto& path : arguments.cases) {
    reports.push_back(verify_one(path, options));
    const auto& report = reports.back();
    if (!report.error.empty()) {
      status = bad_usage;
      continue;
    }
    const bool passed = parity::passed(report.verdict);
    print(stream, many && passed ? summary_line(report, color) : report_text(report, color));
    status = passed ? status : std::max(status, something_differs);
  }
  if (many) {
    print(stream, totals_line(reports, color));
  }
  json.write(reports);
  return status;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_status) {
  auto arguments = std::make_shared<VerifyArguments>();
  auto* command = app.add_subcommand(
      "verify", "Compute reference cases here and compare every step, output and gradient");
  command->add_option("CASE", arguments->cases, "Reference cases written by scripts/export_reference.py")
      ->required();
  command->add_option("--weights", arguments->weights, "Take the weights from this file instead of the case")
      ->check(not_empty)
      ->type_name("FILE");
  command->add_option("--prefix", arguments->prefix, "Prefix of the weights' names, e.g. encoder.0.attn.");
  auto layouts = layout_names();
  layouts.insert(layouts.begin(), "auto");
  command
      ->add_option("--layout", arguments->layout, "How the weights are named and packed, e.g. bert; or auto")
      ->check(CLI::IsMember(layouts))
      ->type_name("NAME");
  command->add_option("--num-heads", arguments->num_heads, "Number of heads instead of the case's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command
      ->add_option("--engine", arguments->engine,
                   "What computes: lesson, step by step; or fused, whose outputs are compared by tolerance")
      ->check(CLI::IsMember({"lesson", "fused"}))
      ->capture_default_str();
  command->add_option("--device", arguments->device, "Compute there instead of on the case's device")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--threads", arguments->threads, "Number of threads instead of the case's")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--require", arguments->require,
                   "What must hold; by default bits in the case's own environment, else tolerance")
      ->check(CLI::IsMember({"bit-exact", "tolerance"}));
  command->add_option("--json", arguments->json, "Write the report as JSON to FILE, or - for standard output")
      ->check(not_empty)
      ->type_name("FILE");
  command->footer(
      "Exit status: 0 all passed, 1 something differs, 2 bad usage or unreadable input.\n"
      "Example: mha verify build/cases/*.safetensors --require bit-exact");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace mha::cli
