// Inputs on which sums drift, and sizes that oneDNN is given in padded form.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::testing::attend_problem;
using mha::testing::Heads;
using mha::testing::Trio;

TEST_CASE("long sums of values of one sign are as exact as the lesson's", "[fused]") {
  torch::manual_seed(31);
  const int64_t key_len = GENERATE(512, 1536, 4096, 16384);
  const int64_t d_k = 64;
  const auto query = torch::randn({1, 8, 1, d_k});
  const auto one_key = torch::randn({1, 1, 1, d_k}).expand({1, key_len, 1, d_k}).contiguous();
  const auto keys = torch::randn({1, key_len, 1, d_k});
  const auto one_value = torch::randn({1, 1, 1, d_k}).expand({1, key_len, 1, d_k}).contiguous();
  const auto values_about_one = torch::randn({1, key_len, 1, d_k}) * 0.1 + 1;
  CAPTURE(key_len);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    CAPTURE(dtype);
    CHECK(attend_problem(Heads{query, one_key, one_value}.to(dtype)) == "");
    CHECK(attend_problem(Heads{query, keys, one_value}.to(dtype)) == "");
    CHECK(attend_problem(Heads{query, keys, values_about_one}.to(dtype)) == "");
  }
}

TEST_CASE("a sequence of one token, repeated", "[fused]") {
  torch::manual_seed(32);
  Trio trio(128, 2);
  const auto x = trio.random(1, 1).expand({1, 4096, 128}).contiguous();
  CHECK(trio.problem(x, x, x) == "");
}

TEST_CASE("outputs of any number of rows hold no more memory than they need", "[fused]") {
  torch::manual_seed(33);
  Trio trio(24, 3, GENERATE(torch::kFloat, torch::kBFloat16));
  for (const int64_t length : {1, 16, 17, 33, 35, 100, 129, 130, 257, 1000}) {
    const auto x = trio.random(2, length);
    const auto y = trio.fused(x);
    CAPTURE(length);
    CHECK(y.is_contiguous());
    CHECK(static_cast<int64_t>(y.storage().nbytes()) == y.numel() * static_cast<int64_t>(y.itemsize()));
    CHECK(trio.problem_of(y, x, x, x) == "");
  }
}

TEST_CASE("wide heads are as exact as narrow ones", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    torch::manual_seed(seed);
    for (const int64_t d_k : {512, 1024, 2048}) {
      for (const auto& [query_len, key_len] :
           {std::pair<int64_t, int64_t>{1, 200}, {17, 20}, {70, 20}, {70, 200}}) {
        const auto heads = mha::testing::random_heads(
            {.batch = 1, .num_heads = 2, .query_len = query_len, .key_len = key_len, .d_k = d_k}, dtype);
        CAPTURE(dtype, seed, d_k, query_len, key_len);
        CHECK(mha::testing::attend_problem(heads) == "");
      }
    }
  }
}
