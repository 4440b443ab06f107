// Verification of cases with the fused engine in place of the lesson's module.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "mha/parity.h"
#include "parity/case_testing.h"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using mha::parity::CaseReport;
using mha::parity::Engine;
using mha::parity::Requirement;
using mha::parity::Verdict;
using mha::parity::VerifyOptions;
using mha::testing::CaseBuilder;
using mha::testing::error_of;
using mha::testing::make_case;

namespace {

VerifyOptions fused_options() {
  VerifyOptions options;
  options.engine = Engine::fused;
  return options;
}

CaseReport verify_fused(const CaseBuilder& builder) {
  return builder.verify(fused_options());
}

const mha::parity::TensorReport& output_of(const CaseReport& report) {
  REQUIRE(report.tensors.size() == 2);
  CHECK(report.tensors[0].name == "outputs/attention_weights");
  CHECK(report.tensors[1].name == "outputs/output");
  return report.tensors[1];
}

}  // namespace

TEST_CASE("the fused engine passes by tolerance, and outputs are all that is compared") {
  for (const bool masked : {false, true}) {
    for (const bool gradients : {false, true}) {
      const auto report = verify_fused(make_case({.masked = masked, .gradients = gradients}));
      CHECK(report.engine == "fused");
      CHECK(mha::parity::passed(report.verdict));
      CHECK_FALSE(report.bits_required);
      CHECK(report.differences.empty());
      CHECK(output_of(report).total == 96);
      CHECK(report.tensors[0].total == 144);
      CHECK_THAT(report.description,
                 StartsWith("mha::FusedMultiHeadAttention(d_model=12, num_heads=3), float32 on cpu: "));
    }
  }
  CHECK(make_case().verify().engine == "lesson");
}

TEST_CASE("engines by name") {
  CHECK(mha::parity::engine_text(Engine::lesson) == "lesson");
  CHECK(mha::parity::engine_text(Engine::fused) == "fused");
}

TEST_CASE("a train-mode case cannot be verified with the fused engine") {
  const auto message = error_of<mha::Error>([] { verify_fused(make_case({.train = true})); });
  CHECK_THAT(message, ContainsSubstring("case.safetensors: expected an eval-mode case for the fused engine, "
                                        "which is for inference, found mode train"));
}

TEST_CASE("bits cannot be required of the fused engine, tolerance can") {
  auto options = fused_options();
  options.require = Requirement::bit_exact;
  CHECK(error_of<c10::ValueError>([&] { make_case().verify(options); }) ==
        "require: expected tolerance with the fused engine, whose bits are its own, found bit-exact");
  options.require = Requirement::tolerance;
  CHECK(mha::parity::passed(make_case().verify(options).verdict));
}

TEST_CASE("a case that holds an output alone is compared by it alone") {
  auto builder = make_case({.gradients = false});
  builder.tensors.erase("outputs/attention_weights");
  const auto report = verify_fused(builder);
  CHECK(mha::parity::passed(report.verdict));
  REQUIRE(report.tensors.size() == 1);
  CHECK(report.tensors[0].name == "outputs/output");
}

TEST_CASE("freshly initialised parameters are not the fused engine's") {
  auto builder = make_case({.gradients = false});
  builder.metadata["init_seed"] = "12";
  CHECK(builder.verify().verdict == Verdict::mismatch);
  CHECK(mha::parity::passed(verify_fused(builder).verdict));
}

TEST_CASE("the fused engine's errors are found, whatever is wrong") {
  const auto builder = make_case({.gradients = false});
  const auto& tensors = builder.tensors;
  const auto verdict = [&](const std::string& name, const torch::Tensor& tensor) {
    auto mutated = builder;
    mutated.set(name, tensor);
    return output_of(verify_fused(mutated)).verdict;
  };
  for (const auto& name : tensors.keys()) {
    if (name.starts_with("weights/") && name != "weights/W_k.bias") {
      CAPTURE(name);
      CHECK(verdict(name, tensors[name].flip(0)) == Verdict::mismatch);
    }
  }
  // A softmax does not see what is added to all scores of a row.
  CHECK(mha::parity::passed(verdict("weights/W_k.bias", tensors["weights/W_k.bias"] + 1)));
  CHECK(verdict("inputs/query", tensors["inputs/query"].flip(1)) == Verdict::mismatch);
  CHECK(verdict("inputs/key", tensors["inputs/key"].flip(2)) == Verdict::mismatch);
  CHECK(verdict("inputs/mask", 1 - tensors["inputs/mask"]) == Verdict::mismatch);
  const auto& output = tensors["outputs/output"];
  for (const auto& wrong : {torch::zeros_like(output), -output, output.flip(-1), output + 1e-3}) {
    CHECK(verdict("outputs/output", wrong) == Verdict::mismatch);
  }
}

TEST_CASE("float64 twins and stated tolerances decide, as with the lesson") {
  auto builder = make_case({.gradients = false});
  const auto output = builder.tensors["outputs/output"];
  // PyTorch's error is 1e-3 here: twice that may ours be.
  builder.set("float64/output", output.to(torch::kDouble));
  builder.set("outputs/output", output + 1e-3);
  CHECK(verify_fused(builder).verdict == Verdict::within_tolerance);
  // And here it has none, but ours is 1e-3 away.
  builder.set("float64/output", output.to(torch::kDouble) + 1e-3);
  CHECK(verify_fused(builder).verdict == Verdict::mismatch);
  builder.metadata["tolerance"] = "0.01";
  CHECK(verify_fused(builder).verdict == Verdict::within_tolerance);
}

TEST_CASE("the first divergence of the fused engine comes with a hint of its own") {
  auto builder = make_case({.gradients = false});
  const auto output = builder.tensors["outputs/output"];
  const auto hint = [&](const torch::Tensor& wrong) {
    builder.set("outputs/output", wrong);
    return verify_fused(builder).first_divergence.value().hint;
  };
  CHECK(hint(output + 1e-6) == "the same maths, rounded otherwise by the fused engine");
  CHECK(hint(-output) == "the lesson's engine compares every step and tells where it begins");
  auto not_finite = output.clone();
  not_finite[0][0][0] = std::nan("");
  CHECK(hint(not_finite) == "NaN or infinity on one side only");
  CHECK(hint(output.slice(1, 0, 3)) == "the reference has shape (2, 3, 12)");
}

TEST_CASE("inputs that are one tensor in the case are one for the fused engine, with the case's strides") {
  auto builder = make_case({.masked = false, .gradients = false});
  CHECK_THAT(verify_fused(builder).description, ContainsSubstring("query, key + value "));
  builder.set("inputs/value", builder.tensors["inputs/key"]);
  CHECK_THAT(verify_fused(builder).description, ContainsSubstring("query, key, value "));
  CHECK(mha::parity::passed(verify_fused(builder).verdict));
  builder.metadata["strides/inputs/query"] = "1,24,2";
  builder.metadata["strides/inputs/key"] = "72,1,6";
  CHECK(mha::parity::passed(verify_fused(builder).verdict));

  builder.tensors.erase("inputs/key");
  builder.tensors.erase("inputs/value");
  builder.metadata.erase("strides/inputs/key");
  CHECK_THAT(verify_fused(builder).description, ContainsSubstring("query + key + value "));
}

TEST_CASE("threads, autocast, inference mode and the default dtype are handled as with the lesson") {
  auto builder = make_case();
  builder.metadata["num_threads"] = "1";
  const auto report = verify_fused(builder);
  CHECK(report.environment.num_threads == 1);
  CHECK(report.description.ends_with(", 1 thread"));
  const auto passes = [&] { return mha::parity::passed(verify_fused(builder).verdict); };
  {
    const c10::InferenceMode inference;
    CHECK(passes());
  }
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const bool under_double = passes();
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  CHECK(under_double);
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  const bool under_autocast = passes();
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  CHECK(under_autocast);
}
