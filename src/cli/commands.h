// The subcommands: each adds itself to the parser and runs when it was chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace mha::cli {

/// Exit statuses of the tool.
enum ExitStatus : int { all_passed = 0, something_differs = 1, bad_usage = 2 };

/// One line on standard error, `mha: ...`, whatever the message holds.
void report_error(const std::string& message);

/// Refuses an empty text, such as a shell variable that was never set.
extern const CLI::Validator not_empty;

void add_verify(CLI::App& app, int& exit_status);
void add_diff(CLI::App& app, int& exit_status);
void add_inspect(CLI::App& app, int& exit_status);
void add_convert(CLI::App& app, int& exit_status);
void add_bench(CLI::App& app, int& exit_status);

}  // namespace mha::cli
