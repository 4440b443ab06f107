// Memory that is projected once.
#include <torch/torch.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <optional>
#include <thread>
#include <vector>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::FusedMultiHeadAttention;
using mha::padding_mask;
using mha::ProjectedMemory;
using mha::testing::bit_equal;
using mha::testing::error_of;
using mha::testing::Trio;
using torch::Tensor;

TEST_CASE("queries attend to a projected memory as to the memory itself", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(1);
  Trio trio(48, 4, dtype);
  for (const int64_t key_len : {1, 19, 600}) {
    const auto memory = trio.random(3, key_len);
    const auto lengths = torch::tensor({key_len, key_len / 2, int64_t{0}});  // the last sees nothing
    const std::array<Tensor, 4> masks = {Tensor(), padding_mask(lengths, key_len),
                                         (torch::rand({3, 4, 1, key_len}) > 0.5).to(torch::kFloat),
                                         torch::rand({key_len}) > 0.5};
    for (const auto& mask : masks) {
      const auto projected = trio.fused.project_memory(memory, mask);
      for (const int64_t query_len : {1, 3, 16, 17, 30}) {
        const auto query = trio.random(3, query_len);
        CAPTURE(dtype, key_len, mask.defined() ? mask.sizes() : torch::IntArrayRef(), query_len);
        const auto ours = projected.attend(query);
        CHECK(trio.problem_of(ours, query, memory, memory, mask) == "");
        const auto output = torch::full_like(query, std::nan(""));
        projected.attend_into(query, output);
        CHECK(bit_equal(output, ours));
      }
    }
  }
}

TEST_CASE("a projected memory holds keys and values, and is a copy", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  torch::manual_seed(2);
  Trio trio(24, 3, dtype);
  const auto memory = trio.random(2, 9);
  auto mask = torch::rand({2, 1, 1, 9}) > 0.5;
  const auto query = trio.random(2, 1);
  std::optional<FusedMultiHeadAttention> engine(trio.fused);
  const ProjectedMemory projected = engine->project_memory(memory, mask);
  engine.reset();  // it needs not stay
  const auto before = projected.attend(query);
  memory.zero_();
  mask.fill_(true);
  CHECK(bit_equal(projected.attend(query), before));
  CHECK(projected.keys().sizes() == torch::IntArrayRef({2, 3, 9, 8}));
  CHECK(projected.values().sizes() == torch::IntArrayRef({2, 3, 9, 8}));
  CHECK_FALSE(projected.mask().all().item<bool>());
  const auto again = trio.fused.restore_memory(projected.keys(), projected.values(), projected.mask());
  CHECK(bit_equal(again.attend(query), before));
  CHECK_FALSE(trio.fused.project_memory(memory).mask().defined());
}

TEST_CASE("what a memory gives away is not what it holds", "[fused]") {
  torch::manual_seed(7);
  const Trio trio(24, 3);
  const auto projected = trio.fused.project_memory(trio.random(2, 5), torch::ones({5}));
  const auto query = trio.random(2, 1);
  const auto before = projected.attend(query);
  projected.keys().zero_();
  projected.values().zero_();
  projected.mask().zero_();
  CHECK(bit_equal(projected.attend(query), before));
}

TEST_CASE("autograd learns that an output was changed", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  torch::manual_seed(8);
  const Trio trio(24, 3, dtype);
  const auto projected = trio.fused.project_memory(trio.random(1, 5));
  const auto length = GENERATE(1, 70);  // few rows and many
  const auto output = torch::zeros({1, length, 24}, dtype);
  const auto weight = torch::ones({24}, torch::TensorOptions(dtype).requires_grad(true));
  const auto sum = (output * weight).sum();
  projected.attend_into(trio.random(1, length), output);
  CHECK(output._version() == 1);
  CHECK(error_of<c10::Error>([&] { sum.backward(); }).find("modified by an inplace operation") !=
        std::string::npos);
  Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = torch::zeros({1, length, 24}, dtype);
    projected.attend_into(trio.random(1, length), inference);
  }
  CHECK(error_of<c10::ValueError>([&] { projected.attend_into(trio.random(1, length), inference); }) ==
        "output: expected a tensor that may be changed here, found one of inference mode");
}

TEST_CASE("beams share a memory as more query rows", "[fused]") {
  torch::manual_seed(3);
  const Trio trio(24, 3);
  const auto memory = trio.random(2, 7);  // few rows, repeated or not: projected by the same kernels
  const auto beams = torch::randn({2 * 4, 1, 24});
  const auto shared = trio.fused.project_memory(memory).attend(beams.view({2, 4, 24}));
  const auto repeated = trio.fused.project_memory(memory.repeat_interleave(4, 0)).attend(beams);
  CHECK(bit_equal(shared.view({8, 1, 24}), repeated));
}

TEST_CASE("many threads may attend to one memory", "[fused]") {
  torch::manual_seed(4);
  const Trio trio(64, 4);
  const auto projected = trio.fused.project_memory(trio.random(2, 100));
  std::vector<Tensor> queries;
  std::vector<Tensor> expected;
  for (int64_t i = 0; i < 8; ++i) {
    queries.push_back(trio.random(2, 1 + i * 5));  // few rows and many
    expected.push_back(projected.attend(queries.back()));
  }
  std::vector<int> equal(queries.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < queries.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20; ++turn) {
        equal[i] += torch::equal(projected.attend(queries[i]), expected[i]) ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(equal == std::vector<int>(queries.size(), 20));
}

TEST_CASE("no query and no memory", "[fused]") {
  torch::manual_seed(5);
  Trio trio(24, 3);
  const auto memory = trio.random(2, 5);
  CHECK(trio.fused.project_memory(memory).attend(trio.random(2, 0)).sizes() ==
        torch::IntArrayRef({2, 0, 24}));
  const auto nothing = trio.random(2, 0);
  const auto query = trio.random(2, 3);
  CHECK(bit_equal(trio.fused.project_memory(nothing).attend(query), trio.fused(query, nothing, {})));
}

TEST_CASE("what is wrong with a memory or its query is said", "[fused]") {
  torch::manual_seed(6);
  const Trio trio(24, 3);
  const auto memory = trio.random(2, 5);
  const auto projected = trio.fused.project_memory(memory);
  const auto project = [&](const Tensor& x, const Tensor& mask = {}) {
    return error_of<c10::ValueError>([&] { trio.fused.project_memory(x, mask); });
  };
  CHECK(project(Tensor()) == "memory: expected a tensor, found an undefined one");
  CHECK(project(at::_neg_view(memory)).starts_with("memory: expected a dense tensor with memory of its own"));
  const auto ragged = at::_nested_tensor_from_tensor_list({torch::randn({1, 24}), torch::randn({2, 24})});
  CHECK(project(ragged).starts_with("memory: expected a dense tensor with memory of its own"));
  CHECK(project(memory[0]) ==
        "memory: expected 3 dimensions (batch, length, d_model = 24), found shape (5, 24)");
  CHECK(project(memory.to(torch::kDouble)) ==
        "memory: expected dtype float32 (that of the parameters), found float64");
  CHECK(project(memory, torch::ones({2, 1, 3, 5})) ==
        "mask: expected a shape that broadcasts to (batch, num_heads, 1, key_len) = (2, 3, 1, 5) without "
        "enlarging it, found (2, 1, 3, 5)");
  const auto restore = [&](const Tensor& keys, const Tensor& values, const Tensor& mask = {}) {
    return error_of<c10::ValueError>([&] { trio.fused.restore_memory(keys, values, mask); });
  };
  const auto keys = projected.keys();
  CHECK(restore(keys[0], keys) ==
        "keys: expected shape (batch, num_heads = 3, length, d_k = 8), found (3, 5, 8)");
  CHECK(restore(keys, keys.slice(2, 1)) ==
        "values: expected shape (2, 3, 5, 8) (that of keys), found (2, 3, 4, 8)");
  CHECK(restore(keys.slice(0, 2), keys.slice(0, 2)) ==
        "keys: expected a batch of at least 1, found shape (0, 3, 5, 8)");
  CHECK(restore(keys, keys.to(torch::kDouble)) == "values: expected dtype float32, found float64");
  CHECK(restore(keys, keys, torch::ones({4})).starts_with("mask: expected a shape that broadcasts"));
  const auto attend = [&](const Tensor& query) {
    return error_of<c10::ValueError>([&] { projected.attend(query); });
  };
  CHECK(attend(trio.random(3, 1)) == "query: expected batch 2 (that of memory), found shape (3, 1, 24)");
  CHECK(attend(torch::randn({2, 1, 5})) ==
        "query: expected last dimension 24 (d_model), found shape (2, 1, 5)");
  CHECK(attend(trio.random(2, 1).requires_grad_()).starts_with("query: expected no gradients to record"));
  const auto query = trio.random(2, 1);
  const auto into = [&](const Tensor& output) {
    return error_of<c10::ValueError>([&] { projected.attend_into(query, output); });
  };
  CHECK(into(Tensor()) == "output: expected a tensor, found an undefined one");
  CHECK(into(torch::empty({2, 2, 24})) == "output: expected shape (2, 1, 24), found (2, 2, 24)");
  CHECK(into(torch::empty({2, 1, 24}, torch::kDouble)) == "output: expected dtype float32, found float64");
  CHECK(into(torch::empty({2, 1, 48}).slice(2, 0, 48, 2)) ==
        "output: expected contiguous memory, found strides (48, 48, 2)");
}
