// Everything that the fused engine refuses, and how it says so.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>

#include "fused/fused_testing.h"
#include "mha/state_dict.h"
#include "testing.h"

using Catch::Matchers::StartsWith;
using mha::FusedMultiHeadAttention;
using mha::MultiHeadAttention;
using mha::StateDict;
using mha::testing::bit_equal;
using mha::testing::error_of;
using mha::testing::Trio;
using torch::Tensor;

namespace {

StateDict weights() {
  torch::manual_seed(1);
  StateDict detached;
  for (const auto& item : mha::state_dict(*MultiHeadAttention(8, 2))) {
    detached.insert(item.key(), item.value().detach());
  }
  return detached;
}

/// The weights with one tensor replaced, or removed where it is undefined.
StateDict with(const std::string& name, const std::optional<Tensor>& tensor) {
  StateDict changed;
  for (const auto& item : weights()) {
    if (item.key() != name) {
      changed.insert(item.key(), item.value());
    } else if (tensor) {
      changed.insert(name, *tensor);
    }
  }
  if (tensor && !changed.contains(name)) {
    changed.insert(name, *tensor);
  }
  return changed;
}

std::string weights_error(const StateDict& weights, int64_t num_heads = 2,
                          std::optional<torch::ScalarType> dtype = std::nullopt) {
  const auto message =
      error_of<c10::ValueError>([&] { const FusedMultiHeadAttention fused(weights, num_heads, dtype); });
  CHECK(message.find('\n') == std::string::npos);
  return message;
}

}  // namespace

TEST_CASE("weights by their eight names make the engine that their module makes", "[fused]") {
  MultiHeadAttention module(8, 2);
  const auto x = torch::randn({2, 5, 8});
  CHECK(
      bit_equal(FusedMultiHeadAttention(mha::state_dict(*module), 2)(x), FusedMultiHeadAttention(module)(x)));
  CHECK_FALSE(
      bit_equal(FusedMultiHeadAttention(mha::state_dict(*module), 4)(x), FusedMultiHeadAttention(module)(x)));
}

TEST_CASE("weights in memory of any strides", "[fused]") {
  const auto expected = FusedMultiHeadAttention(weights(), 2);
  const auto x = torch::randn({2, 5, 8});
  for (const char* name : {"W_q.weight", "W_v.weight", "W_o.weight"}) {
    const auto transposed = weights()[name].t().contiguous().t();
    CHECK_FALSE(transposed.is_contiguous());
    CHECK(bit_equal(FusedMultiHeadAttention(with(name, transposed), 2)(x), expected(x)));
  }
  const auto zero = torch::zeros({1}).expand({8});
  CHECK(bit_equal(FusedMultiHeadAttention(with("W_k.bias", zero), 2)(x),
                  FusedMultiHeadAttention(with("W_k.bias", torch::zeros({8})), 2)(x)));
}

TEST_CASE("weights that are missing or unexpected are all named", "[fused]") {
  CHECK(weights_error(with("W_k.bias", std::nullopt)) ==
        "weights: expected the lesson's eight names, found missing \"W_k.bias\"");
  CHECK(weights_error(with("W_x.bias", torch::zeros({8}))) ==
        "weights: expected the lesson's eight names, found unexpected \"W_x.bias\"");
  auto renamed = with("W_q.weight", std::nullopt);
  renamed.insert("attn\n.W_q.weight", torch::zeros({8, 8}));
  CHECK_THAT(
      weights_error(renamed),
      StartsWith("weights: expected the lesson's eight names, found missing \"W_q.weight\", unexpected "));
  CHECK_THAT(weights_error(StateDict()),
             StartsWith("weights: expected the lesson's eight names, found missing "
                        "\"W_q.weight\", missing \"W_q.bias\""));
}

TEST_CASE("weights of other shapes are refused", "[fused]") {
  CHECK(weights_error(with("W_q.weight", torch::zeros({8, 7}))) ==
        "W_q.weight: expected shape (d_model, d_model), found (8, 7)");
  CHECK(weights_error(with("W_q.weight", torch::zeros({8}))) ==
        "W_q.weight: expected shape (d_model, d_model), found (8,)");
  CHECK(weights_error(with("W_v.weight", torch::zeros({8, 6}))) ==
        "W_v.weight: expected shape (8, 8), found (8, 6)");
  CHECK(weights_error(with("W_o.bias", torch::zeros({1, 8}))) ==
        "W_o.bias: expected shape (8,), found (1, 8)");
  CHECK(weights_error(with("W_o.bias", torch::zeros({}))) == "W_o.bias: expected shape (8,), found ()");
  CHECK(weights_error(with("W_o.bias", Tensor())) == "W_o.bias: expected a tensor, found an undefined one");
  CHECK(weights_error(with("W_q.weight", torch::zeros({0, 0}))) == "d_model must be positive, found 0");
}

TEST_CASE("num_heads must be positive and divide d_model", "[fused]") {
  CHECK(weights_error(weights(), 3) ==
        "d_model must be divisible by num_heads, found d_model 8 and num_heads 3");
  CHECK(weights_error(weights(), 0) == "num_heads must be positive, found 0");
  CHECK(weights_error(weights(), -2) == "num_heads must be positive, found -2");
}

TEST_CASE("weights of several dtypes or devices are refused", "[fused]") {
  CHECK(weights_error(with("W_o.weight", torch::zeros({8, 8}, torch::kDouble))) ==
        "W_o.weight: expected dtype float32 (that of W_q.weight), found float64");
  CHECK(weights_error(with("W_k.bias", torch::zeros({8}, torch::kLong))) ==
        "W_k.bias: expected dtype float32 (that of W_q.weight), found int64");
  CHECK(weights_error(with("W_q.weight", torch::zeros({8, 8}, torch::kLong))) ==
        "W_q.weight: expected dtype float32, bfloat16, float64 or float16, found int64");
  CHECK(weights_error(with("W_v.bias", torch::zeros({8}, torch::kMeta))) ==
        "W_v.bias: expected device cpu (that of W_q.weight), found meta");
}

TEST_CASE("a dtype converts the weights, of whatever floating point dtypes they are", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kHalf);
  const auto mixed = with("W_o.weight", weights()["W_o.weight"].to(torch::kDouble));
  const FusedMultiHeadAttention fused(mixed, 2, dtype);
  CHECK(fused.dtype() == dtype);
  MultiHeadAttention module(8, 2);
  module->to(torch::kDouble);
  {
    const torch::NoGradGuard no_gradients;
    for (auto& parameter : module->named_parameters()) {
      parameter.value().copy_(mixed[parameter.key()]);
    }
  }
  module->to(dtype);
  const auto x = torch::randn({2, 5, 8}).to(dtype);
  CHECK(bit_equal(fused(x), FusedMultiHeadAttention(module)(x)));

  CHECK(weights_error(weights(), 2, torch::kLong) ==
        "W_q.weight: expected dtype float32, bfloat16, float64 or float16, found int64");
  CHECK(weights_error(with("W_k.bias", torch::zeros({8}, torch::kLong)), 2, dtype) ==
        "W_k.bias: expected a floating point dtype, found int64");
}

TEST_CASE("an empty holder is refused", "[fused]") {
  CHECK(error_of<c10::ValueError>([] { const FusedMultiHeadAttention fused(MultiHeadAttention(nullptr)); }) ==
        "module: expected a module, found an empty holder");
}

TEST_CASE("bad arguments are refused in the lesson's words, by every call", "[fused]") {
  Trio trio(8, 2);
  const auto x = torch::randn({2, 5, 8});
  const auto seven = torch::randn({2, 7, 8});
  struct Arguments {
    Tensor query, key, value, mask;
  };
  const Arguments bad[] = {
      {{}, x, x, {}},
      {x, {}, x, {}},
      {x, x, {}, {}},
      {x[0], x, x, {}},
      {x, x.unsqueeze(0), x, {}},
      {x, x, torch::randn({2, 5, 9}), {}},
      {torch::randn({0, 5, 8}), torch::randn({0, 5, 8}), torch::randn({0, 5, 8}), {}},
      {x, torch::randn({1, 5, 8}), x, {}},
      {x, x, torch::randn({3, 5, 8}), {}},
      {x, x, seven, {}},
      {x, seven, x, {}},
      {x.to(torch::kDouble), x, x, {}},
      {x, x.to(torch::kBFloat16), x, {}},
      {x, x, torch::ones({2, 5, 8}, torch::kLong), {}},
      {x, x.to(torch::kMeta), x, {}},
      {x, x, x, torch::ones({5, 5}, torch::kMeta)},
      {x, seven, seven, torch::ones({7, 5})},
      {x, seven, seven, torch::ones({3, 5, 7})},
      {x, seven, seven, torch::ones({1, 2, 2, 5, 7})},
      {x, seven, seven, torch::ones({0})},
      {torch::randn({2, 1, 8}), seven, seven, torch::ones({5, 7})},
  };
  for (const auto& [query, key, value, mask] : bad) {
    const auto lesson = error_of<c10::ValueError>([&] { trio.lesson(query, key, value, mask); });
    REQUIRE(lesson != "");
    CAPTURE(lesson);
    CHECK(error_of<c10::ValueError>([&] { trio.fused(query, key, value, mask); }) == lesson);
    CHECK(error_of<c10::ValueError>([&] { trio.fused.describe(query, key, value, mask); }) == lesson);
  }
  CHECK(error_of<c10::ValueError>([&] { trio.fused(x[0]); }) ==
        "query: expected 3 dimensions (batch, length, d_model = 8), found shape (5, 8)");
  CHECK(error_of<c10::ValueError>([&] { trio.fused(x, seven[0], {}); }) ==
        "key: expected 3 dimensions (batch, length, d_model = 8), found shape (7, 8)");
  CHECK(error_of<c10::ValueError>([&] {
          trio.fused.attention_weights(x, torch::randn({1, 5, 8}));
        }) == "key: expected batch 2 (that of query), found shape (1, 5, 8)");
}

TEST_CASE("float16 takes no mask, but the causal rule", "[fused]") {
  Trio trio(8, 2, torch::kHalf);
  const auto x = trio.random(2, 5);
  for (const auto& mask : {torch::ones({5, 5}), torch::zeros({5, 5}, torch::kBool)}) {
    CHECK_THAT(error_of<c10::ValueError>([&] { trio.fused(x, mask); }),
               StartsWith("mask: expected none with float16 scores"));
  }
  CHECK(trio.fused(x, mha::CausalAlignment::top_left).isfinite().all().item<bool>());
}

TEST_CASE("inputs that require gradients are refused while gradients are recorded", "[fused]") {
  Trio trio(8, 2);
  const auto x = torch::randn({2, 5, 8});
  const auto leaf = x.clone().requires_grad_();
  const auto error = [&](const Tensor& query, const Tensor& key, const Tensor& value) {
    return error_of<c10::ValueError>([&] { trio.fused(query, key, value, {}); });
  };
  const std::string expected =
      ": expected no gradients to record, found a tensor that requires them; FusedMultiHeadAttention is for "
      "inference: call it under torch::NoGradGuard, or train with MultiHeadAttention";
  CHECK(error(leaf, x, x) == "query" + expected);
  CHECK(error(x, leaf, x) == "key" + expected);
  CHECK(error(x, x, leaf) == "value" + expected);
  CHECK(error(x, x, leaf * 2) == "value" + expected);
  CHECK(error_of<c10::ValueError>([&] { trio.fused.attention_weights(leaf, x); }) == "query" + expected);
  // Parameters that require gradients do not matter: their values were copied.
  CHECK_FALSE(trio.fused(x).requires_grad());
  const torch::NoGradGuard no_gradients;
  CHECK(bit_equal(trio.fused(leaf), trio.fused(x)));
  CHECK_FALSE(trio.fused(leaf).requires_grad());
}

TEST_CASE("tensors without plain memory are refused in one line", "[fused]") {
  torch::manual_seed(22);
  Trio trio(8, 2);
  const auto x = trio.random(2, 5);
  const auto error = [&](const Tensor& query, const Tensor& memory, const Tensor& mask) {
    const auto message = error_of<c10::ValueError>([&] { trio.fused(query, memory, mask); });
    CHECK(message.find('\n') == std::string::npos);
    CHECK(error_of<c10::ValueError>([&] { trio.fused.describe(query, memory, memory, mask); }) == message);
    return message;
  };
  const auto mask = torch::ones({5, 5});
  CHECK_THAT(error(x.to_sparse(), x, {}), StartsWith("query: expected a dense tensor"));
  CHECK_THAT(error(x, x.to_sparse(), {}), StartsWith("key: expected a dense tensor"));
  CHECK_THAT(error(x, x, mask.to_sparse()), StartsWith("mask: expected a dense tensor"));
  CHECK_THAT(error(x, x, mask.to_sparse_csr()), StartsWith("mask: expected a dense tensor"));
  CHECK_THAT(error(x.to_mkldnn(), x, {}), StartsWith("query: expected a dense tensor"));
  CHECK_THAT(error(x, x, at::_efficientzerotensor({5, 5}, torch::TensorOptions(torch::kBool))),
             StartsWith("mask: expected a dense tensor"));
}

TEST_CASE("tangents of forward-mode derivatives are not lost silently", "[fused]") {
  torch::manual_seed(23);
  Trio trio(8, 2);
  const auto x = trio.random(2, 5);
  const auto level = torch::autograd::forward_ad::enter_dual_level();
  const auto dual = at::_make_dual(x, torch::ones_like(x), static_cast<int64_t>(level));
  const auto message = error_of<c10::ValueError>([&] { trio.fused(dual); });
  torch::autograd::forward_ad::exit_dual_level(level);
  CHECK_THAT(message, StartsWith("query: expected no gradients to record"));
}

TEST_CASE("only dtypes in which attention can be computed are taken", "[fused]") {
  CHECK_THAT(weights_error(weights(), 2, torch::kFloat8_e4m3fn),
             StartsWith("W_q.weight: expected dtype float32, bfloat16, float64 or float16"));
  CHECK_THAT(weights_error(weights(), 2, torch::kLong), StartsWith("W_q.weight: expected dtype float32"));
  CHECK_THAT(weights_error(with("W_k.weight", torch::eye(8).to_sparse())),
             StartsWith("W_k.weight: expected a dense tensor"));
}
