// What verify says about the cause of a difference.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "mha/parity.h"
#include "parity/case_testing.h"

using Catch::Matchers::ContainsSubstring;
using mha::testing::CaseBuilder;
using mha::testing::flipped;
using mha::testing::make_case;

TEST_CASE("hints name the usual cause") {
  const auto builder = make_case();
  const auto hint = [](const CaseBuilder& mutated) { return mutated.verify().first_divergence.value().hint; };
  auto transposed = builder;
  transposed.set("weights/W_q.weight", builder.tensors["weights/W_q.weight"].t().contiguous());
  CHECK_THAT(hint(transposed), ContainsSubstring("W_q.weight is transposed"));
  auto unbiased = builder;
  unbiased.set("weights/W_k.bias", builder.tensors["weights/W_k.bias"] + 1);
  unbiased.set("steps/K",
               builder.tensors["steps/K"] - builder.tensors["weights/W_k.bias"].view({1, 3, 1, 4}));
  CHECK_THAT(hint(unbiased), ContainsSubstring("without W_k.bias"));
  auto exchanged = builder;
  for (const char* kind : {".weight", ".bias"}) {
    exchanged.set(std::string("weights/W_q") + kind, builder.tensors[std::string("weights/W_v") + kind]);
    exchanged.set(std::string("weights/W_v") + kind, builder.tensors[std::string("weights/W_q") + kind]);
  }
  CHECK_THAT(hint(exchanged), ContainsSubstring("W_q and W_v are exchanged"));
  auto unrelated = builder;
  unrelated.set("weights/W_q.weight", torch::randn({12, 12}));
  CHECK_THAT(hint(unrelated), ContainsSubstring("not those of the reference"));
  auto inverted = builder;
  inverted.set("inputs/mask", 1 - builder.tensors["inputs/mask"]);
  CHECK_THAT(hint(inverted), ContainsSubstring("the mask is inverted"));
  auto other_mask = builder;
  other_mask.set("inputs/mask", torch::ones({4, 6}));
  CHECK_THAT(hint(other_mask), ContainsSubstring("the mask differs"));
  auto unscaled = builder;
  unscaled.set("steps/scores", builder.tensors["steps/scores"] * 2);
  CHECK_THAT(hint(unscaled), ContainsSubstring("divided by sqrt(d_k)"));
  auto reordered = builder;
  reordered.set("steps/context", builder.tensors["steps/context"].flip(-1));
  CHECK_THAT(hint(reordered), ContainsSubstring("concatenated in another order"));
  auto output_transposed = builder;
  output_transposed.set("weights/W_o.weight", builder.tensors["weights/W_o.weight"].t().contiguous());
  CHECK_THAT(hint(output_transposed), ContainsSubstring("W_o.weight is transposed"));
  auto with_nan = builder;
  with_nan.set("steps/scores", builder.tensors["steps/scores"].index_fill(3, torch::tensor({2}), NAN));
  CHECK_THAT(hint(with_nan), ContainsSubstring("NaN or infinity on one side only"));
  auto zero_sign = builder;
  zero_sign.set("steps/softmax",
                torch::where(builder.tensors["steps/softmax"] == 0, -builder.tensors["steps/softmax"],
                             builder.tensors["steps/softmax"]));
  CHECK_THAT(hint(zero_sign), ContainsSubstring("the sign of a zero"));
  auto without_steps = builder;
  for (const auto& name : builder.tensors.keys()) {
    if (name.starts_with("steps/")) {
      without_steps.tensors.erase(name);
    }
  }
  without_steps.set("outputs/output", builder.tensors["outputs/output"] + 1);
  CHECK_THAT(hint(without_steps), ContainsSubstring("export the case with all its steps"));
  auto rounded = builder;
  rounded.set("steps/context", flipped(builder.tensors["steps/context"], 3));
  CHECK_THAT(hint(rounded), ContainsSubstring("rounded otherwise"));

  const auto training = make_case({.train = true});
  auto forgotten_eval = training;
  forgotten_eval.metadata["mode"] = "eval";
  CHECK_THAT(hint(forgotten_eval), ContainsSubstring("eval() was forgotten"));
  auto no_dropout = make_case();
  no_dropout.metadata["mode"] = "train";
  CHECK_THAT(hint(no_dropout), ContainsSubstring("it ran in eval mode"));
  auto other_seed = training;
  other_seed.metadata["seed"] = "5";
  CHECK_THAT(hint(other_seed), ContainsSubstring("another dropout pattern: the seed"));
  auto other_device = other_seed;
  other_device.metadata["device"] = "cuda";
  mha::parity::VerifyOptions on_cpu;
  on_cpu.device = torch::kCPU;
  CHECK_THAT(other_device.verify(on_cpu).first_divergence.value().hint,
             ContainsSubstring("cpu draws other random numbers than cuda"));
  auto other_cotangent = training;
  other_cotangent.set("grad_outputs/output", training.tensors["grad_outputs/output"] * 2);
  CHECK_THAT(hint(other_cotangent), ContainsSubstring("the forward pass agrees"));
}

TEST_CASE("a mistake on small numbers is not taken for rounding") {
  auto builder = make_case({.masked = false, .gradients = false});
  for (const char* name : {"inputs/query", "weights/W_q.weight", "weights/W_q.bias"}) {
    builder.set(name, builder.tensors[name] * 1e-4);
  }
  const auto Q = torch::linear(builder.tensors["inputs/query"], builder.tensors["weights/W_q.weight"].t(),
                               builder.tensors["weights/W_q.bias"]);
  builder.set("steps/Q", Q.view({2, 4, 3, 4}).transpose(1, 2));
  CHECK_THAT(builder.verify().first_divergence.value().hint, ContainsSubstring("W_q.weight is transposed"));
  builder.set("steps/Q", torch::randn({2, 3, 4, 4}) * 1e-4);
  CHECK_THAT(builder.verify().first_divergence.value().hint, ContainsSubstring("not those of the reference"));
}

TEST_CASE("without the softmax nothing is said about dropout") {
  auto builder = make_case({.train = true, .gradients = false});
  builder.metadata["seed"] = "5";
  for (const auto& name : builder.tensors.keys()) {
    if (name.starts_with("steps/")) {
      builder.tensors.erase(name);
    }
  }
  const auto first = builder.verify().first_divergence.value();
  CHECK(first.name == "outputs/attention_weights");
  CHECK_THAT(first.hint, ContainsSubstring("export the case with all its steps"));
}
