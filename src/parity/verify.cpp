#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>

#include "mha/attention.h"
#include "mha/error.h"
#include "mha/fused.h"
#include "mha/parity.h"
#include "mha/weights.h"
#include "parity/environment.h"
#include "parity/guards.h"
#include "parity/hints.h"
#include "parity/inputs.h"
#include "parity/reference_case.h"
#include "parity/tolerance.h"
#include "support/quote.h"

namespace mha::parity {
namespace {

using torch::Tensor;

/// One verification: the reference, what is asked of it, and the report as it grows.
class Verification {
 public:
  Verification(const ReferenceCase& reference, const VerifyOptions& options)
      : reference_(reference),
        options_(options),
        device_(choose_device()),
        plain_mode_(device_),
        threads_(choose_threads()) {}

  CaseReport run() {
    report_.name = reference_.path.string();
    report_.engine = engine_text(options_.engine);
    if (is_fused() && reference_.train) {
      fail("expected an eval-mode case for the fused engine, which is for inference, found mode train");
    }
    compare_environments();
    auto module = make_module();
    const auto inputs = rebuild_inputs(reference_, device_);
    if (is_fused()) {
      compare_fused(module, inputs);
    } else {
      compare_lesson(module, inputs);
    }
    report_.verdict = overall(report_.tensors);
    name_first_divergence(module, inputs);
    return std::move(report_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(show(reference_.path) + ": " + problem);
  }

  bool is_fused() const { return options_.engine == Engine::fused; }

  torch::Device choose_device() const {
    const auto device = options_.device.value_or(torch::Device(reference_.environment.device));
    if (device.is_cuda() && !torch::cuda::is_available()) {
      fail("expected a CUDA device, found none here; compare on the CPU with --device cpu");
    }
    return device;
  }

  int choose_threads() const { return options_.num_threads.value_or(reference_.environment.num_threads); }

  void compare_environments() {
    report_.environment = current_environment(device_);
    report_.differences = environment_differences(reference_.environment, report_.environment);
    const bool comparable_bits = report_.differences.empty() && !reference_.tolerance && !is_fused();
    const auto by_environment = comparable_bits ? Requirement::bit_exact : Requirement::tolerance;
    requirement_ = options_.require.value_or(by_environment);
    report_.bits_required = requirement_ == Requirement::bit_exact;
  }

  /// The weights, the prefix and layout under which they are found, and the file they come from.
  struct Weights {
    StateDict tensors;
    std::string prefix;
    std::string layout;
    std::filesystem::path file;
  };

  Weights read_case_weights() const {
    const auto prefix = options_.prefix.value_or(reference_.prefix);
    const auto layout = options_.layout.empty() ? reference_.layout : options_.layout;
    if (!options_.weights.empty()) {
      return {read_weights(options_.weights), prefix, layout, options_.weights};
    }
    StateDict own;
    for (const auto& item : reference_.tensors) {
      constexpr std::string_view folder = "weights/";
      if (item.key().starts_with(folder)) {
        own.insert(item.key().substr(folder.size()), item.value());
      }
    }
    if (!own.is_empty()) {
      return {own, options_.prefix.value_or(""), options_.layout, reference_.path};
    }
    if (reference_.weights_file.empty()) {
      fail("expected tensors weights/..., metadata \"weights_file\" or --weights, found none of them");
    }
    const auto file = reference_.path.parent_path() / reference_.weights_file;
    return {read_weights(file), prefix, layout, file};
  }

  /// The case's weights by the lesson's names if they have a layout, else as they stand.
  Weights prepare_weights(int64_t num_heads) {
    auto weights = read_case_weights();
    if (!weights.layout.empty()) {
      naming(weights, [&] {
        weights.tensors =
            to_lesson(weights.tensors,
                      {.prefix = weights.prefix, .layout = weights.layout, .num_heads = num_heads}, &layout_);
      });
      weights.prefix.clear();
    }
    return weights;
  }

  /// Calls `use`, and has its errors begin with the file that is used and end with what may help.
  template <typename Use>
  static void naming(const Weights& weights, const Use& use) {
    try {
      use();
    } catch (const c10::Error& error) {
      const bool other_names = weights.layout.empty() && !find_attention(weights.tensors).empty();
      throw Error(show(weights.file) + ": " + error.what_without_backtrace() +
                  (other_names ? "; --layout auto takes other layouts than the lesson's" : ""));
    }
  }

  MultiHeadAttention make_module() {
    const auto num_heads = options_.num_heads.value_or(reference_.num_heads);
    const auto weights = prepare_weights(num_heads);
    // A module is only as large as the weights that fill it, whatever the metadata claims.
    int64_t elements = 0;
    for (const auto& item : weights.tensors) {
      elements += item.value().numel();
    }
    constexpr int64_t matrices = 4;
    if (elements / matrices / reference_.d_model < reference_.d_model) {
      fail("expected weights of four (d_model, d_model) matrices for d_model " +
           std::to_string(reference_.d_model) + ", found " + std::to_string(elements) + " elements in all");
    }
    if (reference_.init_seed) {
      torch::manual_seed(*reference_.init_seed);
    }
    auto module = MultiHeadAttention(
        MultiHeadAttentionOptions(reference_.d_model, num_heads).dropout(reference_.dropout));
    module->to(device_, reference_.dtype);
    StateDict fresh;
    for (const auto& item : state_dict(*module)) {
      fresh.insert(item.key(), item.value().clone());
    }
    naming(weights, [&] { load_state_dict(*module, weights.tensors, {.prefix = weights.prefix}); });
    describe(weights);
    if (reference_.init_seed && !is_fused()) {
      for (const auto& item : state_dict(*module)) {
        add("init/" + item.key(), fresh[item.key()], item.value());
      }
    }
    module->train(reference_.train);
    return module;
  }

  void describe(const MultiHeadAttentionImpl& module) {
    std::ostringstream text;
    module.pretty_print(text);
    text << ", " << (reference_.train ? "train" : "eval") << ", "
         << c10::getDtypeNames(reference_.dtype).first << ", " << report_.environment.device << ", "
         << threads_text();
    report_.description = text.str();
  }

  void describe(const FusedMultiHeadAttention& fused, const CaseInputs& inputs) {
    std::ostringstream text;
    text << "mha::FusedMultiHeadAttention(d_model=" << fused.d_model() << ", num_heads=" << fused.num_heads()
         << "), " << fused.describe(inputs.query, inputs.key, inputs.value, inputs.mask) << ", "
         << threads_text();
    report_.description = text.str();
  }

  std::string threads_text() const {
    const auto threads = report_.environment.num_threads;
    return std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  }

  void describe(const Weights& weights) {
    if (weights.file != reference_.path) {
      report_.weights = show(weights.file);
    }
    if (!layout_.layout.empty()) {
      report_.weights += (report_.weights.empty() ? "layout " : ", layout ") + layout_.layout +
                         ", other names ignored: " + std::to_string(layout_.ignored.size()) +
                         (layout_.caveat.empty() ? "" : "; ") + layout_.caveat;
    }
  }

  void compare_lesson(MultiHeadAttention& module, const CaseInputs& inputs) {
    describe(*module);
    const auto steps = run_forward(module, inputs);
    compare_forward(*module, steps);
    compare_gradients(*module, inputs, steps.output);
  }

  /// Outputs only: it has no steps.
  void compare_fused(const MultiHeadAttention& module, const CaseInputs& inputs) {
    const torch::NoGradGuard no_gradients;
    const FusedMultiHeadAttention fused(module);
    describe(fused, inputs);
    if (reference_.tensors.contains("outputs/attention_weights")) {
      add_if_present("outputs/attention_weights",
                     fused.attention_weights(inputs.query, inputs.key, inputs.mask));
    }
    add_if_present("outputs/output", fused(inputs.query, inputs.key, inputs.value, inputs.mask));
  }

  AttentionSteps run_forward(MultiHeadAttention& module, const CaseInputs& inputs) const {
    const torch::AutoGradMode gradients(reference_.tensors.contains("grad_outputs/output"));
    if (reference_.seed) {
      torch::manual_seed(*reference_.seed);
    }
    return module->forward_steps(inputs.query, inputs.key, inputs.value, inputs.mask);
  }

  void compare_forward(const MultiHeadAttentionImpl& module, const AttentionSteps& steps) {
    const auto scores = largest(steps.scores);
    // An error of the scores grows by the scores' size on its way through the exponential.
    const auto most = scale_largest_share / (scale_roundings * epsilon(reference_.dtype));
    const auto amplified = [&](const Tensor& tensor) { return largest(tensor) * std::min(1 + scores, most); };
    scales_ = {{"steps/Q", largest(steps.Q)},
               {"steps/K", largest(steps.K)},
               {"steps/V", largest(steps.V)},
               {"steps/scores", scores},
               {"steps/masked_scores", scores},
               {"steps/softmax", amplified(steps.softmax)},
               {"steps/attention_weights", amplified(steps.attention_weights)},
               {"steps/context", amplified(steps.context)},
               {"outputs/attention_weights", amplified(steps.attention_weights)},
               {"outputs/output", amplified(steps.output)}};
    for (const auto& [name, step] : named_steps) {
      add_if_present(std::string(name), steps.*step);
    }
    add_if_present("outputs/attention_weights", module.attention_weights);
    add_if_present("outputs/output", steps.output);
  }

  void compare_gradients(const MultiHeadAttentionImpl& module, const CaseInputs& inputs,
                         const Tensor& output) {
    const auto* grad_output = reference_.tensors.find("grad_outputs/output");
    if (grad_output == nullptr) {
      return;
    }
    StateDict leaves;
    const std::pair<const char*, Tensor> named_inputs[] = {
        {"query", inputs.query}, {"key", inputs.key}, {"value", inputs.value}};
    for (const auto& [name, input] : named_inputs) {
      if (reference_.tensors.contains(std::string("grads/") + name)) {
        leaves.insert(name, input);
      }
    }
    for (const auto& parameter : module.named_parameters()) {
      leaves.insert(parameter.key(), parameter.value());
    }
    // On fresh memory: parity never computes on mapped files.
    const auto fresh =
        grad_output->to(device_, grad_output->scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    if (fresh.sizes() != output.sizes() || fresh.scalar_type() != output.scalar_type()) {
      fail("tensor \"grad_outputs/output\": expected the shape and dtype of the output, found others");
    }
    const auto gradients =
        torch::autograd::grad({output}, leaves.values(), {fresh}, /*retain_graph=*/std::nullopt,
                              /*create_graph=*/false, /*allow_unused=*/true);
    for (const auto& gradient : gradients) {
      largest_gradient_ = std::max(largest_gradient_, largest(gradient));
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      add_if_present("grads/" + leaves[i].key(), gradients[i]);
    }
  }

  void add_if_present(const std::string& name, const Tensor& ours) {
    if (const auto* expected = reference_.tensors.find(name)) {
      add(name, ours, *expected);
    }
  }

  void add(const std::string& name, const Tensor& ours, const Tensor& expected) {
    Rule rule;
    rule.requirement = requirement_;
    rule.tolerance = reference_.tolerance;
    rule.float64 = float64_twin(name);
    if (is_only_rounding(name, rule.float64)) {
      rule.scale = largest_gradient_;
    } else if (!rule.float64.defined()) {
      rule.scale = scales_[name];
    }
    report_.tensors.push_back(compare(name, ours, expected, rule));
  }

  /// Whether a gradient is zero in exact arithmetic, so that the rounding of what cancelled is all there is. That of
  /// W_k.bias always is, since a softmax does not see what is added to all scores of a row; others are as their twin
  /// shows.
  bool is_only_rounding(const std::string& name, const Tensor& twin) const {
    return name == "grads/W_k.bias" || (name.starts_with("grads/") && twin.defined() &&
                                        largest(twin) <= vanishing_share * largest_gradient_);
  }

  /// The largest finite magnitude in a tensor; 0 when it has none.
  static double largest(const Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0) {
      return 0;
    }
    return tensor.detach().to(torch::kDouble).nan_to_num(0, 0, 0).abs().max().item<double>();
  }

  /// float64/output for outputs/output, float64/grads/query for grads/query; a step has none but the weights,
  /// which are the softmax where nothing is dropped.
  Tensor float64_twin(const std::string& name) const {
    const auto slash = name.find('/');
    const auto folder = name.substr(0, slash);
    const bool dropped = reference_.train && reference_.dropout > 0;
    std::string twin;
    if (name == "steps/attention_weights" || (name == "steps/softmax" && !dropped)) {
      twin = "float64/attention_weights";
    } else if (folder == "outputs") {
      twin = "float64/" + name.substr(slash + 1);
    } else if (folder == "grads") {
      twin = "float64/" + name;
    }
    const auto* tensor = reference_.tensors.find(twin);
    return tensor == nullptr ? Tensor() : *tensor;
  }

  /// The first that fails; where all pass, the first with other bits.
  void name_first_divergence(const MultiHeadAttention& module, const CaseInputs& inputs) {
    const TensorReport* first = nullptr;
    for (const auto& tensor : report_.tensors) {
      if (!passed(tensor.verdict)) {
        first = &tensor;
        break;
      }
      if (first == nullptr && tensor.verdict != Verdict::bit_exact) {
        first = &tensor;
      }
    }
    if (first != nullptr) {
      report_.first_divergence =
          Divergence{.name = first->name, .hint = likely_cause(reference_, inputs, module, report_, *first)};
    }
  }

  const ReferenceCase& reference_;
  const VerifyOptions& options_;
  torch::Device device_;
  PlainModeGuard plain_mode_;
  ThreadsGuard threads_;
  LayoutReport layout_;
  Requirement requirement_ = Requirement::bit_exact;
  std::map<std::string, double> scales_;  // of the forward pass, by tensor name; see Rule::scale
  double largest_gradient_ = 0;
  CaseReport report_;
};

}  // namespace

std::string_view engine_text(Engine engine) {
  return engine == Engine::fused ? "fused" : "lesson";
}

CaseReport verify(const ReferenceCase& reference, const VerifyOptions& options) {
  TORCH_CHECK_VALUE(
      options.engine != Engine::fused || options.require != Requirement::bit_exact,
      "require: expected tolerance with the fused engine, whose bits are its own, found bit-exact");
  try {
    return Verification(reference, options).run();
  } catch (const c10::Error& error) {
    // Whatever LibTorch refuses about a case is a problem of that file.
    throw Error(show(reference.path) + ": " + error.what_without_backtrace());
  }
}

}  // namespace mha::parity
