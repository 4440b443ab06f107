// NaN, infinity and logits of any size: where they come out of the lesson, they come out of the engine.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>

#include "fused/fused_testing.h"

using mha::Masking;
using mha::testing::attend_problem;
using mha::testing::fused_attend;
using mha::testing::Heads;
using mha::testing::random_heads;
using torch::Tensor;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("NaN and infinity come out where they come out of the lesson", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto bad = GENERATE(not_a_number, infinity, -infinity);
  const auto key_len = GENERATE(1, 6, 70, 530);
  torch::manual_seed(1);
  const auto heads =
      random_heads({.batch = 2, .num_heads = 2, .query_len = 8, .key_len = key_len, .d_k = 5}, dtype);
  for (const int64_t position : {int64_t{0}, int64_t{key_len / 2}, int64_t{key_len - 1}}) {
    // Blocked for half of the rows, kept for the others.
    auto half = torch::ones({8, key_len}, torch::kBool);
    half.slice(0, 0, 4).select(1, position).zero_();
    for (const auto& masking : {Masking(), Masking(half)}) {
      CAPTURE(dtype, bad, key_len, position, masking.mask.defined());
      const auto spoilt = [&](const Tensor& x, int64_t row) {
        auto copy = x.clone();
        copy[1][row][1][2] = bad;
        return copy;
      };
      const Heads bad_key = {heads.query, spoilt(heads.key, position), heads.value};
      const Heads bad_value = {heads.query, heads.key, spoilt(heads.value, position)};
      const Heads bad_query = {spoilt(heads.query, 3), heads.key, heads.value};
      CHECK(attend_problem(bad_key, masking) == "");
      CHECK(attend_problem(bad_value, masking) == "");
      CHECK(attend_problem(bad_query, masking) == "");
      // The lesson's own rule: what is blocked is replaced, but 0 times the value is NaN.
      const auto rows = fused_attend(bad_value, masking)[1].select(1, 1);  // (L, d_k)
      CHECK_FALSE(rows.select(1, 2).isfinite().any().item<bool>());
      CHECK(rows.select(1, 1).isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("a blocked key that is NaN or infinite does not matter", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto bad = GENERATE(not_a_number, infinity, -infinity);
  torch::manual_seed(2);
  auto heads = random_heads({.batch = 1, .num_heads = 2, .query_len = 5, .key_len = 70, .d_k = 5}, dtype);
  auto keep = torch::ones({70});
  keep[0] = 0;
  keep[40] = 0;
  keep[69] = 0;
  const auto expected = fused_attend(heads, keep);
  heads.key[0].masked_fill_((keep == 0).view({70, 1, 1}), bad);
  CHECK(torch::equal(fused_attend(heads, keep), expected));
  CHECK(expected.isfinite().all().item<bool>());
}

TEST_CASE("whole blocks of NaN and infinite scores", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto bad = GENERATE(not_a_number, infinity, -infinity);
  torch::manual_seed(3);
  // All scores of a block of keys, or of all of them, are NaN, +inf or -inf: the sign of the query decides.
  for (const auto& [first, keys] :
       {std::pair<int64_t, int64_t>{0, 520}, {512, 88}, {0, 600}, {0, 1}, {16, 16}, {599, 1}}) {
    auto heads = random_heads({.batch = 1, .num_heads = 1, .query_len = 12, .key_len = 600, .d_k = 1}, dtype);
    heads.query.copy_(heads.query.abs() + 0.5);
    heads.key.narrow(1, first, keys).fill_(bad);
    CAPTURE(dtype, bad, first, keys);
    CHECK(attend_problem(heads) == "");
    CHECK(attend_problem(heads, torch::rand({12, 600}) > 0.5) == "");
    CHECK(attend_problem(heads, torch::zeros({12, 600})) == "");
  }
}

TEST_CASE("logits below the fill lose to blocked keys", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto key_len = GENERATE(2, 17, 600);
  torch::manual_seed(4);
  // One score is 0, the others are -1e10.
  auto heads =
      random_heads({.batch = 1, .num_heads = 1, .query_len = 7, .key_len = key_len, .d_k = 1}, dtype);
  heads.query.fill_(1e5);
  heads.key.fill_(-1e5);
  heads.key[0][key_len / 2] = 0;
  auto keep = torch::rand({7, key_len}) > 0.5;
  keep[0].fill_(true);
  keep[1].fill_(false);
  keep[2].fill_(true);
  keep[2][key_len / 2] = false;
  keep[3].fill_(true);
  keep[3][0] = false;
  CAPTURE(dtype, key_len);
  CHECK(attend_problem(heads, keep) == "");
  const auto output = fused_attend(heads, keep)[0];
  const auto& value = heads.value[0];
  CHECK(torch::equal(output[0], value[key_len / 2]));  // 0 wins
  CHECK(torch::equal(output[2], value[key_len / 2]));  // blocked, and yet -1e9 wins against -1e10
  CHECK(torch::equal(output[3], value[key_len / 2]));  // 0 wins against -1e9
}

TEST_CASE("logits of any size", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const double size = GENERATE(1e-30, 1e-3, 10.0, 90.0, 1e3, 1e4, 1e8, 1e12, 1e20, 1e30);
  torch::manual_seed(5);
  auto heads =
      random_heads({.batch = 1, .num_heads = 2, .query_len = 70, .key_len = 530, .d_k = 16}, torch::kFloat);
  heads.query.mul_(size);
  const auto keep = torch::rand({70, 530}) > 0.5;
  CAPTURE(dtype, size);
  CHECK(attend_problem(heads.to(dtype)) == "");
  CHECK(attend_problem(heads.to(dtype), keep) == "");
  CHECK(fused_attend(heads.to(dtype), keep).isfinite().all().item<bool>());
}

TEST_CASE("logits of any size in bfloat16", "[fused]") {
  const double size = GENERATE(1e-30, 1e-3, 1.0, 10.0, 1e3, 1e8, 1e12, 1e30);
  torch::manual_seed(6);
  auto heads =
      random_heads({.batch = 1, .num_heads = 2, .query_len = 70, .key_len = 530, .d_k = 16}, torch::kFloat);
  heads.query.mul_(size);
  CAPTURE(size);
  CHECK(attend_problem(heads.to(torch::kBFloat16)) == "");
}

TEST_CASE("values of any size", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const double size = GENERATE(1e-41, 1e-30, 1e30, 1e37);
  torch::manual_seed(7);
  auto heads =
      random_heads({.batch = 1, .num_heads = 2, .query_len = 9, .key_len = 70, .d_k = 16}, torch::kFloat);
  heads.value.mul_(size);
  CAPTURE(dtype, size);
  CHECK(attend_problem(heads.to(dtype)) == "");
}

TEST_CASE("growing and falling logits, so that the running maximum moves at every block or never",
          "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto falling = GENERATE(false, true);
  torch::manual_seed(8);
  auto heads =
      random_heads({.batch = 1, .num_heads = 1, .query_len = 9, .key_len = 2100, .d_k = 4}, torch::kFloat);
  const auto ramp = torch::linspace(-20, 20, 2100).view({1, 2100, 1, 1});
  heads.query.fill_(1);
  heads.key.copy_(falling ? ramp.flip(1) : ramp);
  CAPTURE(dtype, falling);
  CHECK(attend_problem(heads.to(dtype)) == "");
}
