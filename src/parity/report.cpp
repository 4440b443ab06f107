#include "mha/report.h"

#include <algorithm>

namespace mha::parity {

std::string_view verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::bit_exact:
      return "bit-exact";
    case Verdict::within_tolerance:
      return "within tolerance";
    case Verdict::mismatch:
      return "MISMATCH";
    case Verdict::not_comparable:
      break;
  }
  return "not comparable";
}

bool passed(Verdict verdict) {
  return verdict == Verdict::bit_exact || verdict == Verdict::within_tolerance;
}

Verdict overall(const std::vector<TensorReport>& tensors) {
  auto worst = Verdict::bit_exact;
  int64_t total = 0;
  for (const auto& tensor : tensors) {
    worst = std::max(worst, tensor.verdict);
    total += tensor.total;
  }
  // No comparison passes on nothing.
  return total == 0 ? Verdict::not_comparable : worst;
}

Verdict overall(const std::vector<CaseReport>& cases) {
  auto worst = Verdict::bit_exact;
  for (const auto& report : cases) {
    worst = std::max(worst, report.verdict);
  }
  return cases.empty() ? Verdict::not_comparable : worst;
}

}  // namespace mha::parity
