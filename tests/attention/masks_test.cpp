// Mask builders, and the three uses of attention that need them.
#include "mha/masks.h"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "mha/attention.h"
#include "testing.h"

using mha::causal_mask;
using mha::CausalAlignment;
using mha::sliding_window_mask;
using mha::Window;
using mha::testing::bit_equal;
using mha::testing::error_of;
using torch::Tensor;

namespace {

Tensor keep(const std::vector<std::vector<int>>& rows) {
  std::vector<Tensor> tensors;
  for (const auto& row : rows) {
    tensors.push_back(torch::tensor(row, torch::kLong).to(torch::kBool));
  }
  return torch::stack(tensors);
}

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("causal masks are the pictures in the header") {
  CHECK(bit_equal(causal_mask(3), keep({{1, 0, 0}, {1, 1, 0}, {1, 1, 1}})));
  CHECK(bit_equal(causal_mask(2, 4, CausalAlignment::top_left), keep({{1, 0, 0, 0}, {1, 1, 0, 0}})));
  CHECK(bit_equal(causal_mask(2, 4, CausalAlignment::bottom_right), keep({{1, 1, 1, 0}, {1, 1, 1, 1}})));
  CHECK(bit_equal(causal_mask(4, 2, CausalAlignment::top_left), keep({{1, 0}, {1, 1}, {1, 1}, {1, 1}})));
  CHECK(bit_equal(causal_mask(4, 2, CausalAlignment::bottom_right), keep({{0, 0}, {0, 0}, {1, 0}, {1, 1}})));
}

TEST_CASE("with equal lengths both alignments agree") {
  for (const int64_t length : {0, 1, 2, 17, 64}) {
    const auto expected = torch::ones({length, length}, torch::kBool).tril();
    CHECK(bit_equal(causal_mask(length), expected));
    CHECK(bit_equal(causal_mask(length, length, CausalAlignment::top_left), expected));
    CHECK(bit_equal(causal_mask(length, length, CausalAlignment::bottom_right), expected));
  }
}

TEST_CASE("sliding windows are the picture in the header, open sides and all") {
  const auto top_left = CausalAlignment::top_left;
  CHECK(bit_equal(sliding_window_mask(4, 4, {.before = 1, .after = 0}, top_left),
                  keep({{1, 0, 0, 0}, {1, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}})));
  CHECK(bit_equal(sliding_window_mask(3, 3, {.before = 0, .after = 1}, top_left),
                  keep({{1, 1, 0}, {0, 1, 1}, {0, 0, 1}})));
  CHECK(bit_equal(sliding_window_mask(2, 4, {.before = 1, .after = 0}, CausalAlignment::bottom_right),
                  keep({{0, 1, 1, 0}, {0, 0, 1, 1}})));
  CHECK(bit_equal(
      sliding_window_mask(3, 3, {.before = Window::unlimited, .after = Window::unlimited}, top_left),
      torch::ones({3, 3}, torch::kBool)));
  CHECK(bit_equal(sliding_window_mask(5, 9, {}, CausalAlignment::bottom_right),
                  causal_mask(5, 9, CausalAlignment::bottom_right)));
}

TEST_CASE("padding masks keep the first keys of each item") {
  const auto mask = mha::padding_mask(torch::tensor({3, 1, 0, 4}, torch::kInt), 4);
  CHECK(mask.sizes() == torch::IntArrayRef({4, 1, 1, 4}));
  CHECK(bit_equal(mask.view({4, 4}), keep({{1, 1, 1, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1}})));
  CHECK(mha::padding_mask(torch::empty({0}, torch::kLong), 4).sizes() == torch::IntArrayRef({0, 1, 1, 4}));
}

TEST_CASE("combine keeps what both keep, whatever their dtypes") {
  const auto padding = mha::padding_mask(torch::tensor({3, 2}), 3);
  const auto both = mha::combine(causal_mask(3), padding.to(torch::kFloat));
  CHECK(both.sizes() == torch::IntArrayRef({2, 1, 3, 3}));
  CHECK(bit_equal(both[0][0], keep({{1, 0, 0}, {1, 1, 0}, {1, 1, 1}})));
  CHECK(bit_equal(both[1][0], keep({{1, 0, 0}, {1, 1, 0}, {1, 1, 0}})));
  CHECK(bit_equal(mha::combine(causal_mask(3), {}), causal_mask(3)));
  CHECK(bit_equal(mha::combine({}, causal_mask(3).to(torch::kInt)), causal_mask(3)));
  CHECK_FALSE(mha::combine({}, {}).defined());
}

TEST_CASE("masks in PyTorch's other conventions are converted") {
  const auto blocked = keep({{0, 0, 1}, {0, 1, 1}});
  const auto kept = mha::keep_from_key_padding_mask(blocked);
  CHECK(kept.sizes() == torch::IntArrayRef({2, 1, 1, 3}));
  CHECK(bit_equal(kept.view({2, 3}), keep({{1, 1, 0}, {1, 0, 0}})));
  CHECK(bit_equal(mha::keep_from_blocked(blocked), keep({{1, 1, 0}, {1, 0, 0}})));

  const auto additive = torch::tensor({{0.0F, -infinity}, {-0.0F, std::numeric_limits<float>::lowest()}});
  CHECK(bit_equal(mha::keep_from_additive(additive), keep({{1, 0}, {1, 0}})));
  for (const auto dtype : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const auto lowest = additive.to(dtype).masked_fill(additive < 0, -infinity);
    CHECK(bit_equal(mha::keep_from_additive(lowest), keep({{1, 0}, {1, 0}})));
  }
}

TEST_CASE("mask errors say what was expected and found") {
  CHECK(error_of<c10::ValueError>([] { causal_mask(-1); }) == "query_len must not be negative, found -1");
  CHECK(error_of<c10::ValueError>([] { causal_mask(1, -2, CausalAlignment::top_left); }) ==
        "key_len must not be negative, found -2");
  CHECK(error_of<c10::ValueError>([] {
          sliding_window_mask(2, 2, {.before = -1}, CausalAlignment::top_left);
        }) == "window.before must not be negative, found -1");
  CHECK(error_of<c10::ValueError>([] {
          sliding_window_mask(2, 2, {.before = 0, .after = -3}, CausalAlignment::top_left);
        }) == "window.after must not be negative, found -3");
  CHECK(error_of<c10::ValueError>([] {
          mha::padding_mask(torch::tensor({2, 5}), 4);
        }) == "lengths: expected values within [0, 4] (key_len), found 5 at index 1");
  CHECK(error_of<c10::ValueError>([] { mha::padding_mask(torch::tensor({-1}), 4); }) ==
        "lengths: expected values within [0, 4] (key_len), found -1 at index 0");
  CHECK(error_of<c10::ValueError>([] { mha::padding_mask(torch::tensor({{1}}), 4); }) ==
        "lengths: expected a 1-D integer tensor, found shape (1, 1) of int64");
  CHECK(error_of<c10::ValueError>([] { mha::padding_mask(torch::tensor({1.0F}), 4); }) ==
        "lengths: expected a 1-D integer tensor, found shape (1,) of float32");
  CHECK(error_of<c10::ValueError>([] { mha::padding_mask({}, 4); }) ==
        "lengths: expected a tensor, found an undefined one");
  CHECK(error_of<c10::ValueError>([] {
          mha::keep_from_key_padding_mask(torch::zeros({2, 3}));
        }) ==
        "key_padding_mask: expected dtype bool (true = blocked), found float32; keep_from_additive() takes "
        "additive masks");
  CHECK(error_of<c10::ValueError>([] { mha::keep_from_key_padding_mask(torch::zeros({3}, torch::kBool)); }) ==
        "key_padding_mask: expected 2 dimensions (batch, key_len), found shape (3,)");
  CHECK(error_of<c10::ValueError>([] { mha::keep_from_blocked(torch::zeros({3}, torch::kLong)); }) ==
        "blocked: expected dtype bool (true = blocked), found int64");
  CHECK(error_of<c10::ValueError>([] { mha::keep_from_additive(torch::zeros({3}, torch::kBool)); }) ==
        "additive_mask: expected float32, float64, bfloat16 or float16, found bool");
  CHECK(error_of<c10::ValueError>([] {
          mha::keep_from_additive(torch::tensor({{0.0F, -infinity}, {0.0F, -0.5F}}));
        }) ==
        "additive_mask: expected 0 (keep), -inf or the lowest finite value (block), found -0.5 at index (1, "
        "1)");
  CHECK(error_of<c10::ValueError>([] { mha::keep_from_additive(torch::tensor({std::nanf("")})); }) ==
        "additive_mask: expected 0 (keep), -inf or the lowest finite value (block), found nan at index (0,)");
  CHECK(error_of<c10::ValueError>([] {
          mha::combine(torch::ones({2, 1}), torch::ones({3, 3}));
        }) == "masks to combine: expected shapes that broadcast, found (2, 1) and (3, 3)");
}

TEST_CASE("self-attention, masked self-attention and cross-attention of an encoder-decoder") {
  mha::MultiHeadAttention self(16, 4);
  mha::MultiHeadAttention masked_self(16, 4);
  mha::MultiHeadAttention cross(16, 4);
  for (auto module : {self, masked_self, cross}) {
    module->eval();
  }
  const auto source = torch::randn({2, 6, 16});
  const auto target = torch::randn({2, 4, 16});
  const auto source_padding = mha::padding_mask(torch::tensor({6, 3}), 6);

  const auto memory = self(source, source, source, source_padding);
  const auto decoded = masked_self(target, target, target, causal_mask(4));
  const auto output = cross(decoded, memory, memory, source_padding);

  CHECK(memory.sizes() == torch::IntArrayRef({2, 6, 16}));
  CHECK(output.sizes() == torch::IntArrayRef({2, 4, 16}));
  // What is blocked has no weight at all: exp(-1e9) is 0.
  CHECK(self->attention_weights[1].slice(-1, 3).abs().max().item<float>() == 0.0F);
  CHECK(cross->attention_weights[1].slice(-1, 3).abs().max().item<float>() == 0.0F);
  CHECK(masked_self->attention_weights.triu(1).abs().max().item<float>() == 0.0F);
}
