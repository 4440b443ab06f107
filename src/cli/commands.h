// The subcommands: each adds itself to the parser and runs when it was chosen.
#pragma once

#include <CLI/CLI.hpp>

namespace mha::cli {

/// Exit statuses of the tool.
enum ExitStatus { all_passed = 0, something_differs = 1, bad_usage = 2 };

void add_verify(CLI::App& app, int& exit_status);
void add_diff(CLI::App& app, int& exit_status);

}  // namespace mha::cli
