#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "mha/parity.h"
#include "parity/elements.h"
#include "parity/tolerance.h"
#include "text/dtype_text.h"
#include "text/shape_text.h"

namespace mha::parity {
namespace {

using torch::Tensor;

/// The same numbers, contiguous on the CPU, in a dtype that elements are compared in.
Tensor comparable(const Tensor& tensor) {
  auto plain = tensor.detach().to(torch::kCPU).resolve_conj().resolve_neg().contiguous();
  if (plain.is_complex()) {
    plain = torch::view_as_real(plain);
  } else if (c10::isFloat8Type(plain.scalar_type())) {
    plain = plain.to(torch::kFloat);  // exact
  }
  return plain;
}

std::vector<int64_t> unravel(int64_t flat, c10::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    index[i] = flat % sizes[i];
    flat /= sizes[i];
  }
  return index;
}

std::string number_text(double value) {
  std::ostringstream stream;
  stream.precision(3);
  stream << value;
  return stream.str();
}

/// What breaks the rule of the float64 twin, if anything.
std::optional<std::string> twin_violation(const Tensor& ours, const Tensor& reference, const Tensor& twin) {
  const auto c = ours.to(torch::kDouble);
  const auto p = reference.to(torch::kDouble);
  const auto f = twin.to(torch::kDouble);
  const auto finite = c.isfinite() & p.isfinite();
  auto bounded = finite & f.isfinite();
  const auto largest = [&](const Tensor& values) {
    return bounded.any().item<bool>() ? values.abs().masked_select(bounded).max().item<double>() : 0.0;
  };
  const auto reference_error = largest(p - f);
  const auto largest_value = largest(f);
  if (reference_error > twin_largest_share * largest_value) {
    bounded.zero_();
  }
  // Where the twin bounds nothing, the defaults do.
  const auto defaults = default_tolerance(reference.scalar_type());
  const auto apart = (c - p).abs() > defaults.absolute + defaults.relative * p.abs();
  if ((apart & finite & ~bounded).any().item<bool>()) {
    return "beyond the default tolerance, and the float64 twin cannot help: it is not finite, or the "
           "reference is far "
           "from it";
  }
  const auto error = largest(c - f);
  const auto allowed =
      twin_error_factor * reference_error + twin_roundings * epsilon(reference.scalar_type()) * largest_value;
  if (error <= allowed) {
    return std::nullopt;
  }
  return "error against float64 is " + number_text(error) + ", allowed " + number_text(allowed);
}

/// Whether elements with other bits are close enough; sets verdict and note.
void judge(const ElementStatistics& statistics, const Tensor& ours, const Tensor& reference, const Rule& rule,
           TensorReport& report) {
  report.verdict = Verdict::mismatch;
  if (rule.requirement == Requirement::bit_exact) {
    return;
  }
  if (statistics.non_finite_mismatched > 0) {
    report.note = "NaN or infinity on one side only";
    return;
  }
  std::optional<std::string> violation;
  if (rule.tolerance) {
    const auto allowed = *rule.tolerance * std::max(1.0, statistics.max_reference);
    if (!(statistics.max_abs <= allowed)) {
      violation = "max abs is over the tolerance " + number_text(allowed);
    }
  } else if (rule.float64.defined()) {
    violation = twin_violation(ours, reference, comparable(rule.float64));
  } else if (statistics.beyond > 0) {
    violation =
        std::to_string(statistics.beyond) + " elements beyond the default tolerance of " + report.dtype;
  }
  if (violation) {
    report.note = *violation;
  } else {
    report.verdict = Verdict::within_tolerance;
  }
}

}  // namespace

TensorReport compare(const std::string& name, const Tensor& ours, const Tensor& reference, const Rule& rule) {
  TensorReport report;
  report.name = name;
  if (!ours.defined() || !reference.defined()) {
    report.note = ours.defined() ? "missing in the reference" : "missing here";
    if (ours.defined()) {
      report.dtype = dtype_text(ours.scalar_type());
      report.shape = ours.sizes().vec();
    }
    return report;
  }
  report.dtype = dtype_text(ours.scalar_type());
  report.shape = ours.sizes().vec();
  if (ours.sizes() != reference.sizes()) {
    report.note = "the reference has shape " + shape_text(reference.sizes());
    return report;
  }
  if (ours.scalar_type() != reference.scalar_type()) {
    report.note = "the reference is " + dtype_text(reference.scalar_type());
    return report;
  }
  TORCH_CHECK_VALUE(!rule.float64.defined() || rule.float64.sizes() == reference.sizes(), name,
                    ": expected a float64 twin of shape ", shape_text(reference.sizes()), ", found ",
                    shape_text(rule.float64.sizes()));
  const auto left = comparable(ours);
  const auto right = comparable(reference);
  const auto statistics = compare_elements(left, right, default_tolerance(ours.scalar_type()));
  report.total = left.numel();
  report.mismatched = statistics.mismatched;
  report.max_abs = statistics.max_abs;
  report.max_rel = statistics.max_rel;
  report.max_ulp = statistics.max_ulp;
  report.non_finite = statistics.ours;
  report.reference_non_finite = statistics.reference;
  report.all_zero = statistics.all_zero && report.total > 0;
  if (statistics.mismatched == 0) {
    report.verdict = Verdict::bit_exact;
    return report;
  }
  report.index = unravel(statistics.worst, left.sizes());
  judge(statistics, left, right, rule, report);
  return report;
}

CaseReport compare(const StateDict& ours, const StateDict& reference) {
  CaseReport report;
  report.bits_required = true;
  for (const auto& item : ours) {
    const auto* other = reference.find(item.key());
    report.tensors.push_back(compare(item.key(), item.value(), other == nullptr ? Tensor() : *other));
  }
  for (const auto& item : reference) {
    if (!ours.contains(item.key())) {
      auto missing = compare(item.key(), Tensor(), item.value());
      missing.dtype = dtype_text(item.value().scalar_type());
      missing.shape = item.value().sizes().vec();
      report.tensors.push_back(std::move(missing));
    }
  }
  report.verdict = overall(report.tensors);
  for (const auto& tensor : report.tensors) {
    if (!passed(tensor.verdict)) {
      report.first_divergence = Divergence{.name = tensor.name, .hint = tensor.note};
      break;
    }
  }
  return report;
}

}  // namespace mha::parity
