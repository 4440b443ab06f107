// Large calls are computed in rounds, some items or some heads at a time: nobody must notice.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::CausalAlignment;
using mha::Masking;
using mha::testing::Trio;
using torch::Tensor;

namespace {

constexpr int64_t round_bytes = int64_t{30} << 20;

}  // namespace

TEST_CASE("batches whose projections exceed a round are computed item by item as they are alone", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(1);
  const int64_t d_model = 256;
  const int64_t length = 129;
  Trio trio(d_model, 8, dtype);
  // Two rounds and a bit.
  const int64_t item_bytes = length * 3 * d_model * static_cast<int64_t>(torch::elementSize(dtype));
  const int64_t batch = 2 * (round_bytes / item_bytes) + 3;
  const auto x = trio.random(batch, length);
  const auto lengths = torch::randint(1, length + 1, {batch});
  const auto padding = mha::padding_mask(lengths, length);  // (B, 1, 1, S)
  const auto per_head = torch::rand({8, length, length}) > 0.3;
  for (const auto& masking : {Masking(), Masking(padding), Masking(per_head, CausalAlignment::top_left)}) {
    const auto output = trio.fused(x, masking);
    const auto part = [&](int64_t first, int64_t items) {
      auto some = masking;
      if (some.mask.defined() && some.mask.dim() == 4) {
        some.mask = some.mask.narrow(0, first, items);
      }
      return some;
    };
    CAPTURE(dtype, batch);
    for (const int64_t item : {int64_t{0}, batch / 2, batch - 1}) {
      const auto one = x.narrow(0, item, 1);
      CAPTURE(item);
      CHECK(trio.problem_of(output.narrow(0, item, 1), one, one, one, part(item, 1)) == "");
    }
    // Every item, in parts too small for rounds.
    const double rounding = 8 * mha::parity::epsilon(dtype);
    constexpr int64_t items = 11;
    for (int64_t first = 0; first < batch; first += items) {
      const auto some = std::min(items, batch - first);
      CAPTURE(first);
      CHECK(torch::allclose(output.narrow(0, first, some),
                            trio.fused(x.narrow(0, first, some), part(first, some)), rounding, rounding));
    }
  }
}

TEST_CASE("an item whose projections exceed a round is computed some heads at a time", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(2);
  const int64_t d_model = 1024;
  const int64_t num_heads = 16;
  Trio trio(d_model, num_heads, dtype);
  const int64_t row_bytes = 2 * d_model * static_cast<int64_t>(torch::elementSize(dtype));  // key and value
  const int64_t key_len = round_bytes / row_bytes + 100;
  const auto query = trio.random(2, 3);
  const auto memory = trio.random(2, key_len);
  const auto lengths = torch::tensor({key_len, key_len / 2});
  const auto per_head = torch::rand({1, num_heads, 3, key_len}) > 0.5;
  for (const auto& masking :
       {Masking(), Masking(mha::combine(per_head, mha::padding_mask(lengths, key_len)))}) {
    CAPTURE(dtype, key_len);
    CHECK(trio.problem(query, memory, memory, masking) == "");
  }
}

TEST_CASE("the lesson's steps some query rows at a time are the lesson's steps", "[fused]") {
  const auto dtype = GENERATE(torch::kDouble, torch::kHalf);
  torch::manual_seed(3);
  Trio trio(8, 4, dtype);
  // Scores of more than 16 MiB, and a last part that is not full.
  const auto query = trio.random(2, 701);
  const auto memory = trio.random(2, 1001);
  if (dtype == torch::kDouble) {
    const auto keep = torch::rand({2, 1, 701, 1001}) > 0.5;
    CHECK(trio.problem(query, memory, memory, keep) == "");
    CHECK(trio.problem(query, memory, memory, {keep, CausalAlignment::bottom_right}) == "");
  }
  const auto output = trio.fused(query, memory, CausalAlignment::bottom_right);
  const auto wide = [](const Tensor& x) { return x.to(torch::kDouble); };
  const torch::NoGradGuard no_gradients;
  const auto expected = trio.float64(wide(query), wide(memory), wide(memory),
                                     mha::causal_mask(701, 1001, CausalAlignment::bottom_right));
  CHECK((wide(output) - expected).abs().max().item<double>() <= 8 * mha::parity::epsilon(dtype));
}
