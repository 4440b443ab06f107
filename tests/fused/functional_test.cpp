// The lesson's function by the engine's kernels.
#include <torch/torch.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::CausalAlignment;
using mha::fused_scaled_dot_product_attention;
using mha::Masking;
using mha::testing::bit_equal;
using mha::testing::error_of;
using mha::testing::lesson_mask;
using mha::testing::problem;
using torch::Tensor;

namespace {

struct Inputs {
  Tensor query;
  Tensor key;
  Tensor value;
};

/// (B, H, length, d_k)
Inputs random_inputs(int64_t query_len, int64_t key_len, int64_t d_k, torch::ScalarType dtype) {
  const auto random = [&](int64_t length) { return torch::randn({2, 3, length, d_k}).to(dtype); };
  return {random(query_len), random(key_len), random(key_len)};
}

std::string problem_of(const Inputs& inputs, const Masking& masking = {}) {
  const auto& [query, key, value] = inputs;
  const auto mask = lesson_mask(masking, query.size(2), key.size(2));
  const auto lesson = [&](const Tensor& values, torch::ScalarType dtype) {
    return mha::scaled_dot_product_attention(query.to(dtype), key.to(dtype), values.to(dtype), mask).output;
  };
  return problem(fused_scaled_dot_product_attention(query, key, value, masking),
                 lesson(value, value.scalar_type()), lesson(value, torch::kDouble),
                 lesson(value.abs(), torch::kDouble));
}

}  // namespace

TEST_CASE("the function computes what the lesson's does", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(1);
  for (const auto& [query_len, key_len] : {std::pair<int64_t, int64_t>{1, 40}, {7, 7}, {40, 30}}) {
    for (const int64_t d_k : {1, 24, 64}) {
      const auto inputs = random_inputs(query_len, key_len, d_k, dtype);
      CAPTURE(dtype, query_len, key_len, d_k);
      CHECK(problem_of(inputs) == "");
      CHECK(problem_of(inputs, torch::rand({2, 1, query_len, key_len}) > 0.4) == "");
      CHECK(problem_of(inputs, CausalAlignment::bottom_right) == "");
      CHECK(problem_of(inputs, {torch::rand({key_len}) > 0.4, CausalAlignment::top_left}) == "");
    }
  }
}

TEST_CASE("the function takes any strides", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(2);
  for (const int64_t query_len : {3, 30}) {
    const auto [query, key, value] = random_inputs(query_len, 20, 24, dtype);
    const auto expected = fused_scaled_dot_product_attention(query, key, value);
    CHECK(expected.is_contiguous());
    const auto moved = [](const Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); };
    const auto turned = [](const Tensor& x) { return x.transpose(2, 3).contiguous().transpose(2, 3); };
    CHECK(bit_equal(fused_scaled_dot_product_attention(moved(query), moved(key), moved(value)), expected));
    CHECK(bit_equal(fused_scaled_dot_product_attention(turned(query), turned(key), turned(value)), expected));
  }
}

TEST_CASE("the function of nothing", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto nothing = [&](std::array<int64_t, 4> query, std::array<int64_t, 4> key) {
    const auto x = torch::ones(key, dtype);
    return fused_scaled_dot_product_attention(torch::ones(query, dtype), x, x);
  };
  CHECK(bit_equal(nothing({2, 3, 4, 8}, {2, 3, 0, 8}), torch::zeros({2, 3, 4, 8}, dtype)));
  CHECK(nothing({2, 3, 0, 8}, {2, 3, 5, 8}).sizes() == torch::IntArrayRef({2, 3, 0, 8}));
  CHECK(nothing({2, 3, 4, 0}, {2, 3, 5, 0}).sizes() == torch::IntArrayRef({2, 3, 4, 0}));
  CHECK(nothing({2, 3, 40, 0}, {2, 3, 5, 0}).sizes() == torch::IntArrayRef({2, 3, 40, 0}));
}

TEST_CASE("what the function refuses", "[fused]") {
  const auto [query, key, value] = random_inputs(4, 5, 8, torch::kFloat);
  const auto error = [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask = {}) {
    return error_of<c10::ValueError>([&] { fused_scaled_dot_product_attention(q, k, v, mask); });
  };
  CHECK(error(query[0], key, value) ==
        "query: expected 4 dimensions (batch, num_heads, length, d_k), found shape (3, 4, 8)");
  CHECK(error(query, Tensor(), value) == "key: expected a tensor, found an undefined one");
  CHECK(error(query, key.slice(3, 1), value) ==
        "key: expected batch, num_heads and d_k of query, (2, 3, 4, 8), found shape (2, 3, 5, 7)");
  CHECK(error(query, key, value.slice(2, 1)) ==
        "value: expected length 5 (key_len), found shape (2, 3, 4, 8)");
  CHECK(error(query, key.to(torch::kDouble), value) ==
        "key: expected dtype float32 (that of query), found float64");
  CHECK(error(query, key, value, torch::ones({3, 5})).starts_with("mask: expected a shape that broadcasts"));
  CHECK(error(query, key, value.detach().requires_grad_())
            .starts_with("value: expected no gradients to record"));
  CHECK(error(query.to(torch::kLong), key, value) ==
        "query: expected dtype float32, bfloat16, float64 or float16, found int64");
  CHECK(error(query.to(torch::kFloat8_e4m3fn), key, value)
            .starts_with("query: expected dtype float32, bfloat16"));
  CHECK(error(query.to(torch::kMeta), key, value).starts_with("query: expected"));
  CHECK(error(at::_neg_view(query), key, value).starts_with("query: expected a dense tensor"));
}
