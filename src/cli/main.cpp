#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>

#include "cli/commands.h"

namespace {

/// One line on standard error, whatever the message held.
int fail(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "mha: {}\n", message);
  return mha::cli::bad_usage;
}

int run(int argc, char** argv) {
  int exit_status = mha::cli::all_passed;
  CLI::App app("Multi-head attention for LibTorch: proof that C++ computes what Python computed", "mha");
  app.set_version_flag("--version", fmt::format("mha {} (LibTorch {}, {})", MHA_VERSION, TORCH_VERSION,
                                                at::get_cpu_capability()));
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  mha::cli::add_verify(app, exit_status);
  mha::cli::add_diff(app, exit_status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error);  // --help and --version
    }
    return fail(std::string(error.what()) + " (see mha --help)");
  }
  return exit_status;
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
