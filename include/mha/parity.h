/// Proof that C++ computes what Python computed: read a reference case, compute it here, compare, report.
///
///     const auto reference = mha::parity::read_case("case.safetensors");
///     const auto report = mha::parity::verify(reference);
///     if (report.verdict != mha::parity::Verdict::bit_exact) { ... report.first_divergence->name ... }
///
/// Files that cannot be used are `mha::Error`.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mha/export.h"
#include "mha/report.h"
#include "mha/state_dict.h"

namespace mha::parity {

/// What must hold for a tensor to pass.
enum class Requirement : std::uint8_t { bit_exact, tolerance };

/// How far a tensor may be from its reference. What any of the given bounds allows passes; with none given, the
/// defaults of `torch.testing.assert_close` by dtype decide.
struct MHA_EXPORT Rule {
  Requirement requirement = Requirement::bit_exact;
  /// t: max|ours - reference| <= t * max(1, max|reference|), and nothing else.
  std::optional<double> tolerance;
  /// f, the same computed in float64: max|ours - f| <= 2 max|reference - f| + 8 eps max|f|.
  torch::Tensor float64;
  /// Size of the numbers that were added up to make the tensor, when known: max|ours - reference| <= 8 eps scale.
  /// Rounding leaves such differences even where the sums cancel.
  double scale = 0;
};

/// Compares any two tensors, on any devices. NaN equals NaN at the same index; -0 and +0 have other bits, 0
/// ULP apart. Where one is NaN or infinite and the other is not the same, no tolerance passes.
MHA_EXPORT TensorReport compare(const std::string& name, const torch::Tensor& ours,
                                const torch::Tensor& reference, const Rule& rule = {});

/// Compares all tensors of two state dicts by name, bits required. Names that one side lacks are
/// `not_comparable`.
MHA_EXPORT CaseReport compare(const StateDict& ours, const StateDict& reference);

/// A reference case as `scripts/export_reference.py` writes it.
struct MHA_EXPORT ReferenceCase {
  std::filesystem::path path;
  int64_t d_model = 0;
  int64_t num_heads = 0;
  double dropout = 0;
  bool train = false;
  torch::ScalarType dtype = torch::kFloat;
  Environment environment;  ///< of the run that computed the reference
  std::optional<uint64_t> seed;
  std::optional<uint64_t> init_seed;
  std::optional<double> tolerance;
  std::string weights_file;
  std::string prefix;
  std::string layout;                                   ///< of the weights file; empty: the lesson's names
  std::map<std::string, std::vector<int64_t>> strides;  ///< by input name
  StateDict tensors;                                    ///< all tensors, by their names in the file
};

/// Reads and checks a case: format, metadata, and every tensor's name. Throws `mha::Error`.
MHA_EXPORT ReferenceCase read_case(const std::filesystem::path& path);

/// What computes a case.
enum class Engine : std::uint8_t {
  lesson,  ///< `mha::MultiHeadAttention`: every step and gradient is compared
  fused,   ///< `mha::FusedMultiHeadAttention`: outputs are, by tolerance, of cases in eval mode
};

/// `lesson`, `fused`.
MHA_EXPORT std::string_view engine_text(Engine engine);

/// What to change about a case when verifying it.
struct MHA_EXPORT VerifyOptions {
  std::filesystem::path weights;        ///< read the weights from here instead
  std::optional<std::string> prefix;    ///< of the weights' names
  std::string layout;                   ///< of the weights, a name or auto; empty: the case's
  std::optional<int64_t> num_heads;     ///< instead of the case's
  std::optional<torch::Device> device;  ///< instead of the case's
  std::optional<int> num_threads;       ///< instead of the case's
  std::optional<Requirement> require;   ///< instead of what follows from the environment
  Engine engine = Engine::lesson;
};

/// Computes `reference` and compares all that it holds and the engine has.
///
/// Bits are required of the lesson when the environment equals the case's and the case states no tolerance. The
/// number of threads is the case's during the call and what it was after it. Autocast, InferenceMode and another
/// default dtype of the caller do not reach the computation. Seeds LibTorch's default generators when the case has
/// a seed, so two calls must not run at once.
/// Throws `mha::Error` when the case or its weights cannot be used, and `c10::ValueError` when bits are required of
/// the fused engine.
MHA_EXPORT CaseReport verify(const ReferenceCase& reference, const VerifyOptions& options = {});

/// The environment of this process when computing on `device`.
MHA_EXPORT Environment current_environment(torch::Device device);

}  // namespace mha::parity
