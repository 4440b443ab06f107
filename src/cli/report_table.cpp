#include "cli/report_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "cli/table.h"
#include "cli/text.h"
#include "support/quote.h"
#include "support/shape_text.h"

namespace mha::cli {
namespace {

using parity::CaseReport;
using parity::TensorReport;
using parity::Verdict;

std::string painted(Verdict verdict, bool color) {
  const auto text = parity::verdict_text(verdict);
  if (!color) {
    return std::string(text);
  }
  const char* code = verdict == Verdict::bit_exact          ? "32"
                     : verdict == Verdict::within_tolerance ? "33"
                                                            : "31";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

constexpr size_t verdict_column = 3;

std::string remarks(const TensorReport& tensor) {
  std::string text;
  const auto add = [&](const std::string& remark) { text += (text.empty() ? "" : "; ") + remark; };
  if (!tensor.note.empty()) {
    add(tensor.note);
  }
  if (tensor.mismatched > 0) {
    add("worst at " + shape_text(tensor.index));
  }
  if (tensor.non_finite != tensor.reference_non_finite) {
    add(fmt::format("NaN {} and inf {} here, {} and {} in the reference", tensor.non_finite.nan,
                    tensor.non_finite.inf, tensor.reference_non_finite.nan, tensor.reference_non_finite.inf));
  } else if (tensor.non_finite != parity::NonFinite{}) {
    add(fmt::format("NaN {}, inf {} on both sides", tensor.non_finite.nan, tensor.non_finite.inf));
  }
  if (tensor.verdict != Verdict::not_comparable && tensor.total == 0) {
    add("empty");
  }
  if (tensor.all_zero) {
    add("all zeros on both sides");
  }
  return text;
}

std::vector<std::string> cells(const TensorReport& tensor) {
  const bool compared = tensor.verdict != Verdict::not_comparable;
  return {escape(tensor.name),
          tensor.dtype.empty() ? "" : shape_text(tensor.shape),
          tensor.dtype,
          std::string(parity::verdict_text(tensor.verdict)),
          compared ? fmt::format("{:.3g}", tensor.max_abs) : "",
          compared && tensor.max_ulp ? fmt::format("{}", *tensor.max_ulp) : "",
          compared ? fmt::format("{} / {}", grouped(tensor.mismatched), grouped(tensor.total)) : ""};
}

std::string table_text(const std::vector<TensorReport>& tensors, bool color) {
  Table table({{"tensor"},
               {"shape"},
               {"dtype"},
               {"verdict"},
               {"max abs", Align::right},
               {"max ULP", Align::right},
               {"mismatched", Align::right}});
  for (const auto& tensor : tensors) {
    table.add(cells(tensor), remarks(tensor));
  }
  return table.text([&](size_t row, size_t column, const std::string& cell) {
    return column == verdict_column ? painted(tensors[row].verdict, color) : cell;
  });
}

/// `21 tensors, 1,234,567 elements`.
std::string amount(const std::vector<TensorReport>& tensors) {
  int64_t elements = 0;
  for (const auto& tensor : tensors) {
    elements += tensor.total;
  }
  return counted(tensors.size(), "tensor") + ", " + counted(static_cast<size_t>(elements), "element");
}

}  // namespace

std::string report_text(const CaseReport& report, bool color) {
  std::string text = fmt::format("case         {}\n", escape(report.name, std::string::npos));
  if (!report.description.empty()) {
    text += fmt::format("module       {}\n", report.description);
    if (!report.weights.empty()) {
      text += fmt::format("weights      {}\n", escape(report.weights, std::string::npos));
    }
    text += fmt::format(
        "environment  LibTorch {}, {}: ", report.environment.torch_version,
        report.environment.cpu_model.empty() ? "unknown processor" : report.environment.cpu_model);
    text += report.differences.empty() ? "as in the case\n"
                                       : fmt::format("not the case's\n             {}\n",
                                                     fmt::join(report.differences, "\n             "));
  }
  text += fmt::format("required     {}\n\n", report.bits_required ? "bits" : "tolerance");
  text += table_text(report.tensors, color) + "\n";
  if (report.first_divergence) {
    text += fmt::format("first divergence: {}{}{}\n", escape(report.first_divergence->name),
                        report.first_divergence->hint.empty() ? "" : ": ",
                        one_line(report.first_divergence->hint));
  }
  if (report.verdict == Verdict::not_comparable && !report.first_divergence) {
    text += "nothing was compared: no tensor has an element\n";
  }
  text += fmt::format("verdict: {} ({})\n", painted(report.verdict, color), amount(report.tensors));
  return text;
}

std::string summary_line(const CaseReport& report, bool color) {
  const auto text = parity::verdict_text(report.verdict);
  constexpr size_t widest = 16;
  return fmt::format("{}{}  {}  ({})\n", painted(report.verdict, color),
                     std::string(widest - std::min(widest, text.size()), ' '),
                     escape(report.name, std::string::npos), amount(report.tensors));
}

std::string totals_line(const std::vector<CaseReport>& reports, bool color) {
  std::array<size_t, 4> counts{};
  for (const auto& report : reports) {
    ++counts.at(static_cast<size_t>(report.verdict));
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts.at(i) > 0) {
      parts.push_back(fmt::format("{} {}", counts.at(i), parity::verdict_text(static_cast<Verdict>(i))));
    }
  }
  return fmt::format("verdict: {} ({} cases: {})\n", painted(parity::overall(reports), color), reports.size(),
                     fmt::join(parts, ", "));
}

}  // namespace mha::cli
