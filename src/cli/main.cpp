#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "support/quote.h"

namespace mha::cli {

void report_error(const std::string& message) {
  // Where even this cannot be written the exit status still tells.
  static_cast<void>(std::fputs(("mha: " + one_line(message) + "\n").c_str(), stderr));
}

const CLI::Validator not_empty(
    [](const std::string& text) {
      return text.empty() ? std::string("expected a value, found an empty one") : "";
    },
    "");

}  // namespace mha::cli

namespace {

int fail(const std::string& message) {
  mha::cli::report_error(message);
  return mha::cli::bad_usage;
}

int run(int argc, char** argv) {
  int exit_status = mha::cli::all_passed;
  CLI::App app("Multi-head attention for LibTorch: proof that C++ computes what Python computed", "mha");
  app.set_version_flag("--version", fmt::format("mha {} (LibTorch {}, {})", MHA_VERSION, TORCH_VERSION,
                                                at::get_cpu_capability()));
  app.footer(
      "Exit status: 0 all passed, 1 something differs, 2 bad usage or unreadable input.\n"
      "mha COMMAND --help tells more about a command.\n"
      "\n"
      "From a Python model's file to proof that C++ computes the same:\n"
      "  mha inspect model.bin                                        what is in it\n"
      "  mha convert model.bin attention.safetensors --prefix PREFIX  one attention block, by the lesson's "
      "names\n"
      "  mha diff attention.safetensors other.safetensors             the same weights?\n"
      "  mha verify case.safetensors --weights attention.safetensors  the same numbers?");
  app.get_formatter()->column_width(34);
  mha::cli::add_verify(app, exit_status);
  mha::cli::add_diff(app, exit_status);
  mha::cli::add_inspect(app, exit_status);
  mha::cli::add_convert(app, exit_status);
  mha::cli::add_bench(app, exit_status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error);  // --help and --version
    }
    return fail(std::string(error.what()) + " (see mha --help)");
  }
  // Checked here and not by CLI11, which would not name an unknown command.
  return app.get_subcommands().empty() ? fail("expected a command, found none (see mha --help)")
                                       : exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
