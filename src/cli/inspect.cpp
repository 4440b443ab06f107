#include <memory>

#include "cli/commands.h"
#include "cli/inspection.h"
#include "cli/inspection_json.h"
#include "cli/inspection_text.h"
#include "cli/output.h"
#include "cli/sha256.h"
#include "mha/error.h"

namespace mha::cli {
namespace {

struct InspectArguments {
  std::string file;
  bool json = false;
  InspectionOptions options;
};

int run(const InspectArguments& arguments) {
  if (arguments.options.hash && !has_sha256()) {
    throw Error("--hash: expected a tool that was built with OpenSSL, found one without");
  }
  const auto inspection = inspect(arguments.file, arguments.options);
  print(stdout, arguments.json ? inspection_json(inspection) : inspection_text(inspection));
  return all_passed;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_status) {
  auto arguments = std::make_shared<InspectArguments>();
  auto* command = app.add_subcommand(
      "inspect", "Show the tensors and the attention blocks in a weights file, whatever its format");
  command->add_option("FILE", arguments->file, "Any readable file")->required();
  command->add_flag("--json", arguments->json, "Write nothing but one JSON object, for programs");
  command->add_flag("--hash", arguments->options.hash,
                    "Add the SHA-256 of each tensor's values (row-major, little-endian)");
  command->add_flag("--verify-checksums", arguments->options.verify_checksums,
                    "Compare the checksums of a zip archive's entries too; it reads all bytes");
  command->footer(
      "Reads safetensors and every file that PyTorch writes; no code in a file is run. num_heads is in no\n"
      "such file: it is shown when a config.json beside the file tells it.\n"
      "\n"
      "Exit status: 0 read, 1 never, 2 bad usage or unreadable input.\n"
      "Examples: mha inspect model.safetensors | less -S\n"
      "          mha inspect pytorch_model.bin --json --hash > model.json");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace mha::cli
