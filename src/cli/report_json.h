// Reports for programs: the format mha.report/1.
#pragma once

#include <string>
#include <vector>

#include "mha/report.h"

namespace mha::cli {

/// Writes the reports to `path`, or to standard output when it is `-`. Throws `mha::Error`.
void write_json(const std::vector<parity::CaseReport>& reports, const std::string& path);

}  // namespace mha::cli
