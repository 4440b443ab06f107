#include "cli/report_json.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "mha/error.h"
#include "support/quote.h"

namespace mha::cli {
namespace {

using nlohmann::ordered_json;
using parity::CaseReport;
using parity::TensorReport;

/// JSON has no NaN and no infinity: they are strings.
ordered_json number(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  return value;
}

ordered_json tensor_json(const TensorReport& tensor) {
  const bool compared = tensor.verdict != parity::Verdict::not_comparable;
  const auto if_compared = [&](const ordered_json& value) { return compared ? value : ordered_json(); };
  ordered_json json;
  json["name"] = tensor.name;
  json["dtype"] = tensor.dtype;
  json["shape"] = tensor.shape;
  json["verdict"] = parity::verdict_text(tensor.verdict);
  json["max_abs"] = if_compared(number(tensor.max_abs));
  json["max_rel"] = if_compared(number(tensor.max_rel));
  json["max_ulp"] = tensor.max_ulp ? if_compared(*tensor.max_ulp) : ordered_json();
  json["index"] = tensor.mismatched > 0 ? ordered_json(tensor.index) : ordered_json();
  json["mismatched"] = if_compared(tensor.mismatched);
  json["total"] = if_compared(tensor.total);
  json["nan"] = if_compared({tensor.non_finite.nan, tensor.reference_non_finite.nan});
  json["inf"] = if_compared({tensor.non_finite.inf, tensor.reference_non_finite.inf});
  json["all_zero"] = tensor.all_zero;
  json["note"] = tensor.note;
  return json;
}

ordered_json case_json(const CaseReport& report) {
  ordered_json json;
  json["case"] = report.name;
  json["engine"] = report.engine;
  json["weights"] = report.weights;
  json["verdict"] = parity::verdict_text(report.verdict);
  json["required"] = report.bits_required ? "bit-exact" : "tolerance";
  json["environment"] = {{"torch_version", report.environment.torch_version},
                         {"cpu_model", report.environment.cpu_model},
                         {"num_threads", report.environment.num_threads},
                         {"device", report.environment.device},
                         {"differences", report.differences}};
  json["first_divergence"] =
      report.first_divergence
          ? ordered_json({{"name", report.first_divergence->name}, {"hint", report.first_divergence->hint}})
          : ordered_json();
  if (!report.error.empty()) {
    json["error"] = report.error;
  }
  json["tensors"] = ordered_json::array();
  for (const auto& tensor : report.tensors) {
    json["tensors"].push_back(tensor_json(tensor));
  }
  return json;
}

}  // namespace

JsonOutput::JsonOutput(const std::string& path) : to_standard_output_(path == "-") {
  if (!path.empty() && !to_standard_output_) {
    // A case named after --json by mistake must not be lost.
    std::ifstream existing(path, std::ios::binary);
    if (existing.peek() != std::ifstream::traits_type::eof() && existing.get() != '{') {
      throw Error(show(path) +
                  ": expected a new file or an earlier report to write JSON to, found another file");
    }
    file_.emplace(path);
  }
}

void JsonOutput::write(const std::vector<CaseReport>& reports) {
  ordered_json json;
  json["format"] = "mha.report/1";
  json["verdict"] = parity::verdict_text(parity::overall(reports));
  json["cases"] = ordered_json::array();
  for (const auto& report : reports) {
    json["cases"].push_back(case_json(report));
  }
  write(json);
}

void JsonOutput::write(const ordered_json& json) {
  if (!to_standard_output_ && !file_) {
    return;
  }
  // Names from files may hold anything: ASCII is harmless on every terminal, and what is not UTF-8 is
  // replaced.
  const auto text = json.dump(2, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace) + "\n";
  if (to_standard_output_) {
    print(stdout, text);
    return;
  }
  file_->write(text.data(), text.size());
  file_->commit();
}

}  // namespace mha::cli
