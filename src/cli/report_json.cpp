#include "cli/report_json.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "weights/atomic_file.h"

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
  ordered_json json;
  json["name"] = tensor.name;
  json["dtype"] = tensor.dtype;
  json["shape"] = tensor.shape;
  json["verdict"] = parity::verdict_text(tensor.verdict);
  json["max_abs"] = number(tensor.max_abs);
  json["max_rel"] = number(tensor.max_rel);
  json["max_ulp"] = tensor.max_ulp ? ordered_json(*tensor.max_ulp) : ordered_json();
  json["index"] = tensor.mismatched > 0 ? ordered_json(tensor.index) : ordered_json();
  json["mismatched"] = tensor.mismatched;
  json["total"] = tensor.total;
  json["nan"] = {tensor.non_finite.nan, tensor.reference_non_finite.nan};
  json["inf"] = {tensor.non_finite.inf, tensor.reference_non_finite.inf};
  json["all_zero"] = tensor.all_zero;
  json["note"] = tensor.note;
  return json;
}

ordered_json case_json(const CaseReport& report) {
  ordered_json json;
  json["case"] = report.name;
  json["engine"] = report.engine;
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
  json["tensors"] = ordered_json::array();
  for (const auto& tensor : report.tensors) {
    json["tensors"].push_back(tensor_json(tensor));
  }
  return json;
}

}  // namespace

void write_json(const std::vector<CaseReport>& reports, const std::string& path) {
  auto worst = parity::Verdict::bit_exact;
  ordered_json json;
  json["format"] = "mha.report/1";
  json["verdict"] = "";
  json["cases"] = ordered_json::array();
  for (const auto& report : reports) {
    worst = std::max(worst, report.verdict);
    json["cases"].push_back(case_json(report));
  }
  json["verdict"] = parity::verdict_text(worst);
  // Names from files may hold anything: what is not UTF-8 is replaced, never thrown at.
  const auto text = json.dump(2, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  weights::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace mha::cli
