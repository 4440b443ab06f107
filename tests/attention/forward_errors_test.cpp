// Everything that forward refuses, and how it says so.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "mha/attention.h"
#include "testing.h"

using Catch::Matchers::StartsWith;
using mha::MultiHeadAttention;
using mha::testing::error_of;
using torch::Tensor;

namespace {

std::string forward_error(const Tensor& query, const Tensor& key, const Tensor& value,
                          const Tensor& mask = {}) {
  MultiHeadAttention attention(8, 2);
  return error_of<c10::ValueError>([&] { attention(query, key, value, mask); });
}

std::string mask_error(const Tensor& mask) {
  const auto query = torch::randn({2, 5, 8});
  const auto memory = torch::randn({2, 7, 8});
  return forward_error(query, memory, memory, mask);
}

}  // namespace

TEST_CASE("forward names the input that is undefined") {
  const auto x = torch::randn({2, 5, 8});
  CHECK(forward_error({}, x, x) == "query: expected a tensor, found an undefined one");
  CHECK(forward_error(x, {}, x) == "key: expected a tensor, found an undefined one");
  CHECK(forward_error(x, x, {}) == "value: expected a tensor, found an undefined one");
}

TEST_CASE("forward takes three dimensions only") {
  const auto x = torch::randn({2, 5, 8});
  CHECK(forward_error(x[0], x, x) ==
        "query: expected 3 dimensions (batch, length, d_model = 8), found shape (5, 8)");
  CHECK(forward_error(x, x.unsqueeze(0), x) ==
        "key: expected 3 dimensions (batch, length, d_model = 8), found shape (1, 2, 5, 8)");
  CHECK(forward_error(x, x, torch::tensor(1.0F)) ==
        "value: expected 3 dimensions (batch, length, d_model = 8), found shape ()");
}

TEST_CASE("forward names a wrong width") {
  const auto x = torch::randn({2, 5, 8});
  const auto wide = torch::randn({2, 5, 9});
  CHECK(forward_error(wide, x, x) == "query: expected last dimension 8 (d_model), found shape (2, 5, 9)");
  CHECK(forward_error(x, wide, x) == "key: expected last dimension 8 (d_model), found shape (2, 5, 9)");
  CHECK(forward_error(x, x, wide) == "value: expected last dimension 8 (d_model), found shape (2, 5, 9)");
}

TEST_CASE("forward refuses batch 0 and unequal batches, which Python refuses or folds") {
  const auto x = torch::randn({2, 5, 8});
  const auto empty = torch::randn({0, 5, 8});
  CHECK(forward_error(empty, empty, empty) == "query: expected a batch of at least 1, found shape (0, 5, 8)");
  const auto four = torch::randn({4, 5, 8});
  CHECK(forward_error(x, four, four) == "key: expected batch 2 (that of query), found shape (4, 5, 8)");
  CHECK(forward_error(x, x, four) == "value: expected batch 2 (that of query), found shape (4, 5, 8)");
  CHECK(forward_error(x, torch::randn({1, 5, 8}), x) ==
        "key: expected batch 2 (that of query), found shape (1, 5, 8)");
}

TEST_CASE("forward refuses a value of another length than its key") {
  const auto x = torch::randn({2, 5, 8});
  CHECK(forward_error(x, x, torch::randn({2, 6, 8})) ==
        "value: expected length 5 (key_len), found shape (2, 6, 8)");
}

TEST_CASE("forward refuses other dtypes and devices than the parameters'") {
  const auto x = torch::randn({2, 5, 8});
  CHECK(forward_error(x.to(torch::kDouble), x, x) ==
        "query: expected dtype float32 (that of the parameters), found float64");
  CHECK(forward_error(x, x.to(torch::kHalf), x) ==
        "key: expected dtype float32 (that of the parameters), found float16");
  CHECK(forward_error(x, x, torch::ones({2, 5, 8}, torch::kLong)) ==
        "value: expected dtype float32 (that of the parameters), found int64");
  CHECK(forward_error(x, x.to(torch::kMeta), x) ==
        "key: expected device cpu (that of the parameters), found meta");
  CHECK(forward_error(x, x, x, torch::ones({5, 5}, torch::kMeta)) ==
        "mask: expected device cpu (that of query), found meta");
}

TEST_CASE("forward refuses a mask that does not broadcast to the scores or would enlarge them") {
  const std::string expected =
      "mask: expected a shape that broadcasts to (batch, num_heads, query_len, key_len) = (2, 2, 5, 7) "
      "without "
      "enlarging it, found ";
  CHECK(mask_error(torch::ones({7, 5})) == expected + "(7, 5)");
  CHECK(mask_error(torch::ones({6})) == expected + "(6,)");
  CHECK(mask_error(torch::ones({3, 5, 7})) == expected + "(3, 5, 7)");
  CHECK(mask_error(torch::ones({4, 1, 5, 7})) == expected + "(4, 1, 5, 7)");
  CHECK(mask_error(torch::ones({2, 3, 5, 7})) == expected + "(2, 3, 5, 7)");
  CHECK(mask_error(torch::ones({1, 2, 2, 5, 7})) == expected + "(1, 2, 2, 5, 7)");
  CHECK(mask_error(torch::ones({0})) == expected + "(0,)");
  // One query: a mask of more rows would enlarge the scores silently.
  const auto one = torch::randn({2, 1, 8});
  const auto memory = torch::randn({2, 7, 8});
  CHECK_THAT(
      forward_error(one, memory, memory, torch::ones({5, 7})),
      StartsWith(
          "mask: expected a shape that broadcasts to (batch, num_heads, query_len, key_len) = (2, 2, 1, 7)"));
}

TEST_CASE("forward refuses any mask in float16, as PyTorch does, and says what to do") {
  MultiHeadAttention attention(8, 2);
  attention->to(torch::kHalf);
  const auto x = torch::randn({2, 5, 8}).to(torch::kHalf);
  for (const auto& mask : {torch::ones({5, 5}), torch::zeros({5, 5}, torch::kBool)}) {
    const auto message = error_of<c10::ValueError>([&] { attention(x, x, x, mask); });
    CHECK_THAT(message, StartsWith("mask: expected none with float16 scores"));
    CHECK_THAT(message,
               Catch::Matchers::ContainsSubstring("cannot be converted to type at::Half without overflow"));
    CHECK_THAT(message, Catch::Matchers::ContainsSubstring("Use bfloat16 or float32"));
  }
  CHECK(attention(x, x, x).scalar_type() == torch::kHalf);
}

TEST_CASE("forward refuses a module whose parameters are of several dtypes") {
  const auto x = torch::randn({2, 5, 8});
  for (const char* layer : {"W_k", "W_v", "W_o"}) {
    MultiHeadAttention attention(8, 2);
    attention->named_children()[layer]->to(torch::kDouble);
    CHECK(error_of<c10::ValueError>([&] { attention(x, x, x); }) ==
          std::string(layer) + ".weight: expected dtype float32 (that of W_q.weight), found float64");
  }
}

TEST_CASE("a refused call leaves attention_weights as they were") {
  MultiHeadAttention attention(8, 2);
  const auto x = torch::randn({2, 5, 8});
  attention(x, x, x);
  const auto before = attention->attention_weights;
  CHECK_THROWS_AS(attention(x, x, torch::randn({2, 6, 8})), c10::ValueError);
  CHECK(attention->attention_weights.is_same(before));
}

TEST_CASE("scaled_dot_product_attention checks its own arguments") {
  const auto sdpa_error = [](const Tensor& query, const Tensor& key, const Tensor& value,
                             const Tensor& mask = {}) {
    return error_of<c10::ValueError>([&] { mha::scaled_dot_product_attention(query, key, value, mask); });
  };
  const auto q = torch::randn({2, 3, 5, 4});
  const auto k = torch::randn({2, 3, 7, 4});
  CHECK(sdpa_error({}, k, k) == "query: expected a tensor, found an undefined one");
  CHECK(sdpa_error(torch::randn({4}), k, k) ==
        "query: expected at least 2 dimensions (..., length, width), found shape (4,)");
  CHECK(sdpa_error(q, torch::randn({2, 3, 7, 5}), k) ==
        "key: expected last dimension 4 (d_k of query), found shape (2, 3, 7, 5)");
  CHECK(sdpa_error(q, k, torch::randn({2, 3, 6, 4})) ==
        "value: expected length 7 (key_len), found shape (2, 3, 6, 4)");
  CHECK(sdpa_error(q, torch::randn({4, 3, 7, 4}), k) ==
        "key: expected leading dimensions that broadcast with (2, 3) (those before it), found shape (4, 3, "
        "7, 4)");
  CHECK(sdpa_error(q, k, torch::randn({4, 3, 7, 4})) ==
        "value: expected leading dimensions that broadcast with (2, 3) (those before it), found shape (4, 3, "
        "7, 4)");
  CHECK(sdpa_error(q.to(torch::kLong), k, k) == "query: expected a floating point dtype, found int64");
  const auto half = q.to(torch::kHalf);
  CHECK_THAT(sdpa_error(half, half, half, torch::ones({5})),
             StartsWith("mask: expected none with float16 scores"));
  CHECK(sdpa_error(q, k.to(torch::kDouble), k) ==
        "key: expected dtype float32 (that of query), found float64");
  CHECK(
      sdpa_error(q, k, k, torch::ones({4, 7})) ==
      "mask: expected a shape that broadcasts to the scores (..., query_len, key_len) = (2, 3, 5, 7) without "
      "enlarging it, found (4, 7)");
}

TEST_CASE("scaled_dot_product_attention takes any leading dimensions and another width of value") {
  const auto q = torch::randn({5, 4});
  const auto k = torch::randn({7, 4});
  const auto v = torch::randn({7, 3});
  const auto [output, weights] = mha::scaled_dot_product_attention(q, k, v);
  CHECK(output.sizes() == torch::IntArrayRef({5, 3}));
  CHECK(weights.sizes() == torch::IntArrayRef({5, 7}));
  const auto batched = mha::scaled_dot_product_attention(q.expand({2, 1, 5, 4}), k.expand({3, 7, 4}), v);
  CHECK(batched.output.sizes() == torch::IntArrayRef({2, 3, 5, 3}));
  CHECK(torch::allclose(batched.output, output.expand({2, 3, 5, 3})));
}
