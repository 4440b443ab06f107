// The kernels over sizes and memory: whatever the lengths, widths and strides, what PyTorch computes, and no access to
// what is not theirs.
#include <torch/torch.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::Masking;
using mha::testing::attend_problem;
using mha::testing::bit_equal;
using mha::testing::fused_attend;
using mha::testing::Heads;
using mha::testing::random_heads;
using torch::Tensor;

namespace {

// Around vectors of 4, 8 and 16, panels of 64, blocks of 64 queries and 512 keys.
constexpr std::array<int64_t, 17> lengths = {1,  3,  7,  15,  16,  17,  31,  33, 50,
                                             63, 64, 65, 127, 129, 511, 513, 600};
constexpr std::array<int64_t, 15> widths = {1, 2, 3, 5, 8, 16, 17, 31, 32, 64, 65, 80, 128, 129, 256};

/// A copy of heads inside larger memory: rows, heads and items apart by odd numbers of elements, the first element
/// `offset` from where memory begins, everything around them `around`.
struct Guarded {
  Tensor memory;
  Tensor view;

  Guarded(const Tensor& heads, int64_t offset, double around) {
    const auto head = heads.size(3) + 3;
    const auto row = heads.size(2) * head + 5;
    const auto item = heads.size(1) * row + 7;
    memory = torch::full({offset + heads.size(0) * item + 64}, around, heads.options());
    view = memory.as_strided(heads.sizes(), {item, row, head, 1}, offset);
    view.copy_(heads);
  }

  /// Whether all but the view is still `around`.
  bool is_untouched_around(double around) const {
    auto rest = memory.clone();
    rest.as_strided(view.sizes(), view.strides(), view.storage_offset()).fill_(around);
    return torch::equal(rest, torch::full_like(rest, around));
  }
};

}  // namespace

TEST_CASE("every length and width is computed as PyTorch does", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(1);
  int tried = 0;
  for (size_t width = 0; width < widths.size(); ++width) {
    for (size_t length = width % 4; length < lengths.size(); length += 4) {
      const auto query_len = lengths.at(length);
      const auto key_len = lengths.at((length * 5 + width) % lengths.size());
      const auto heads = random_heads(
          {.batch = 2, .num_heads = 2, .query_len = query_len, .key_len = key_len, .d_k = widths.at(width)},
          dtype);
      CAPTURE(dtype, query_len, key_len, widths.at(width));
      CHECK(attend_problem(heads) == "");
      CHECK(attend_problem(heads, torch::rand({query_len, key_len}) > 0.3) == "");
      ++tried;
    }
  }
  CHECK(tried >= 60);
}

TEST_CASE("self-attention of every length, causal and not", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(2);
  for (const auto length : lengths) {
    const auto heads =
        random_heads({.batch = 1, .num_heads = 2, .query_len = length, .key_len = length, .d_k = 16}, dtype);
    CAPTURE(dtype, length);
    CHECK(attend_problem(heads) == "");
    CHECK(attend_problem(heads, mha::CausalAlignment::top_left) == "");
  }
}

TEST_CASE(
    "neither what lies around the inputs nor alignment matters, and nothing around the output is written",
    "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto d_k = GENERATE(1, 5, 16, 31, 64, 80);
  torch::manual_seed(3);
  const double nan = std::nan("");
  constexpr double sentinel = 1024;
  for (const auto& [query_len, key_len] : {std::pair<int64_t, int64_t>{1, 3}, {7, 65}, {70, 17}, {65, 520}}) {
    const auto heads = random_heads(
        {.batch = 2, .num_heads = 3, .query_len = query_len, .key_len = key_len, .d_k = d_k}, dtype);
    const auto keep = torch::rand({2, 3, query_len, key_len}) > 0.3;
    for (const int64_t offset : {0, 1, 3}) {
      const Guarded query(heads.query, offset, nan);
      const Guarded key(heads.key, offset, nan);
      const Guarded value(heads.value, offset, nan);
      const Guarded output(torch::zeros_like(heads.query), offset, sentinel);
      // A byte off, and with the opposite around it.
      auto mask_memory = torch::ones({2, 3, query_len + 1, key_len + 5}, torch::kBool);
      const auto mask = mask_memory.narrow(2, 0, query_len).narrow(3, offset, key_len);
      mask_memory.narrow(2, query_len, 1).zero_();
      mask.copy_(keep);
      for (const auto& masking : {Masking(), Masking(mask), Masking(mha::CausalAlignment::bottom_right),
                                  Masking(mask, mha::CausalAlignment::top_left)}) {
        CAPTURE(dtype, d_k, query_len, key_len, offset, masking.mask.defined(), masking.causal.has_value());
        const auto blocking =
            mha::fused::make_blocking(masking.mask, masking.causal, {2, 3, query_len, key_len});
        mha::fused::attend(query.view, key.view, value.view, blocking, output.view);
        CHECK(output.is_untouched_around(sentinel));
        const auto plain = fused_attend(heads, masking);
        CHECK(output.view.isfinite().all().item<bool>());
        if (mha::fused::has_core(dtype, torch::kCPU)) {
          CHECK(bit_equal(output.view, plain));
        } else {
          CHECK(torch::allclose(output.view.to(torch::kFloat), plain.to(torch::kFloat), 0.02, 0.02));
        }
      }
    }
  }
}

TEST_CASE("strides as projections give them, and others", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kHalf);
  torch::manual_seed(4);
  const int64_t length = 37;
  const auto joint = torch::randn({2, length, 3, 4, 20}).to(dtype);  // (B, L, 3, H, d_k)
  const Heads heads = {joint.select(2, 0), joint.select(2, 1), joint.select(2, 2)};
  CHECK(attend_problem(heads) == "");
  if (dtype != torch::kHalf) {
    CHECK(attend_problem(heads, mha::CausalAlignment::top_left) == "");
    CHECK(attend_problem(heads, torch::rand({length, length}) > 0.3) == "");
  }

  const auto heads_first = [](const Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); };
  const auto length_first = [](const Tensor& x) { return x.transpose(0, 1).contiguous().transpose(0, 1); };
  CHECK(attend_problem({heads_first(heads.query), length_first(heads.key), heads.value}) == "");
  // One key and value for all heads, one query for all items.
  CHECK(attend_problem({heads.query.slice(0, 0, 1).expand_as(heads.query),
                        heads.key.slice(2, 0, 1).expand_as(heads.key),
                        heads.value.slice(2, 0, 1).expand_as(heads.value)}) == "");
}

TEST_CASE("the attention of an item and of a row does not depend on what else is computed", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  if (!mha::fused::has_core(dtype, torch::kCPU)) {
    SKIP("no kernels of our own for this dtype");
  }
  torch::manual_seed(5);
  const auto heads =
      random_heads({.batch = 3, .num_heads = 4, .query_len = 150, .key_len = 530, .d_k = 24}, dtype);
  const auto keep = torch::rand({3, 4, 150, 530}) > 0.3;
  for (const bool masked : {false, true}) {
    const auto whole = fused_attend(heads, masked ? Masking(keep) : Masking());
    for (int64_t item = 0; item < 3; ++item) {
      const auto one = [&](const Tensor& x) { return x.narrow(0, item, 1); };
      const Heads alone = {one(heads.query), one(heads.key), one(heads.value)};
      CHECK(bit_equal(fused_attend(alone, masked ? Masking(one(keep)) : Masking()), one(whole)));
    }
    const auto head = [](const Tensor& x) { return x.narrow(2, 2, 1); };
    CHECK(bit_equal(fused_attend({head(heads.query), head(heads.key), head(heads.value)},
                                 masked ? Masking(keep.narrow(1, 2, 1)) : Masking()),
                    head(whole)));
    // Many rows of more, and few of few.
    for (const auto& [of, first, rows] : {std::array<int64_t, 3>{150, 0, 17},
                                          {150, 63, 20},
                                          {150, 64, 50},
                                          {150, 133, 17},
                                          {150, 5, 64},
                                          {16, 0, 1},
                                          {16, 15, 1},
                                          {16, 5, 2},
                                          {16, 3, 9}}) {
      const auto from = [](const Tensor& x, int64_t begin, int64_t count) {
        return x.narrow(1, begin, count);
      };
      const auto attend_rows = [&](int64_t begin, int64_t count) {
        return fused_attend({from(heads.query, begin, count), heads.key, heads.value},
                            masked ? Masking(keep.narrow(2, begin, count)) : Masking());
      };
      CAPTURE(of, first, rows);
      CHECK(bit_equal(attend_rows(first, rows), from(attend_rows(0, of), first, rows)));
    }
  }
}

TEST_CASE("no length and no key are computed as the lesson does", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto causal = GENERATE(false, true);
  const Masking masking = causal ? Masking(mha::CausalAlignment::bottom_right) : Masking();
  const auto no_query =
      random_heads({.batch = 2, .num_heads = 2, .query_len = 0, .key_len = 5, .d_k = 8}, dtype);
  CHECK(fused_attend(no_query, masking).sizes() == torch::IntArrayRef({2, 0, 2, 8}));
  const auto no_key =
      random_heads({.batch = 2, .num_heads = 2, .query_len = 5, .key_len = 0, .d_k = 8}, dtype);
  CHECK(bit_equal(fused_attend(no_key, masking), torch::zeros({2, 5, 2, 8}, dtype)));
}
