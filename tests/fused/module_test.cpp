// FusedMultiHeadAttention as its users call it.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fused/fused_testing.h"
#include "testing.h"

using Catch::Matchers::ContainsSubstring;
using mha::CausalAlignment;
using mha::FusedMultiHeadAttention;
using mha::Masking;
using mha::testing::bit_equal;
using mha::testing::Trio;
using torch::Tensor;

TEST_CASE("every dtype computes what the lesson computes", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kHalf);
  torch::manual_seed(1);
  for (const auto& [d_model, num_heads] : {std::pair<int64_t, int64_t>{64, 4}, {12, 12}, {33, 1}, {96, 1}}) {
    Trio trio(d_model, num_heads, dtype);
    CHECK(trio.fused.dtype() == dtype);
    CHECK(trio.fused.device() == torch::kCPU);
    CHECK(trio.fused.d_model() == d_model);
    CHECK(trio.fused.num_heads() == num_heads);
    const auto query = trio.random(3, 20);
    const auto memory = trio.random(3, 33);
    CAPTURE(dtype, d_model, num_heads);
    CHECK(trio.problem(query, query, query) == "");
    CHECK(trio.problem(query, memory, memory) == "");
    if (dtype != torch::kHalf) {
      CHECK(trio.problem(query, memory, memory, torch::rand({3, 1, 20, 33}) > 0.3) == "");
      CHECK(trio.problem(query, query, query, CausalAlignment::top_left) == "");
    }
  }
}

TEST_CASE("the lesson's question: (32, 50, 512) with 8 heads", "[fused]") {
  torch::manual_seed(2);
  Trio trio(512, 8);
  const auto x = trio.random(32, 50);
  CHECK(trio.problem(x, x, x, mha::causal_mask(50)) == "");
  CHECK(trio.problem(x, x, x, CausalAlignment::top_left) == "");
}

TEST_CASE("self-attention, cross-attention and the general call agree", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(3);
  Trio trio(24, 3, dtype);
  const auto x = trio.random(2, 9);
  const auto memory = trio.random(2, 17);
  const auto self_mask = torch::rand({9, 9}) > 0.3;
  const auto cross_mask = torch::rand({9, 17}) > 0.3;
  for (const bool masked : {false, true}) {
    const Masking self = masked ? Masking(self_mask) : Masking();
    const Masking cross = masked ? Masking(cross_mask) : Masking();
    CHECK(bit_equal(trio.fused(x, self), trio.fused(x, x, x, self)));
    CHECK(bit_equal(trio.fused(x, self), trio.fused(x, x, self)));
    CHECK(bit_equal(trio.fused(x, memory, cross), trio.fused(x, memory, memory, cross)));
    // The same numbers in other tensors: other products, the same maths.
    CHECK(trio.problem_of(trio.fused(x, x.clone(), x.clone(), self), x, x, x, self) == "");
    CHECK(trio.problem_of(trio.fused(x, memory.clone(), memory, cross), x, memory, memory, cross) == "");
  }
  CHECK(bit_equal(trio.fused(x), trio.fused(x, {})));
}

TEST_CASE("any two of query, key and value may be one tensor", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(4);
  Trio trio(24, 3, dtype);
  const auto a = trio.random(2, 9);
  const auto b = trio.random(2, 9);
  const auto c = trio.random(2, 9);
  const Tensor choices[] = {a, b, c};
  for (const auto& query : choices) {
    for (const auto& key : choices) {
      for (const auto& value : choices) {
        CHECK(trio.problem(query, key, value) == "");
      }
    }
  }
  // Another handle to the same memory is another tensor.
  CHECK(trio.problem(a, a.alias(), a.view_as(a)) == "");
}

TEST_CASE("attention_weights are the lesson's", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(5);
  Trio trio(24, 3, dtype);
  const auto query = trio.random(2, 9);
  const auto memory = trio.random(2, 17);
  auto keep = torch::rand({2, 3, 9, 17}) > 0.3;
  keep[1][2][4].zero_();
  const torch::NoGradGuard no_gradients;
  for (const auto& masking : {Masking(), Masking(keep), Masking(CausalAlignment::bottom_right),
                              Masking(keep, CausalAlignment::top_left)}) {
    const auto mask = mha::testing::lesson_mask(masking, 9, 17);
    trio.lesson(query, memory, memory, mask);
    trio.float64(query.to(torch::kDouble), memory.to(torch::kDouble), memory.to(torch::kDouble), mask);
    const auto weights = trio.fused.attention_weights(query, memory, masking);
    CHECK(mha::testing::problem(weights, trio.lesson->attention_weights, trio.float64->attention_weights) ==
          "");
    if (masking.mask.defined()) {
      CHECK(bit_equal(weights[1][2][4], torch::full({17}, 1.0 / 17, dtype)));
    }
  }
  CHECK(trio.fused.attention_weights(query, query).sizes() == torch::IntArrayRef({2, 3, 9, 9}));
}

TEST_CASE("lengths of zero are computed as the lesson does", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kHalf);
  torch::manual_seed(6);
  Trio trio(12, 3, dtype);
  const auto some = trio.random(2, 3);
  const auto none = trio.random(2, 0);
  CAPTURE(dtype);
  CHECK(trio.fused(none, some, {}).sizes() == torch::IntArrayRef({2, 0, 12}));
  CHECK(trio.fused(none).sizes() == torch::IntArrayRef({2, 0, 12}));
  CHECK(trio.fused(none).scalar_type() == dtype);
  // No key: the context is 0, what remains is the output bias.
  CHECK(bit_equal(trio.fused(some, none, {}), trio.lesson->W_o->bias.detach().expand({2, 3, 12})));
  CHECK(trio.fused.attention_weights(some, none).sizes() == torch::IntArrayRef({2, 3, 3, 0}));
  CHECK(trio.fused.attention_weights(none, some).sizes() == torch::IntArrayRef({2, 3, 0, 3}));
}

TEST_CASE("inputs of any strides", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(7);
  Trio trio(24, 3, dtype);
  const auto x = trio.random(2, 9);
  const auto transposed = x.transpose(0, 1).contiguous().transpose(0, 1);
  const auto features_first = x.transpose(1, 2).contiguous().transpose(1, 2);
  const auto strided = torch::stack({x, x + 1}, -1).select(-1, 0);
  const auto padded = torch::cat({x, x + 1}, 1).slice(1, 0, 9);
  const auto one_off = torch::cat({x.flatten(), x.flatten()}).slice(0, 1, 1 + x.numel()).view_as(x);
  for (const auto& view : {transposed, features_first, strided, padded, one_off}) {
    CHECK(trio.problem(view, view, view) == "");
    CHECK(trio.problem(x, view, view, torch::rand({9, 9}) > 0.3) == "");
  }
  for (const auto& expanded : {x.slice(0, 0, 1).expand({4, 9, 24}), x.slice(1, 0, 1).expand({2, 9, 24}),
                               x.slice(2, 0, 1).expand({2, 9, 24}), x[0][0][0].expand({2, 9, 24})}) {
    CHECK(trio.problem(expanded, expanded, expanded) == "");
  }
}

TEST_CASE("the module's later changes do not reach it, nor does its mode", "[fused]") {
  torch::manual_seed(8);
  mha::MultiHeadAttention module(24, 3, 0.5);
  const FusedMultiHeadAttention of_training(module);
  module->eval();
  const FusedMultiHeadAttention fused(module);
  const auto x = torch::randn({2, 9, 24});
  const auto expected = fused(x);
  CHECK(torch::allclose(expected, module(x, x, x), 1e-4, 1e-5));
  CHECK(bit_equal(of_training(x), expected));
  {
    const torch::NoGradGuard no_gradients;
    for (auto& parameter : module->parameters()) {
      parameter.zero_();
    }
  }
  CHECK(bit_equal(fused(x), expected));
  module->to(torch::kDouble);
  CHECK(bit_equal(fused(x), expected));
  CHECK(bit_equal(FusedMultiHeadAttention(module)(x.to(torch::kDouble)),
                  torch::zeros({2, 9, 24}, torch::kDouble)));
}

TEST_CASE("neither inputs nor weights are changed, and no result shares memory with another", "[fused]") {
  torch::manual_seed(9);
  Trio trio(24, 3);
  const auto x = trio.random(2, 9);
  const auto before = x.clone();
  const auto first = trio.fused(x);
  const auto copy = first.clone();
  const auto second = trio.fused(x);
  CHECK(bit_equal(second, first));
  second.zero_();
  CHECK(bit_equal(first, copy));
  CHECK(bit_equal(trio.fused(x), copy));
  CHECK(bit_equal(x, before));
  CHECK(first.is_contiguous());
}

TEST_CASE("copies share the weights and outlive the original", "[fused]") {
  torch::manual_seed(10);
  const auto x = torch::randn({2, 9, 24});
  auto original = std::make_unique<FusedMultiHeadAttention>(mha::MultiHeadAttention(24, 3));
  const auto expected = (*original)(x);
  const FusedMultiHeadAttention copy = *original;
  FusedMultiHeadAttention assigned(mha::MultiHeadAttention(12, 2));
  assigned = copy;
  original.reset();
  CHECK(bit_equal(copy(x), expected));
  CHECK(bit_equal(assigned(x), expected));
  CHECK(assigned.d_model() == 24);
}

TEST_CASE("describe names the path", "[fused]") {
  const auto describe = [](torch::ScalarType dtype, const Masking& masking) {
    Trio trio(24, 3, dtype);
    const auto x = trio.random(2, 9);
    return trio.fused.describe(x, x, x, masking);
  };
  const Masking mask(torch::ones({9, 9}));
  CHECK_THAT(describe(torch::kFloat, {}),
             ContainsSubstring("float32 on cpu: query + key + value projected by "));
  CHECK_THAT(describe(torch::kBFloat16, {}), ContainsSubstring("bfloat16 on cpu: "));
  CHECK_THAT(describe(torch::kDouble, {}),
             ContainsSubstring("float64 on cpu: ") && ContainsSubstring("at::linear") &&
                 ContainsSubstring("the lesson's steps, some query rows at a time"));
  CHECK_THAT(describe(torch::kDouble, mask),
             ContainsSubstring("the lesson's steps, some query rows at a time"));
  CHECK_THAT(describe(torch::kHalf, CausalAlignment::top_left),
             ContainsSubstring("float16 on cpu: ") && ContainsSubstring("the lesson's steps"));
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    CHECK((describe(dtype, mask).find("own kernels") != std::string::npos) ==
          mha::fused::has_core(dtype, torch::kCPU));
  }
  // Which inputs share a product.
  Trio trio(24, 3);
  const auto x = trio.random(2, 9);
  const auto y = trio.random(2, 9);
  CHECK_THAT(trio.fused.describe(x, y, y), ContainsSubstring("query, key + value"));
  CHECK_THAT(trio.fused.describe(x, x, y), ContainsSubstring("query + key, value"));
  CHECK_THAT(trio.fused.describe(x, y, x), ContainsSubstring("query, key, value"));
}

TEST_CASE("the weights come back as they were given", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kHalf);
  torch::manual_seed(8);
  for (const auto& [d_model, num_heads] : {std::pair<int64_t, int64_t>{1, 1}, {30, 3}, {72, 4}}) {
    mha::MultiHeadAttention module(d_model, num_heads);
    module->to(dtype);
    const auto expected = mha::state_dict(*module);
    const auto found = FusedMultiHeadAttention(module).state_dict();
    REQUIRE(found.size() == 8);
    for (const auto& item : expected) {
      CAPTURE(dtype, d_model, item.key());
      CHECK(bit_equal(found[item.key()], item.value()));
      CHECK(found[item.key()].storage().nbytes() == found[item.key()].nbytes());
    }
  }
}
