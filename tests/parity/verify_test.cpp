// Verification of cases that are right, and of cases that are wrong in one thing.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "mha/parity.h"
#include "parity/case_testing.h"

using Catch::Matchers::ContainsSubstring;
using mha::parity::Requirement;
using mha::parity::Verdict;
using mha::parity::VerifyOptions;
using mha::testing::CaseBuilder;
using mha::testing::flipped;
using mha::testing::make_case;
using mha::testing::TemporaryFolder;
using torch::Tensor;

namespace {

const mha::parity::TensorReport& find(const mha::parity::CaseReport& report, const std::string& name) {
  for (const auto& tensor : report.tensors) {
    if (tensor.name == name) {
      return tensor;
    }
  }
  throw std::runtime_error("no " + name + " in the report");
}

}  // namespace

TEST_CASE("a case of this very run is bit-exact, eval and train, masked or not, with and without gradients") {
  for (const bool train : {false, true}) {
    for (const bool masked : {false, true}) {
      for (const bool gradients : {false, true}) {
        const auto builder = make_case({.train = train, .masked = masked, .gradients = gradients});
        const auto report = builder.verify();
        CHECK(report.verdict == Verdict::bit_exact);
        CHECK(report.bits_required);
        CHECK(report.differences.empty());
        CHECK_FALSE(report.first_divergence.has_value());
        CHECK(report.tensors.size() == 9U + (masked ? 1U : 0U) + (gradients ? 10U : 0U));
      }
    }
  }
}

TEST_CASE("one flipped bit in any compared tensor is a mismatch that names tensor and index") {
  const auto builder = make_case({.train = true});
  int tried = 0;
  for (const auto& item : builder.tensors) {
    const auto& name = item.key();
    if (!name.starts_with("steps/") && !name.starts_with("outputs/") && !name.starts_with("grads/")) {
      continue;
    }
    ++tried;
    auto mutated = builder;
    const auto last = item.value().numel() - 1;
    mutated.set(name, flipped(item.value(), last));
    const auto report = mutated.verify();
    CAPTURE(name);
    CHECK(report.verdict == Verdict::mismatch);
    REQUIRE(report.first_divergence.has_value());
    CHECK(report.first_divergence->name == name);
    const auto& tensor = find(report, name);
    CHECK(tensor.verdict == Verdict::mismatch);
    CHECK(tensor.mismatched == 1);
    auto corner = item.value().sizes().vec();
    for (auto& size : corner) {
      --size;
    }
    CHECK(tensor.index == corner);
  }
  CHECK(tried == 20);
}

TEST_CASE("a changed input, weight, mask, cotangent or seed is seen in what follows from it") {
  const auto builder = make_case({.train = true});
  const auto first_divergence = [&](const std::string& name, const Tensor& tensor) {
    auto mutated = builder;
    mutated.set(name, tensor);
    return mutated.verify().first_divergence.value().name;
  };
  const auto& tensors = builder.tensors;
  CHECK(first_divergence("inputs/query", tensors["inputs/query"] + 1) == "steps/Q");
  CHECK(first_divergence("inputs/key", tensors["inputs/key"] + 1) == "steps/K");
  CHECK(first_divergence("weights/W_v.weight", tensors["weights/W_v.weight"] + 1) == "steps/V");
  CHECK(first_divergence("weights/W_o.bias", tensors["weights/W_o.bias"] + 1) == "outputs/output");
  CHECK(first_divergence("inputs/mask", 1 - tensors["inputs/mask"]) == "steps/masked_scores");
  CHECK(first_divergence("grad_outputs/output", tensors["grad_outputs/output"] + 1).starts_with("grads/"));
  auto other_seed = builder;
  other_seed.metadata["seed"] = "5";
  CHECK(other_seed.verify().first_divergence.value().name == "steps/attention_weights");
}

TEST_CASE("autocast, inference mode and another default dtype of the caller do not reach a verification") {
  auto builder = make_case({.train = true});
  builder.metadata["init_seed"] = "11";
  {
    const c10::InferenceMode inference;
    CHECK(builder.verify().verdict == Verdict::bit_exact);
  }
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto report = builder.verify();
  CHECK(torch::get_default_dtype() == caffe2::TypeMeta::Make<double>());
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  CHECK(report.verdict == Verdict::bit_exact);
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  const auto autocast = builder.verify();
  CHECK(at::autocast::is_autocast_enabled(torch::kCPU));
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  CHECK(autocast.verdict == Verdict::bit_exact);
}

TEST_CASE("in another environment the comparison is by tolerance, unless bits are asked for") {
  auto builder = make_case({.gradients = false});
  builder.metadata["cpu_model"] = "another processor";
  builder.set("outputs/output", flipped(builder.tensors["outputs/output"], 0));
  const auto tolerant = builder.verify();
  CHECK_FALSE(tolerant.bits_required);
  CHECK(tolerant.verdict == Verdict::within_tolerance);
  REQUIRE(tolerant.differences.size() == 1);
  CHECK_THAT(tolerant.differences[0],
             ContainsSubstring("processor: the case has another processor, here it is "));
  CHECK(tolerant.first_divergence.value().name == "outputs/output");
  CHECK_THAT(tolerant.first_divergence->hint, ContainsSubstring("environment differs (processor"));

  VerifyOptions strict;
  strict.require = Requirement::bit_exact;
  CHECK(builder.verify(strict).verdict == Verdict::mismatch);

  builder.set("outputs/output", builder.tensors["outputs/output"] + 1e-2);
  CHECK(builder.verify().verdict == Verdict::mismatch);
}

TEST_CASE("a case without an environment is of an unknown one") {
  auto builder = make_case();
  for (const char* key : {"build", "cpu_model", "torch_version", "num_threads", "device"}) {
    builder.metadata.erase(key);
  }
  const auto report = builder.verify();
  CHECK_FALSE(report.bits_required);
  CHECK(report.verdict == Verdict::bit_exact);
  CHECK_THAT(report.differences.at(0), ContainsSubstring("the case has none recorded"));
}

TEST_CASE("a version is compared by its release, and only when the case has one") {
  auto builder = make_case({.gradients = false});
  builder.metadata["torch_version"] += "+local";
  CHECK(builder.verify().differences.empty());
  builder.metadata.erase("torch_version");
  CHECK(builder.verify().differences.empty());
  builder.metadata["torch_version"] = "1.6.0";
  CHECK_THAT(builder.verify().differences.at(0),
             ContainsSubstring("LibTorch version: the case has 1.6.0, here it is "));
}

TEST_CASE("a switch that changes rounding is part of the environment, when the case has it") {
  auto builder = make_case({.gradients = false});
  builder.metadata["float32_matmul_precision"] = "medium";
  builder.metadata["MKL_CBWR"] = "COMPATIBLE";
  const auto report = builder.verify();
  CHECK_FALSE(report.bits_required);
  REQUIRE(report.differences.size() == 2);
  CHECK(report.differences[0] == "MKL_CBWR: the case has COMPATIBLE, here it is not set");
  CHECK(report.differences[1] == "float32_matmul_precision: the case has medium, here it is highest");
  builder.metadata["float32_matmul_precision"] = "highest";
  builder.metadata["MKL_CBWR"] = "";
  builder.metadata["mkldnn"] = "true";
  builder.metadata["deterministic"] = "false";
  CHECK(builder.verify().differences.empty());
}

TEST_CASE("no tolerance passes a result that is zeroed, mirrored or negated") {
  for (const bool twins : {false, true}) {
    auto builder = make_case({.train = true});
    builder.metadata["cpu_model"] = "another processor";
    if (twins) {
      for (const auto& name : builder.tensors.keys()) {
        if (name.starts_with("grads/")) {
          builder.set("float64/" + name, builder.tensors[name].to(torch::kDouble));
        }
      }
    }
    for (const auto& name : builder.tensors.keys()) {
      const bool computed =
          name.starts_with("steps/") || name.starts_with("outputs/") || name.starts_with("grads/");
      if (!computed || name == "grads/W_k.bias") {
        continue;
      }
      const auto& right = builder.tensors[name];
      for (const auto& wrong : {torch::zeros_like(right), -right, right.flip(-1)}) {
        if (name == "steps/masked_scores" && torch::equal(wrong, right)) {
          continue;
        }
        auto mutated = builder;
        mutated.set(name, wrong);
        CAPTURE(name);
        CHECK(find(mutated.verify(), name).verdict == Verdict::mismatch);
      }
    }
  }
}

TEST_CASE("a stated tolerance replaces bits") {
  auto builder = make_case({.gradients = false});
  builder.metadata["tolerance"] = "0.01";
  builder.set("outputs/output", builder.tensors["outputs/output"] + 1e-3);
  CHECK(builder.verify().verdict == Verdict::within_tolerance);
  builder.set("outputs/output", builder.tensors["outputs/output"] + 0.1);
  CHECK(builder.verify().verdict == Verdict::mismatch);
}

TEST_CASE("float64 twins decide outputs and gradients") {
  auto builder = make_case({.gradients = false});
  builder.metadata["cpu_model"] = "another processor";
  builder.set("float64/output", builder.tensors["outputs/output"].to(torch::kDouble));
  builder.set("outputs/output", builder.tensors["outputs/output"] + 2e-5);
  // 2e-5 from the reference is over the default tolerance, but the reference itself is 2e-5 off.
  CHECK(builder.verify().verdict == Verdict::within_tolerance);
  builder.tensors.erase("float64/output");
  CHECK(builder.verify().verdict == Verdict::mismatch);
}

TEST_CASE("threads: the case's are adopted, options override, and the caller's come back") {
  const auto before = at::get_num_threads();
  auto builder = make_case();
  builder.metadata["num_threads"] = "1";
  CHECK(builder.verify().environment.num_threads == 1);
  CHECK(at::get_num_threads() == before);
  VerifyOptions two;
  two.num_threads = 2;
  const auto report = builder.verify(two);
  CHECK(report.environment.num_threads == 2);
  CHECK(report.differences.at(0) == "threads: the case has 1, here it is 2");
  CHECK(at::get_num_threads() == before);
}

TEST_CASE("weights come from the case, from a file beside it, or from an option, by prefix") {
  const TemporaryFolder folder;
  auto builder = make_case();
  mha::StateDict weights;
  for (const auto& name : builder.tensors.keys()) {
    if (name.starts_with("weights/")) {
      weights.insert("module.encoder.0." + name.substr(8), builder.tensors[name]);
      builder.tensors.erase(name);
    }
  }
  mha::write_weights(folder / "weights.safetensors", weights);
  const auto verify = [&](const VerifyOptions& options = {}) {
    mha::write_weights(folder / "case.safetensors", builder.tensors, builder.metadata);
    return mha::parity::verify(mha::parity::read_case(folder / "case.safetensors"), options);
  };
  const auto missing = mha::testing::error_of<mha::Error>([&] { verify(); });
  CHECK_THAT(missing,
             ContainsSubstring("expected tensors weights/..., metadata \"weights_file\" or --weights"));

  VerifyOptions options;
  options.weights = folder / "weights.safetensors";
  options.prefix = "encoder.0";
  CHECK(verify(options).verdict == Verdict::bit_exact);

  builder.metadata["init_seed"] = "11";
  CHECK(find(verify(options), "init/W_q.weight").verdict == Verdict::bit_exact);
  builder.metadata["weights_file"] = "weights.safetensors";
  builder.metadata["prefix"] = "module.encoder.0.";
  CHECK(verify().verdict == Verdict::bit_exact);
  options.weights.clear();
  options.prefix = "decoder";
  const auto wrong_prefix = mha::testing::error_of<mha::Error>([&] { verify(options); });
  CHECK_THAT(wrong_prefix,
             ContainsSubstring("weights.safetensors: load_state_dict: expected names under the prefix "
                               "\"decoder\""));
}

TEST_CASE("weights in another layout, by option or by the case's metadata") {
  const TemporaryFolder folder;
  auto builder = make_case();
  mha::StateDict lesson;
  for (const auto& name : builder.tensors.keys()) {
    if (name.starts_with("weights/")) {
      lesson.insert(name.substr(8), builder.tensors[name]);
      builder.tensors.erase(name);
    }
  }
  // 3 heads of 4, head by head: the number of heads comes from the case.
  mha::StateDict weights;
  for (const std::string kind : {"weight", "bias"}) {
    std::vector<torch::Tensor> rows;
    for (int head = 0; head < 3; ++head) {
      for (const char* layer : {"W_q.", "W_k.", "W_v."}) {
        rows.push_back(lesson[layer + kind].narrow(0, head * 4, 4));
      }
    }
    weights.insert("layers.0.attention.query_key_value." + kind, torch::cat(rows));
    weights.insert("layers.0.attention.dense." + kind, lesson["W_o." + kind]);
  }
  weights.insert("layers.0.attention.rotary_emb.inv_freq", torch::ones({2}));
  mha::write_weights(folder / "weights.safetensors", weights);
  builder.metadata["weights_file"] = "weights.safetensors";
  builder.metadata["prefix"] = "layers.0.attention";
  const auto verify = [&](const VerifyOptions& options = {}) {
    mha::write_weights(folder / "case.safetensors", builder.tensors, builder.metadata);
    return mha::parity::verify(mha::parity::read_case(folder / "case.safetensors"), options);
  };

  CHECK_THAT(mha::testing::error_of<mha::Error>([&] { verify(); }),
             ContainsSubstring("missing \"W_q.weight\""));
  VerifyOptions options;
  options.layout = "auto";
  const auto report = verify(options);
  CHECK(report.verdict == Verdict::bit_exact);
  CHECK_THAT(
      report.weights,
      ContainsSubstring("weights.safetensors, layout gpt-neox, other names ignored: 1; projections only: "));
  builder.metadata["layout"] = "gpt-neox";
  CHECK(verify().verdict == Verdict::bit_exact);
  options.layout = "bert";
  CHECK_THAT(
      mha::testing::error_of<mha::Error>([&] { verify(options); }),
      ContainsSubstring("weights.safetensors: to_lesson: layout \"bert\": expected \"self.query.weight\""));
}

TEST_CASE("a prefix given for the case's own weights is not ignored") {
  VerifyOptions options;
  options.prefix = "nonsense";
  CHECK_THAT(mha::testing::error_of<mha::Error>([&] { make_case().verify(options); }),
             ContainsSubstring("expected names under the prefix \"nonsense\""));
}

TEST_CASE("text from a case's metadata is shown harmlessly") {
  auto builder = make_case();
  builder.metadata["cpu_model"] = "x\n\x1b[31mverdict: bit-exact";
  const auto report = builder.verify();
  CHECK(report.differences.at(0).find_first_of("\n\x1b") == std::string::npos);
  CHECK_THAT(report.differences[0], ContainsSubstring("x\\x0a\\x1b[31mverdict"));
}

TEST_CASE("weights are cast to the case's dtype") {
  auto builder = make_case();
  for (const auto& name : builder.tensors.keys()) {
    if (name.starts_with("weights/")) {
      builder.set(name, builder.tensors[name].to(torch::kDouble));
    }
  }
  CHECK(builder.verify().verdict == Verdict::bit_exact);
}

TEST_CASE("freshly initialised parameters are compared when the case has an init_seed") {
  auto builder = make_case({.gradients = false});
  builder.metadata["init_seed"] = "11";
  const auto report = builder.verify();
  CHECK(report.verdict == Verdict::bit_exact);
  CHECK(find(report, "init/W_o.bias").verdict == Verdict::bit_exact);
  builder.metadata["init_seed"] = "12";
  const auto other = builder.verify();
  CHECK(other.verdict == Verdict::mismatch);
  CHECK(other.first_divergence->name == "init/W_q.weight");
  CHECK_THAT(other.first_divergence->hint, ContainsSubstring("another init_seed"));
}

TEST_CASE("strides of inputs are rebuilt, expanded ones too") {
  auto builder = make_case({.masked = false, .gradients = false});
  builder.metadata["strides/inputs/query"] = "12,24,1";
  builder.metadata["strides/inputs/key"] = "72,12,1";
  const auto report = builder.verify();
  CHECK(report.verdict != Verdict::not_comparable);
  CHECK(find(report, "steps/Q").max_abs < 1e-6);

  auto expanded = make_case({.masked = false, .gradients = false});
  const auto query = expanded.tensors["inputs/query"].slice(0, 0, 1).expand({2, 4, 12}).contiguous();
  expanded.set("inputs/query", query);
  expanded.metadata["strides/inputs/query"] = "0,12,1";
  CHECK(find(expanded.verify(), "steps/K").verdict == Verdict::bit_exact);
}

TEST_CASE("a case with nothing to compare does not pass") {
  CaseBuilder builder = make_case({.masked = false, .gradients = false});
  for (const auto& name : builder.tensors.keys()) {
    if (name.starts_with("steps/") || name.starts_with("outputs/")) {
      builder.tensors.erase(name);
    }
  }
  builder.set("inputs/query", torch::empty({2, 0, 12}));
  builder.set("outputs/output", torch::empty({2, 0, 12}));
  CHECK(builder.verify().verdict == Verdict::not_comparable);
}

TEST_CASE("an output of another shape or dtype is not comparable") {
  auto builder = make_case();
  builder.set("outputs/output", builder.tensors["outputs/output"].slice(1, 0, 3));
  const auto report = builder.verify();
  CHECK(report.verdict == Verdict::not_comparable);
  CHECK(report.first_divergence->name == "outputs/output");
  CHECK(report.first_divergence->hint == "the reference has shape (2, 3, 12)");
}
