#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "mha/parity.h"
#include "parity/elements.h"
#include "parity/tolerance.h"
#include "support/dtype_text.h"
#include "support/shape_text.h"

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

/// What keeps elements with other bits from passing, if anything.
std::optional<std::string> violation(const ElementStatistics& statistics, const Tensor& ours,
                                     const Tensor& reference, const Rule& rule) {
  if (statistics.non_finite_mismatched > 0) {
    return "NaN or infinity that the other side does not have";
  }
  if (rule.tolerance) {
    const auto allowed = *rule.tolerance * std::max(1.0, statistics.max_reference);
    return statistics.max_abs <= allowed
               ? std::nullopt
               : std::optional("max abs is over the tolerance " + number_text(allowed));
  }
  auto against_twin =
      rule.float64.defined() ? twin_violation(ours, reference, comparable(rule.float64)) : std::nullopt;
  const bool twin_passes = rule.float64.defined() && !against_twin;
  if (twin_passes || statistics.max_abs <= scale_roundings * epsilon(reference.scalar_type()) * rule.scale) {
    return std::nullopt;
  }
  if (against_twin) {
    return against_twin;
  }
  if (statistics.beyond > 0) {
    return std::to_string(statistics.beyond) + " elements beyond the default tolerance of " +
           dtype_text(reference.scalar_type());
  }
  return std::nullopt;
}

/// Why a tensor has no elements to compare; empty when it has.
std::string obstacle(const Tensor& tensor) {
  if (tensor.layout() != torch::kStrided || tensor.is_nested()) {
    return "not a dense tensor";
  }
  return tensor.is_meta() ? "a meta tensor, without data" : tensor.is_quantized() ? "a quantized tensor" : "";
}

}  // namespace

TensorReport compare(const std::string& name, const Tensor& ours, const Tensor& reference, const Rule& rule) {
  TensorReport report;
  report.name = name;
  if (!ours.defined() || !reference.defined()) {
    report.note = ours.defined() ? "missing in the reference" : "missing here";
    const auto& present = ours.defined() ? ours : reference;
    if (present.defined()) {
      report.dtype = dtype_text(present.scalar_type());
      report.shape = present.sizes().vec();
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
  if (const auto why = obstacle(ours).empty() ? obstacle(reference) : obstacle(ours); !why.empty()) {
    report.note = why;
    return report;
  }
  const auto left = comparable(ours);
  const auto right = comparable(reference);
  const auto statistics = compare_elements(left, right, default_tolerance(ours.scalar_type()));
  report.total = ours.numel();
  report.mismatched = statistics.mismatched;
  report.max_abs = statistics.max_abs;
  report.max_rel = statistics.max_rel;
  // Those that were widened to be compared have no distance of their own.
  report.max_ulp = left.scalar_type() == ours.scalar_type() ? statistics.max_ulp : std::nullopt;
  report.non_finite = statistics.ours;
  report.reference_non_finite = statistics.reference;
  report.all_zero = statistics.all_zero && report.total > 0;
  if (statistics.mismatched == 0) {
    report.verdict = Verdict::bit_exact;
    return report;
  }
  report.index = unravel(statistics.worst, left.sizes());
  report.index.resize(static_cast<size_t>(ours.dim()));  // a complex number is one element
  const auto why = rule.requirement == Requirement::bit_exact ? std::optional(std::string())
                                                              : violation(statistics, left, right, rule);
  report.verdict = why ? Verdict::mismatch : Verdict::within_tolerance;
  report.note = why.value_or("");
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
      report.tensors.push_back(compare(item.key(), Tensor(), item.value()));
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
