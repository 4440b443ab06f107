// Masks of every dtype, shape and memory layout mean to the engine what they mean to the lesson.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::testing::attend_problem;
using mha::testing::bit_equal;
using mha::testing::random_heads;
using mha::testing::Trio;
using torch::Tensor;

namespace {

constexpr int64_t batch = 2;
constexpr int64_t num_heads = 3;
constexpr int64_t query_len = 9;
constexpr int64_t key_len = 70;

using NamedMasks = std::vector<std::pair<std::string, Tensor>>;

/// (B, H, L, S), true keeps; one row is blocked altogether.
Tensor random_keep() {
  auto keep = torch::rand({batch, num_heads, query_len, key_len}) > 0.4;
  keep[1][2][4].zero_();
  return keep;
}

NamedMasks shapes(const Tensor& keep) {
  return {{"(B, H, L, S)", keep},
          {"(B, 1, L, S)", keep.narrow(1, 2, 1)},
          {"(B, 1, 1, S)", keep.narrow(1, 0, 1).narrow(2, 0, 1)},
          {"(B, H, 1, S)", keep.narrow(2, 0, 1)},
          {"(B, H, L, 1)", keep.narrow(3, 0, 1)},
          {"(1, 1, L, S)", keep.narrow(0, 0, 1).narrow(1, 0, 1)},
          {"(H, L, S)", keep[1]},
          {"(H, 1, S)", keep[1].narrow(1, 4, 1)},
          {"(L, S)", keep[1][2]},
          {"(L, 1)", keep[1][2].narrow(1, 0, 1)},
          {"(S,)", keep[0][0][0]},
          {"(1,), kept", torch::ones({1}, torch::kBool)},
          {"(1,), blocked", torch::zeros({1}, torch::kBool)},
          {"(), kept", torch::ones({}, torch::kBool)},
          {"(), blocked", torch::zeros({}, torch::kBool)}};
}

/// The same elements otherwise laid out in memory.
NamedMasks layouts(const Tensor& keep) {
  const auto apart = torch::zeros({batch, num_heads, query_len, 2 * key_len}, torch::kBool);
  const auto every_second = apart.slice(3, 0, 2 * key_len, 2);
  every_second.copy_(keep);
  const auto padded = torch::cat({keep, keep.logical_not()}, 3).narrow(3, 0, key_len);
  const auto queries_first = keep.permute({2, 3, 0, 1}).contiguous().permute({2, 3, 0, 1});
  const auto rows = keep[0][0];
  return {
      {"every second key", every_second},
      {"padded rows", padded},
      {"queries first", queries_first},
      {"transposed (S, L)", rows.t().contiguous().t()},
      {"reversed", rows.flip(1)},
      {"expanded (L, S)", rows.expand({batch, num_heads, query_len, key_len})},
      {"expanded (B, 1, 1, S)",
       keep.narrow(1, 0, 1).narrow(2, 0, 1).expand({batch, num_heads, query_len, key_len})},
      {"expanded keys", keep.narrow(3, 0, 1).expand({batch, num_heads, query_len, key_len})},
      {"expanded keys of a transpose",
       rows.t().contiguous().t().narrow(1, 0, 1).expand({query_len, key_len})},
      {"one byte expanded", torch::zeros({1}, torch::kBool).expand({batch, num_heads, query_len, key_len})}};
}

NamedMasks dtypes(const Tensor& keep) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto infinity = std::numeric_limits<double>::infinity();
  const auto filled = [&](double kept, double blocked, torch::ScalarType dtype) {
    return torch::full(keep.sizes(), kept, dtype).masked_fill(keep.logical_not(), blocked);
  };
  return {{"bool", keep},
          {"uint8", keep.to(torch::kByte)},
          {"uint8, 2 keeps", filled(2, 0, torch::kByte)},
          {"uint8, 128 keeps", filled(128, 0, torch::kByte)},
          {"int8, -1 keeps", filled(-1, 0, torch::kChar)},
          {"int16, 256 keeps", filled(256, 0, torch::kShort)},
          {"int64", keep.to(torch::kLong)},
          {"int64, 2^40 keeps", keep.to(torch::kLong) * (int64_t{1} << 40)},
          {"float32", keep.to(torch::kFloat)},
          {"float32, 0.25 keeps", filled(0.25, 0, torch::kFloat)},
          {"float32, subnormal keeps", filled(1e-40, 0, torch::kFloat)},
          {"float32, NaN keeps", filled(nan, 0, torch::kFloat)},
          {"float32, -inf keeps, as in an additive mask", filled(-infinity, 0, torch::kFloat)},
          {"float32, -0 blocks", filled(1, -0.0, torch::kFloat)},
          {"float64", keep.to(torch::kDouble)},
          {"float64, NaN keeps", filled(nan, 0, torch::kDouble)},
          {"bfloat16", keep.to(torch::kBFloat16)},
          {"float16", keep.to(torch::kHalf)}};
}

}  // namespace

TEST_CASE("masks of every shape, layout and dtype mean what they mean to the lesson", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(1);
  Trio trio(12, num_heads, dtype);
  const auto query = trio.random(batch, query_len);
  const auto memory = trio.random(batch, key_len);
  const auto keep = random_keep();
  const auto unmasked = trio.fused(query, memory, {});
  for (const auto& masks : {shapes(keep), layouts(keep), dtypes(keep)}) {
    for (const auto& [name, mask] : masks) {
      const auto before = mask.clone();
      CAPTURE(dtype, name);
      CHECK(trio.problem(query, memory, memory, mask) == "");
      CHECK(torch::equal(mask.isnan(), before.isnan()));
      CHECK(torch::equal(mask.nan_to_num(), before.nan_to_num()));
      if (!name.ends_with(", kept")) {
        CHECK_FALSE(bit_equal(trio.fused(query, memory, mask), unmasked));
      }
    }
  }
}

TEST_CASE("dtypes, shapes and layouts of one mask give the same bits", "[fused]") {
  torch::manual_seed(2);
  Trio trio(12, num_heads);
  const auto query = trio.random(batch, query_len);
  const auto memory = trio.random(batch, key_len);
  const auto keep = random_keep();
  const auto expected = trio.fused(query, memory, keep);
  for (const auto& [name, mask] : dtypes(keep)) {
    CAPTURE(name);
    CHECK(bit_equal(trio.fused(query, memory, mask), expected));
  }
  for (const auto& [name, mask] : layouts(keep)) {
    CAPTURE(name);
    CHECK(bit_equal(trio.fused(query, memory, mask), trio.fused(query, memory, mask.contiguous())));
  }
}

TEST_CASE("a mask is not expanded to the size of the scores", "[fused]") {
  const int64_t length = 5000;
  const auto keep = mha::padding_mask(torch::tensor({length, length - 1}), length);  // (B, 1, 1, S)
  for (const auto& mask : {keep, keep.expand({2, 8, length, length}), keep.to(torch::kDouble)}) {
    const auto blocking = mha::fused::make_blocking(mask, std::nullopt, {2, 8, length, length});
    CHECK(blocking.keep.sizes() == torch::IntArrayRef({2, 8, length, length}));
    CHECK(blocking.keep.storage().nbytes() <= static_cast<size_t>(2 * length));
    CHECK(torch::equal(blocking.keep.narrow(1, 7, 1).narrow(2, 4999, 1) != 0, keep));
  }
}

TEST_CASE("a fully blocked row takes the mean of the values, as the lesson's", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(3);
  for (const int64_t keys : {1, 3, 8, 70, 600}) {
    const auto heads =
        random_heads({.batch = 2, .num_heads = 2, .query_len = 9, .key_len = keys, .d_k = 20}, dtype);
    auto keep = torch::ones({2, 1, 9, keys}, torch::kBool);
    keep[1][0][3].zero_();
    CAPTURE(dtype, keys);
    CHECK(attend_problem(heads, keep) == "");
    const auto row = mha::testing::fused_attend(heads, keep)[1][3].to(torch::kDouble);
    const auto values = heads.value[1].to(torch::kDouble);
    const auto roundings = 8 * mha::parity::epsilon(dtype) * values.abs().mean().item<double>();
    CHECK((row - values.mean(0)).abs().max().item<double>() <= roundings);
  }
}
