// The causal rule without a mask tensor: what the mask would give, but keys that nobody sees are not read.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::CausalAlignment;
using mha::Masking;
using mha::testing::attend_problem;
using mha::testing::bit_equal;
using mha::testing::fused_attend;
using mha::testing::Heads;
using mha::testing::problem;
using mha::testing::random_heads;
using torch::Tensor;

TEST_CASE("both alignments give what their masks give, for any lengths", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto alignment = GENERATE(CausalAlignment::top_left, CausalAlignment::bottom_right);
  torch::manual_seed(1);
  for (const auto& [query_len, key_len] : {std::pair<int64_t, int64_t>{1, 1},
                                           {1, 64},
                                           {64, 1},
                                           {7, 9},
                                           {9, 7},
                                           {64, 64},
                                           {65, 65},
                                           {63, 128},
                                           {128, 63},
                                           {70, 71},
                                           {130, 600},
                                           {600, 130},
                                           {511, 513},
                                           {513, 511},
                                           {600, 5}}) {
    const auto heads = random_heads(
        {.batch = 2, .num_heads = 2, .query_len = query_len, .key_len = key_len, .d_k = 12}, dtype);
    CAPTURE(dtype, alignment == CausalAlignment::top_left, query_len, key_len);
    CHECK(attend_problem(heads, alignment) == "");
    const auto keep = torch::rand({2, 1, query_len, key_len}) > 0.5;
    CHECK(attend_problem(heads, {keep, alignment}) == "");
  }
}

TEST_CASE("causal in float16, where the lesson takes no mask", "[fused]") {
  const auto alignment = GENERATE(CausalAlignment::top_left, CausalAlignment::bottom_right);
  torch::manual_seed(2);
  for (const auto& [query_len, key_len] : {std::pair<int64_t, int64_t>{33, 33}, {9, 20}, {20, 9}}) {
    const auto heads = random_heads(
        {.batch = 2, .num_heads = 2, .query_len = query_len, .key_len = key_len, .d_k = 12}, torch::kHalf);
    const auto wide = heads.to(torch::kDouble);
    const auto float64 = mha::testing::lesson_attend(wide, alignment);
    // Its steps with the lowest float16 in place of -1e9.
    const auto Q = heads.query.transpose(1, 2);
    const auto K = heads.key.transpose(1, 2);
    const auto blocked = mha::causal_mask(query_len, key_len, alignment).logical_not();
    const auto scores =
        (torch::matmul(Q, K.transpose(-2, -1)) / std::sqrt(12.0)).masked_fill(blocked, -65504);
    const auto lesson =
        torch::matmul(torch::softmax(scores, -1), heads.value.transpose(1, 2)).transpose(1, 2);
    CAPTURE(query_len, key_len);
    CHECK(problem(fused_attend(heads, alignment), lesson, float64) == "");
  }
}

TEST_CASE("a row that keeps no key takes the mean of all values", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(3);
  const auto heads =
      random_heads({.batch = 2, .num_heads = 2, .query_len = 70, .key_len = 600, .d_k = 12}, dtype);
  const auto mean = heads.value.to(torch::kDouble).mean(1, /*keepdim=*/true);
  const auto roundings =
      8 * mha::parity::epsilon(dtype) * heads.value.abs().to(torch::kDouble).mean().item<double>();
  const auto is_mean = [&](const Tensor& rows) {
    return (rows.to(torch::kDouble) - mean).abs().max().item<double>() <= roundings;
  };
  // Row 0 sees key 0 alone and row 66 the keys up to 66: all of them are blocked, and the keys after them count.
  auto keep = torch::ones({70, 600});
  keep[0][0] = 0;
  keep[66].slice(0, 0, 67).zero_();
  const Masking masking(keep, CausalAlignment::top_left);
  const auto output = fused_attend(heads, masking);
  CHECK(is_mean(output.narrow(1, 0, 1)));
  CHECK(is_mean(output.narrow(1, 66, 1)));
  CHECK_FALSE(is_mean(output.narrow(1, 1, 1)));
  CHECK(attend_problem(heads, masking) == "");
  // Its neighbours do not notice.
  const auto without = fused_attend(heads, Masking(torch::ones({70, 600}), CausalAlignment::top_left));
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{1, 65}, {67, 3}}) {
    if (mha::fused::has_core(dtype, torch::kCPU)) {
      CHECK(bit_equal(output.narrow(1, first, rows), without.narrow(1, first, rows)));
    }
  }
  // More queries than keys: the first 30 see none.
  const Heads longer = {torch::randn({2, 100, 2, 12}).to(dtype), heads.key.narrow(1, 0, 70),
                        heads.value.narrow(1, 0, 70)};
  CHECK(attend_problem(longer, CausalAlignment::bottom_right) == "");
}

TEST_CASE("kept scores below the fill lose to blocked keys, also to those that nobody sees", "[fused]") {
  torch::manual_seed(4);
  const int64_t length = 600;
  // Scores of -1e10 everywhere: in row i the keys after i win, and share alike.
  auto heads = random_heads({.batch = 1, .num_heads = 2, .query_len = length, .key_len = length, .d_k = 1});
  heads.query.fill_(1e5);
  heads.key.fill_(-1e5);
  CHECK(attend_problem(heads, CausalAlignment::top_left) == "");
  const auto output = fused_attend(heads, CausalAlignment::top_left);
  CHECK(torch::allclose(output[0][10], heads.value[0].slice(0, 11).mean(0), 1e-4, 1e-5));
}

TEST_CASE("NaN and infinity in a key that is skipped do not reach a row", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto bad =
      GENERATE(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity());
  torch::manual_seed(5);
  const int64_t length = 1300;
  // Rows as far away as any block is large.
  const int64_t far = 700;
  const auto heads =
      random_heads({.batch = 1, .num_heads = 2, .query_len = length, .key_len = length, .d_k = 8}, dtype);
  const auto clean = fused_attend(heads, CausalAlignment::top_left);
  Heads spoilt = {heads.query, heads.key.clone(), heads.value.clone()};
  spoilt.key.select(1, length - 1).fill_(bad);
  spoilt.value.select(1, length - 1).fill_(bad);
  const auto output = fused_attend(spoilt, CausalAlignment::top_left);
  CHECK(bit_equal(output.narrow(1, 0, far), clean.narrow(1, 0, far)));
  CHECK_FALSE(output.select(1, length - 1).isfinite().any().item<bool>());
}

TEST_CASE("a row that keeps no key does not change what its neighbours are", "[fused]") {
  torch::manual_seed(14);
  auto heads = random_heads({.query_len = 128, .key_len = 128, .d_k = 4});
  heads.value[0][100] = std::nan("");
  auto keep = torch::ones({128, 128}, torch::kBool);
  const Masking all_kept(keep, CausalAlignment::top_left);
  const auto before = fused_attend(heads, all_kept);
  auto blocked = keep.clone();
  blocked[3] = false;
  const auto after = fused_attend(heads, Masking(blocked, CausalAlignment::top_left));
  CHECK(after[0][3].isnan().all().item<bool>());  // the mean over all values
  CHECK(bit_equal(after.narrow(1, 0, 3), before.narrow(1, 0, 3)));
  CHECK(bit_equal(after.narrow(1, 4, 124), before.narrow(1, 4, 124)));
  CHECK(before.narrow(1, 0, 64).isfinite().all().item<bool>());
}
