#include <memory>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/report_json.h"
#include "cli/report_table.h"
#include "mha/parity.h"
#include "mha/weights.h"

namespace mha::cli {
namespace {

struct DiffArguments {
  std::string a;
  std::string b;
  std::string json;
};

int run(const DiffArguments& arguments) {
  JsonOutput json(arguments.json);
  auto report = parity::compare(read_weights(arguments.a), read_weights(arguments.b));
  report.name = arguments.a + " against " + arguments.b;
  report.engine = "none";
  std::FILE* const stream = arguments.json == "-" ? stderr : stdout;
  print(stream, report_text(report, use_color(stream)));
  json.write({report});
  return parity::passed(report.verdict) ? all_passed : something_differs;
}

}  // namespace

void add_diff(CLI::App& app, int& exit_status) {
  auto arguments = std::make_shared<DiffArguments>();
  auto* command =
      app.add_subcommand("diff", "Compare the tensors of two files by name, bit for bit (NaN equals NaN)");
  command->add_option("A", arguments->a, "Any readable file")->required();
  command->add_option("B", arguments->b, "The reference")->required();
  command->add_option("--json", arguments->json, "Write the report as JSON to FILE, or - for standard output")
      ->check(not_empty)
      ->type_name("FILE");
  command->footer(
      "Exit status: 0 all tensors are equal, 1 something differs, 2 bad usage or unreadable input.");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace mha::cli
