/// What a comparison found, as plain data: nothing here needs LibTorch, so reports can be printed or stored
/// anywhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mha/export.h"

namespace mha::parity {

/// From best to worst.
enum class Verdict : std::uint8_t {
  bit_exact,         ///< the same bits everywhere; NaN equals NaN whatever its payload
  within_tolerance,  ///< other bits, no further apart than the rule allows
  mismatch,          ///< further apart, or other bits where bits are required
  not_comparable,    ///< missing on one side, another shape or dtype, or nothing to compare
};

/// `bit-exact`, `within tolerance`, `MISMATCH`, `not comparable`.
MHA_EXPORT std::string_view verdict_text(Verdict verdict);

/// True for `bit_exact` and `within_tolerance`.
MHA_EXPORT bool passed(Verdict verdict);

/// How many elements of a tensor are not finite.
struct MHA_EXPORT NonFinite {
  int64_t nan = 0;
  int64_t inf = 0;

  bool operator==(const NonFinite&) const = default;
};

/// One tensor against its reference.
struct MHA_EXPORT TensorReport {
  std::string name;
  std::string dtype;           ///< of ours, by its PyTorch name, e.g. float32
  std::vector<int64_t> shape;  ///< of ours
  Verdict verdict = Verdict::not_comparable;
  double max_abs = 0;  ///< largest |ours - reference|; NaN where a NaN stands against a number
  double max_rel = 0;  ///< largest |ours - reference| / |reference|
  std::optional<uint64_t>
      max_ulp;                 ///< largest distance in representable numbers; absent for other than floats
  std::vector<int64_t> index;  ///< where max_abs is; empty when the bits are equal
  int64_t mismatched = 0;      ///< elements whose bits differ
  int64_t total = 0;           ///< elements compared
  NonFinite non_finite;
  NonFinite reference_non_finite;
  bool all_zero = false;  ///< zeros on both sides, which proves little
  std::string note;       ///< why it is not comparable, or which tolerance was exceeded
};

/// The first tensor in the order of computation that differs, and what usually causes it.
struct MHA_EXPORT Divergence {
  std::string name;
  std::string hint;
};

/// Where and with what something was computed. An empty text or a 0 is unknown.
struct MHA_EXPORT Environment {
  std::string torch_version;
  std::string build;
  std::string cpu_model;
  int num_threads = 0;
  std::string device;
  /// Switches that change the last bits, by their names in a case: `float32_matmul_precision`, `deterministic`,
  /// `mkldnn`, `MKL_CBWR`, `ONEDNN_MAX_CPU_ISA`. One that is absent is unknown.
  std::map<std::string, std::string> settings;
};

/// One reference case, or one pair of files.
struct MHA_EXPORT CaseReport {
  std::string name;
  std::string engine;
  std::string description;  ///< the module and how it ran, for people
  std::string weights;      ///< where its weights are from, for people; empty: the case itself
  Verdict verdict = Verdict::not_comparable;
  bool bits_required = false;
  Environment environment;               ///< of this run
  std::vector<std::string> differences;  ///< between the case's environment and this run's, one sentence each
  std::optional<Divergence> first_divergence;
  std::string error;  ///< why nothing was compared: the case could not be read or used
  std::vector<TensorReport> tensors;
};

/// The worst verdict among the tensors; `not_comparable` when not a single element was compared.
MHA_EXPORT Verdict overall(const std::vector<TensorReport>& tensors);

/// The worst verdict among the cases.
MHA_EXPORT Verdict overall(const std::vector<CaseReport>& cases);

}  // namespace mha::parity
