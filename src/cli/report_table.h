// Reports as text for people.
#pragma once

#include <string>
#include <vector>

#include "mha/report.h"

namespace mha::cli {

/// The whole report of one case: what ran, a line for each tensor, the first divergence, the verdict.
std::string report_text(const parity::CaseReport& report, bool color);

/// One line: verdict and case, for runs over many.
std::string summary_line(const parity::CaseReport& report, bool color);

/// The last line of a run over several cases.
std::string totals_line(const std::vector<parity::CaseReport>& reports, bool color);

}  // namespace mha::cli
