// Keys and values of what came before.
#include "mha/cache.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::CausalAlignment;
using mha::KeyValueCache;
using mha::testing::bit_equal;
using mha::testing::error_of;
using mha::testing::Trio;
using torch::Tensor;

namespace {

/// A cache beside the sequences that it has seen, one (length, D) for each item.
struct Generation {
  Trio& trio;
  KeyValueCache cache;
  std::vector<Tensor> sequences;

  Generation(Trio& trio, int64_t batch, int64_t capacity)
      : trio(trio),
        cache(trio.fused, batch, capacity),
        sequences(static_cast<size_t>(batch), torch::empty({0, trio.lesson->d_model}, trio.fused.dtype())) {}

  std::vector<int64_t> lengths() const {
    std::vector<int64_t> result;
    for (const auto& sequence : sequences) {
      result.push_back(sequence.size(0));
    }
    return result;
  }

  /// Adds counts[b] of the rows of x to each item; what is wrong with `y` as what the cache gave for them.
  std::string add(const Tensor& x, const std::vector<int64_t>& counts, const Tensor& y) {
    if (y.sizes() != x.sizes()) {
      return "the output has another shape than x";
    }
    for (size_t item = 0; item < sequences.size(); ++item) {
      const auto at = static_cast<int64_t>(item);
      sequences[item] = torch::cat({sequences[item], x[at].narrow(0, 0, counts[item])});
      const auto padding = y[at].slice(0, counts[item]);
      if (!torch::equal(padding, torch::zeros_like(padding))) {
        return "the padding is not 0";
      }
      if (const auto found = problem_of(item, y[at].narrow(0, 0, counts[item])); !found.empty()) {
        return "item " + std::to_string(item) + ": " + found;
      }
    }
    return cache.lengths() == lengths() ? "" : "the cache tells other lengths";
  }

  /// What is wrong with `rows` as the last ones of the lesson's causal forward over the item's whole sequence.
  std::string problem_of(size_t item, const Tensor& rows) const {
    const auto& sequence = sequences[item];
    const int64_t length = sequence.size(0);
    if (rows.size(0) == 0) {
      return "";
    }
    const torch::NoGradGuard no_gradients;
    const auto mask = mha::causal_mask(length);
    const auto x = sequence.unsqueeze(0);
    const auto exact = x.to(torch::kDouble);
    const auto last = [&](const Tensor& output) { return output[0].slice(0, length - rows.size(0)); };
    return mha::testing::problem(rows, last(trio.lesson(x, x, x, mask)),
                                 last(trio.float64(exact, exact, exact, mask)));
  }
};

std::vector<int64_t> random_numbers(std::mt19937& random, size_t count, int64_t most) {
  std::vector<int64_t> numbers(count);
  for (auto& number : numbers) {
    number = std::uniform_int_distribution<int64_t>(0, most)(random);
  }
  return numbers;
}

}  // namespace

TEST_CASE("any order of prefill, step, reorder, copy, truncate and reset gives what the full forward gives",
          "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto seed = GENERATE(Catch::Generators::range(1U, 9U));
  torch::manual_seed(seed);
  std::mt19937 random(seed);
  const std::array<std::pair<int64_t, int64_t>, 4> widths = {{{24, 3}, {64, 4}, {30, 2}, {80, 1}}};
  const auto [d_model, num_heads] = widths.at(seed % widths.size());
  Trio trio(d_model, num_heads, dtype);
  const auto batch = 1 + static_cast<int64_t>(seed % 5);
  constexpr int64_t capacity = 90;
  Generation generation(trio, batch, capacity);
  auto& cache = generation.cache;
  auto& sequences = generation.sequences;
  const auto items = static_cast<size_t>(batch);
  for (int turn = 0; turn < 40; ++turn) {
    const auto lengths = generation.lengths();
    const int64_t room = capacity - *std::max_element(lengths.begin(), lengths.end());
    const auto action = std::uniform_int_distribution<int>(0, 9)(random);
    CAPTURE(dtype, seed, turn, action, lengths);
    if (action <= 1 && room > 0) {  // a piece of a prompt, few rows or many
      const auto length =
          std::uniform_int_distribution<int64_t>(0, std::min<int64_t>(room, action == 0 ? 8 : 40))(random);
      const auto counts = random_numbers(random, items, length);
      const auto x = trio.random(batch, length);
      REQUIRE(generation.add(x, counts, cache.prefill(x, counts)) == "");
    } else if (action == 2) {
      const auto sources = random_numbers(random, items, batch - 1);
      cache.reorder(sources);
      const auto old = sequences;
      for (size_t item = 0; item < items; ++item) {
        sequences[item] = old[static_cast<size_t>(sources[item])];
      }
    } else if (action == 3) {
      const auto pair = random_numbers(random, 2, batch - 1);
      cache.copy(pair[0], pair[1]);
      sequences[static_cast<size_t>(pair[1])] = sequences[static_cast<size_t>(pair[0])];
    } else if (action == 4) {
      const auto item = std::uniform_int_distribution<size_t>(0, items - 1)(random);
      const auto length = std::uniform_int_distribution<int64_t>(0, lengths[item])(random);
      cache.truncate(static_cast<int64_t>(item), length);
      sequences[item] = sequences[item].narrow(0, 0, length);
    } else if (room > 0) {
      const auto x = trio.random(batch, 1);
      REQUIRE(generation.add(x, std::vector<int64_t>(items, 1), cache.step(x)) == "");
    } else {
      cache.reset();
      std::fill(sequences.begin(), sequences.end(), sequences[0].narrow(0, 0, 0));
    }
    REQUIRE(cache.lengths() == generation.lengths());
  }
}

TEST_CASE("long sequences, piece by piece", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(11);
  Trio trio(32, 2, dtype);
  Generation generation(trio, 2, 1200);
  for (const auto& counts :
       {std::vector<int64_t>{511, 300}, {1, 1}, {1, 1}, {3, 3}, {16, 10}, {17, 17}, {520, 0}, {1, 1}}) {
    const auto x = trio.random(2, std::max(counts[0], counts[1]));
    CAPTURE(dtype, counts);
    REQUIRE(generation.add(x, counts, generation.cache.prefill(x, counts)) == "");
  }
}

TEST_CASE("step_into writes what step gives", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(12);
  const Trio trio(24, 3, dtype);
  KeyValueCache one(trio.fused, 3, 8);
  KeyValueCache other(trio.fused, 3, 8);
  for (int turn = 0; turn < 8; ++turn) {
    const auto x = trio.random(3, 1);
    const auto output = torch::full_like(x, std::nan(""));
    other.step_into(x, output);
    CHECK(output._version() == 1);  // what autograd must know
    CHECK(bit_equal(one.step(x), output));
  }
  // Its own input may be overwritten.
  one.reset();
  other.reset();
  const auto x = trio.random(3, 1);
  const auto expected = one.step(x);
  other.step_into(x, x);
  CHECK(bit_equal(x, expected));
}

TEST_CASE("a row of a batch is computed as it is alone", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(13);
  const Trio trio(48, 4, dtype);
  KeyValueCache batch(trio.fused, 3, 20);
  const auto prompt = trio.random(3, 7);
  batch.prefill(prompt, {7, 2, 4});
  const auto x = trio.random(3, 1);
  const auto y = batch.step(x);
  for (int64_t item = 0; item < 3; ++item) {
    KeyValueCache alone(trio.fused, 1, 9);
    alone.prefill(prompt.narrow(0, item, 1), {std::array<int64_t, 3>{7, 2, 4}.at(static_cast<size_t>(item))});
    CHECK(bit_equal(alone.step(x.narrow(0, item, 1)), y.narrow(0, item, 1)));
  }
}

TEST_CASE("beams and items that stand still", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(19);
  const Trio trio(48, 4, dtype);
  const auto prompt = trio.random(1, 6);
  KeyValueCache repeated(trio.fused, 3, 10);
  repeated.prefill(prompt.expand({3, 6, 48}));
  KeyValueCache spread(trio.fused, 3, 10);
  spread.prefill(prompt.expand({3, 6, 48}), {6, 0, 0});
  spread.copy(0, 1);
  spread.copy(0, 2);
  const auto x = trio.random(3, 1);
  const auto expected = repeated.step(x);
  CHECK(bit_equal(spread.prefill(x, {0, 0, 1})[2], expected[2]));
  CHECK(bit_equal(spread.prefill(x, {1, 1, 0}).narrow(0, 0, 2), expected.narrow(0, 0, 2)));
  CHECK(spread.lengths() == repeated.lengths());
  spread.reorder({2, 2, 0});
  repeated.reorder({2, 2, 0});
  CHECK(bit_equal(spread.step(x), repeated.step(x)));
}

TEST_CASE("copies go their own way", "[fused]") {
  torch::manual_seed(14);
  const Trio trio(24, 3);
  KeyValueCache cache(trio.fused, 2, 10);
  cache.prefill(trio.random(2, 4), {4, 3});
  cache.reorder({1, 0});
  KeyValueCache copy = cache;
  const auto x = trio.random(2, 1);
  const auto expected = cache.step(x);
  CHECK(copy.lengths() == std::vector<int64_t>{3, 4});
  CHECK(bit_equal(copy.step(x), expected));
  cache.reset();
  CHECK(copy.lengths() == std::vector<int64_t>{4, 5});
  KeyValueCache assigned(trio.fused, 5, 1);
  assigned = copy;
  const KeyValueCache moved = std::move(copy);
  CHECK(bit_equal(assigned.step(x), KeyValueCache(moved).step(x)));
  CHECK(moved.batch() == 2);
  CHECK(moved.capacity() == 10);
}

TEST_CASE("what is stored can be looked at", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(15);
  const Trio trio(24, 3, dtype);
  const auto x = trio.random(2, 9);
  KeyValueCache cache(trio.fused, 2, 10);
  cache.prefill(x, {9, 5});
  cache.reorder({1, 1});
  const auto memory = trio.fused.project_memory(x);
  for (int64_t item = 0; item < 2; ++item) {
    CHECK(bit_equal(cache.keys(item), memory.keys()[1].narrow(1, 0, 5)));
    CHECK(bit_equal(cache.values(item), memory.values()[1].narrow(1, 0, 5)));
  }
  const auto keys = cache.keys(0);
  const auto before = keys.clone();
  cache.reset();
  cache.step(trio.random(2, 1));
  CHECK(bit_equal(keys, before));  // a copy
}

TEST_CASE("items can be put back", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(18);
  const Trio trio(24, 3, dtype);
  KeyValueCache cache(trio.fused, 2, 12);
  cache.prefill(trio.random(2, 7), {7, 3});
  KeyValueCache other(trio.fused, 3, 9);
  other.assign(2, cache.keys(0), cache.values(0));
  other.assign(0, cache.keys(1).transpose(0, 1).contiguous().transpose(0, 1), cache.values(1));
  CHECK(other.lengths() == std::vector<int64_t>{3, 0, 7});
  const auto x = trio.random(2, 1);
  const auto expected = cache.step(x);
  const auto found = other.step(torch::cat({x[1], x[0], x[0]}).unsqueeze(1));
  CHECK(bit_equal(found[2], expected[0]));
  CHECK(bit_equal(found[0], expected[1]));
}

TEST_CASE("reordering copies only what occurs more than once", "[fused]") {
  torch::manual_seed(16);
  const Trio trio(24, 3);
  KeyValueCache cache(trio.fused, 4, 10);
  const auto x = trio.random(4, 6);
  cache.prefill(x, {6, 1, 3, 0});
  std::vector<Tensor> keys;
  for (int64_t item = 0; item < 4; ++item) {
    keys.push_back(cache.keys(item));
  }
  for (const auto& sources : {std::vector<int64_t>{3, 2, 1, 0}, {1, 1, 1, 1}, {0, 1, 2, 3}}) {
    cache.reorder(sources);
    std::vector<Tensor> expected;
    for (const auto source : sources) {
      expected.push_back(keys[static_cast<size_t>(source)]);
    }
    keys = expected;
    for (int64_t item = 0; item < 4; ++item) {
      CHECK(bit_equal(cache.keys(item), keys[static_cast<size_t>(item)]));
    }
  }
}

TEST_CASE("what a cache refuses leaves it as it was", "[fused]") {
  torch::manual_seed(17);
  const Trio trio(24, 3);
  KeyValueCache cache(trio.fused, 2, 5);
  cache.prefill(trio.random(2, 4), {4, 2});
  const auto keys = cache.keys(0);
  const auto error = [&](const auto& action) { return error_of<c10::ValueError>(action); };
  CHECK(error([&] { cache.prefill(trio.random(2, 2)); }) ==
        "x: expected at most 1 positions for item 0, which has 4 of the capacity of 5, found 2");
  CHECK(error([&] {
          cache.prefill(trio.random(2, 4), {1, 4});
        }) == "x: expected at most 3 positions for item 1, which has 2 of the capacity of 5, found 4");
  CHECK(error([&] { cache.prefill(trio.random(2, 1), {1}); }) ==
        "lengths: expected 2 (one for each item), found 1");
  CHECK(error([&] {
          cache.prefill(trio.random(2, 1), {1, 2});
        }) == "lengths: expected numbers within [0, 1] (the length of x), found 2 for item 1");
  CHECK(error([&] {
          cache.prefill(trio.random(2, 1), {-1, 1});
        }) == "lengths: expected numbers within [0, 1] (the length of x), found -1 for item 0");
  CHECK(error([&] { cache.step(trio.random(3, 1)); }) ==
        "x: expected batch 2 (that of the cache), found shape (3, 1, 24)");
  CHECK(error([&] { cache.prefill(trio.random(2, 1).to(torch::kDouble)); }) ==
        "x: expected dtype float32 (that of the parameters), found float64");
  CHECK(
      error([&] { cache.step(at::_neg_view(trio.random(2, 1))); }).starts_with("x: expected a dense tensor"));
  CHECK(error([&] { cache.step(Tensor()); }) == "x: expected a tensor, found an undefined one");
  CHECK(error([&] {
          cache.step(torch::randn({2, 0, 24}));
        }) == "x: expected length 1 (one position), found shape (2, 0, 24)");
  CHECK(error([&] {
          cache.step_into(trio.random(2, 1), torch::empty({2, 24}));
        }) == "output: expected shape (2, 1, 24), found (2, 24)");
  CHECK(
      error([&] { cache.step(trio.random(2, 1).requires_grad_()); }).starts_with("x: expected no gradients"));
  CHECK(error([&] { cache.truncate(1, 3); }) == "length: expected one within [0, 2], found 3");
  CHECK(error([&] { cache.truncate(2, 0); }) == "item: expected an item within [0, 2), found 2");
  CHECK(error([&] { cache.reset(-1); }) == "item: expected an item within [0, 2), found -1");
  CHECK(error([&] { cache.copy(0, 2); }) == "to: expected an item within [0, 2), found 2");
  CHECK(error([&] { cache.copy(-1, 1); }) == "from: expected an item within [0, 2), found -1");
  CHECK(error([&] { cache.reorder({0}); }) == "sources: expected 2 items, found 1");
  CHECK(error([&] { cache.reorder({0, 5}); }) == "sources: expected an item within [0, 2), found 5");
  CHECK(error([&] { cache.keys(2); }) == "item: expected an item within [0, 2), found 2");
  CHECK(error([&] { cache.assign(2, keys, keys); }) == "item: expected an item within [0, 2), found 2");
  CHECK(error([&] { cache.assign(0, keys[0], keys); }) ==
        "keys: expected shape (num_heads = 3, length, d_k = 8), found (4, 8)");
  CHECK(error([&] { cache.assign(0, keys, keys.slice(1, 1)); }) ==
        "values: expected shape (3, 4, 8) (that of keys), found (3, 3, 8)");
  CHECK(error([&] { cache.assign(0, keys, keys.to(torch::kHalf)); }) ==
        "values: expected dtype float32, found float16");
  CHECK(error([&] {
          cache.assign(0, torch::empty({3, 6, 8}), torch::empty({3, 6, 8}));
        }) == "keys: expected a length of at most 5 (the capacity), found shape (3, 6, 8)");
  CHECK(cache.lengths() == std::vector<int64_t>{4, 2});
  CHECK(bit_equal(cache.keys(0), keys));
  CHECK(error([&] { KeyValueCache(trio.fused, 0, 5); }) == "batch: expected at least 1, found 0");
  CHECK(error([&] { KeyValueCache(trio.fused, 1, 0); }) == "capacity: expected at least 1, found 0");
  CHECK(error([&] {
          KeyValueCache(trio.fused, 1, int64_t{1} << 62);
        }).starts_with("capacity: expected at most 24019198012642645 for batch 1 and d_model 24, found "));
  cache.step(trio.random(2, 1));
  CHECK(error([&] { cache.step(trio.random(2, 1)); }) ==
        "x: expected at most 0 positions for item 0, which has 5 of the capacity of 5, found 1");
}
