// Few query rows, whose keys and values are read where they lie; and the products of few rows.
#include <torch/torch.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <optional>
#include <thread>

#include "fused/fused_testing.h"
#include "fused/packed_weight.h"
#include "testing.h"

using mha::CausalAlignment;
using mha::Masking;
using mha::fused::few_query_rows;
using mha::fused::PackedWeight;
using mha::testing::attend_problem;
using mha::testing::bit_equal;
using mha::testing::fused_attend;
using mha::testing::Heads;
using mha::testing::random_heads;
using mha::testing::Trio;
using torch::Tensor;

namespace {

/// A copy of a tensor that ends where its memory ends, with memory that must not be touched on both sides.
Tensor at_the_edge(const Tensor& tensor, int64_t before) {
  const auto memory = torch::full({before + tensor.numel()}, std::nan(""), tensor.options());
  const auto copy = memory.narrow(0, before, tensor.numel()).view(tensor.sizes());
  return copy.copy_(tensor);
}

}  // namespace

TEST_CASE("few query rows: every number of them, of keys and of features", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(1);
  constexpr std::array<int64_t, 12> key_lens = {1, 2, 3, 4, 5, 16, 31, 128, 129, 512, 513, 1030};
  constexpr std::array<int64_t, 14> widths = {1, 2, 3, 7, 8, 15, 16, 17, 24, 40, 64, 72, 80, 129};
  size_t turn = 0;
  for (int64_t query_len = 1; query_len <= few_query_rows + 1; ++query_len) {
    for (const auto key_len : key_lens) {
      const auto d_k = widths.at(turn++ % widths.size());
      const auto heads = random_heads(
          {.batch = 1, .num_heads = 2, .query_len = query_len, .key_len = key_len, .d_k = d_k}, dtype);
      CAPTURE(dtype, query_len, key_len, d_k);
      CHECK(attend_problem(heads) == "");
      CHECK(attend_problem(heads, torch::rand({query_len, key_len}) > 0.3) == "");
      CHECK(attend_problem(heads, CausalAlignment::bottom_right) == "");
      CHECK(attend_problem(heads, CausalAlignment::top_left) == "");
    }
  }
}

TEST_CASE("few query rows read no other memory and are as exact from any address", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(2);
  for (const int64_t d_k : {1, 3, 17, 31, 40, 65}) {
    for (const int64_t key_len : {1, 3, 6, 515}) {
      const auto heads =
          random_heads({.batch = 1, .num_heads = 1, .query_len = 2, .key_len = key_len, .d_k = d_k}, dtype);
      const auto expected = fused_attend(heads);
      CAPTURE(dtype, d_k, key_len);
      CHECK(expected.isfinite().all().item<bool>());
      for (const int64_t before : {0, 1, 7}) {
        const Heads moved = {at_the_edge(heads.query, before), at_the_edge(heads.key, before),
                             at_the_edge(heads.value, before)};
        CHECK(bit_equal(fused_attend(moved), expected));
      }
    }
  }
}

TEST_CASE("few query rows: NaN, infinity and fully blocked rows as in the lesson", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(3);
  for (const int64_t query_len : {1, 5, 16}) {
    const auto heads =
        random_heads({.batch = 2, .num_heads = 2, .query_len = query_len, .key_len = 37, .d_k = 24}, dtype);
    auto keep = torch::rand({2, 1, query_len, 37}) > 0.4;
    keep.select(0, 1).select(1, 0).fill_(false);
    CAPTURE(dtype, query_len);
    CHECK(attend_problem(heads, keep) == "");
    auto poisoned = heads;
    poisoned.key = heads.key.clone();
    poisoned.key[0][5][1] = std::nan("");
    poisoned.value = heads.value.clone();
    poisoned.value[1][7][0][3] = INFINITY;
    CHECK(attend_problem(poisoned) == "");
    CHECK(attend_problem(poisoned, keep) == "");
    const Heads large = {heads.query * 1e4, heads.key * 1e4, heads.value};
    CHECK(attend_problem(large) == "");
  }
}

TEST_CASE("packed weights: products, parts of them, and the weights back", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(4);
  const auto epsilon = dtype == torch::kFloat ? 1.2e-7 : 7.8e-3;
  for (const int64_t inputs : {1, 2, 3, 15, 24, 64, 300, 1025}) {
    for (const int64_t outputs : {1, 5, 63, 64, 65, 200}) {
      const auto weight = torch::randn({outputs, inputs}).to(dtype);
      const auto bias = torch::randn({outputs}).to(dtype);
      const PackedWeight packed(weight, bias);
      CAPTURE(dtype, inputs, outputs);
      CHECK(bit_equal(packed.weight(), weight));
      for (const int64_t rows : {1, 2, 6, 7, 13, 64}) {
        const auto x = at_the_edge(torch::randn({rows, inputs}).to(dtype), 3);
        const auto y = torch::full({rows * outputs + 64}, std::nan(""), x.options());
        packed(x.const_data_ptr(), rows, 0, outputs, y.mutable_data_ptr());
        const auto all = y.narrow(0, 0, rows * outputs).view({rows, outputs});
        const auto expected =
            torch::linear(x.to(torch::kDouble), weight.to(torch::kDouble), bias.to(torch::kDouble));
        const auto size = torch::linear(x.to(torch::kDouble).abs(), weight.to(torch::kDouble).abs()).max();
        // Sums of up to 256 numbers, and of these.
        const auto allowed = epsilon * expected.abs().max() + 1.2e-7 * 24 * size;
        CAPTURE(rows);
        CHECK(((all.to(torch::kDouble) - expected).abs().max() <= allowed).item<bool>());
        CHECK(y.narrow(0, rows * outputs, 64).isnan().all().item<bool>());
        // Some of the outputs, and one row, are the same bits.
        const int64_t first = outputs / 3;
        const int64_t count = std::max<int64_t>(1, outputs / 2);
        const auto some = torch::full({rows, count}, std::nan(""), x.options());
        packed(x.const_data_ptr(), rows, first, count, some.mutable_data_ptr());
        CHECK(bit_equal(some, all.narrow(1, first, count)));
        const auto last = torch::full({1, outputs}, std::nan(""), x.options());
        packed(x[rows - 1].const_data_ptr(), 1, 0, outputs, last.mutable_data_ptr());
        CHECK(bit_equal(last, all.narrow(0, rows - 1, 1)));
      }
    }
  }
}

TEST_CASE("products of NaN and infinity reach their row only", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(5);
  const auto weight = torch::randn({70, 33}).to(dtype);
  const PackedWeight packed(weight, torch::zeros({70}, weight.options()));
  auto x = torch::randn({9, 33}).to(dtype);
  x[3][32] = std::nan("");
  x[7][0] = INFINITY;
  const auto y = torch::empty({9, 70}, x.options());
  packed(x.const_data_ptr(), 9, 0, 70, y.mutable_data_ptr());
  CHECK(y[3].isnan().all().item<bool>());
  CHECK(y[7].isinf().all().item<bool>());
  CHECK(y.isfinite().sum().item<int64_t>() == 7 * 70);
}

TEST_CASE("modules of few rows compute what the lesson does", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(6);
  for (const auto& [d_model, num_heads] :
       {std::pair<int64_t, int64_t>{1, 1}, {6, 2}, {24, 3}, {120, 3}, {512, 8}}) {
    Trio trio(d_model, num_heads, dtype);
    for (const auto& [batch, length] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 4}, {3, 5}, {64, 1}, {4, 16}, {5, 13}}) {
      const auto x = trio.random(batch, length);
      const auto memory = trio.random(batch, 70);
      const auto strided = trio.random(length, batch).transpose(0, 1);
      const auto mask = torch::rand({batch, 1, length, length}) > 0.4;
      CAPTURE(dtype, d_model, batch, length);
      CHECK(trio.problem(x, x, x) == "");
      CHECK(trio.problem(x, x, x, mask) == "");
      CHECK(trio.problem(x, x, x, Masking(mask, CausalAlignment::top_left)) == "");
      CHECK(trio.problem(strided, strided, strided) == "");
      CHECK(trio.problem(x, memory, memory) == "");
      CHECK(trio.problem(x, strided, x) == "");
    }
  }
}

TEST_CASE("what few rows give is the caller's", "[fused]") {
  torch::manual_seed(7);
  Trio trio(24, 3);
  const auto first = trio.fused(trio.random(2, 3));
  const auto copy = first.clone();
  trio.fused(trio.random(2, 3));  // must not write there
  CHECK(bit_equal(first, copy));
  CHECK(first.storage().nbytes() == first.nbytes());
  CHECK(first.is_contiguous());
}

namespace {

/// Calls an engine when its thread ends.
struct LateCall {
  std::optional<mha::FusedMultiHeadAttention> engine;
  Tensor x;
  Tensor* result = nullptr;

  ~LateCall() {
    if (engine) {
      *result = (*engine)(x);
    }
  }
};

}  // namespace

TEST_CASE("an engine may be called by what is destroyed last", "[fused]") {
  torch::manual_seed(8);
  const Trio trio(512, 8);
  const auto x = trio.random(2, 3);
  const auto expected = trio.fused(x);
  Tensor result;
  std::thread([&] {
    thread_local LateCall late;  // made before the thread's first call, so destroyed after what that leaves
    late.engine = trio.fused;
    late.x = x;
    late.result = &result;
    trio.fused(x);
  }).join();
  REQUIRE(result.defined());
  CHECK(bit_equal(result, expected));
}
