// Where the engine may run: autocast, inference mode, another default dtype, any number of threads, many callers.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <thread>
#include <vector>

#include "fused/fused_testing.h"
#include "parity/guards.h"
#include "testing.h"

using mha::FusedMultiHeadAttention;
using mha::Masking;
using mha::MultiHeadAttention;
using mha::testing::bit_equal;
using mha::testing::fused_attend;
using mha::testing::random_heads;
using mha::testing::Trio;
using torch::Tensor;

namespace {

/// CPU autocast to bfloat16 for a scope.
class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(torch::kCPU, true); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, false);
  }
};

}  // namespace

TEST_CASE("autocast plays no part", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  torch::manual_seed(1);
  Trio trio(24, 3, dtype);
  const auto x = trio.random(2, 9);
  const auto mask = torch::rand({9, 9}) > 0.3;
  const auto expected = trio.fused(x, mask);
  const auto weights = trio.fused.attention_weights(x, x, mask);
  const Autocast autocast;
  CHECK(bit_equal(trio.fused(x, mask), expected));
  CHECK(bit_equal(trio.fused.attention_weights(x, x, mask), weights));
  CHECK(bit_equal(FusedMultiHeadAttention(trio.lesson)(x, mask), expected));
  // The lesson's module would take a bfloat16 input here.
  CHECK(mha::testing::error_of<c10::ValueError>([&] { trio.fused(x.to(torch::kBFloat16)); }) ==
        "query: expected dtype " + mha::dtype_text(dtype) + " (that of the parameters), found bfloat16");
}

TEST_CASE("inference mode, inside and out", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(2);
  Trio trio(24, 3, dtype);
  const auto x = trio.random(2, 9);
  const auto mask = torch::rand({9, 9}) > 0.3;
  const auto expected = trio.fused(x, mask);
  std::optional<FusedMultiHeadAttention> made_inside;
  Tensor inference_input;
  {
    const c10::InferenceMode inference;
    CHECK(bit_equal(trio.fused(x, mask), expected));
    made_inside.emplace(trio.lesson);
    inference_input = x.clone();
    CHECK(bit_equal((*made_inside)(inference_input, mask), expected));
  }
  CHECK(bit_equal((*made_inside)(x, mask), expected));
  CHECK(inference_input.is_inference());
  CHECK(bit_equal(trio.fused(inference_input, mask), expected));
}

TEST_CASE("the result may be used in a computation that records gradients", "[fused]") {
  Trio trio(24, 3);
  const auto y = trio.fused(trio.random(2, 9));
  auto scale = torch::ones({24}).requires_grad_();
  (y * scale).sum().backward();
  CHECK(torch::allclose(scale.grad(), y.sum({0, 1}), 1e-4, 1e-5));
}

TEST_CASE("another default dtype plays no part", "[fused]") {
  torch::manual_seed(3);
  Trio trio(24, 3);
  const auto x = trio.random(2, 9);
  const auto mask = torch::rand({9, 9}) > 0.3;
  const auto expected = trio.fused(x, mask);
  const auto causal = trio.fused(x, mha::CausalAlignment::bottom_right);
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto under_double = trio.fused(x, mask);
  const auto causal_under_double = trio.fused(x, mha::CausalAlignment::bottom_right);
  const auto made_under_double = FusedMultiHeadAttention(trio.lesson)(x, mask);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  CHECK(bit_equal(under_double, expected));
  CHECK(bit_equal(causal_under_double, causal));
  CHECK(bit_equal(made_under_double, expected));
}

TEST_CASE("random numbers are not drawn", "[fused]") {
  MultiHeadAttention module(24, 3, 0.5);
  const FusedMultiHeadAttention fused(module);
  const auto x = torch::randn({2, 9, 24});
  torch::manual_seed(4);
  const auto expected = torch::rand({4});
  torch::manual_seed(4);
  fused(x);
  CHECK(bit_equal(torch::rand({4}), expected));
}

TEST_CASE("the bits of attention do not depend on the number of threads", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  if (!mha::fused::has_core(dtype, torch::kCPU)) {
    SKIP("no kernels of our own for this dtype");
  }
  torch::manual_seed(5);
  for (const auto& [query_len, key_len] : {std::pair<int64_t, int64_t>{1, 9}, {50, 50}, {200, 530}}) {
    const auto heads = random_heads(
        {.batch = 3, .num_heads = 5, .query_len = query_len, .key_len = key_len, .d_k = 20}, dtype);
    const auto keep = torch::rand({3, 1, query_len, key_len}) > 0.3;
    for (const auto& masking : {Masking(), Masking(keep), Masking(mha::CausalAlignment::bottom_right)}) {
      Tensor expected;
      for (const int threads : {1, 2, 3, 4}) {
        const mha::parity::ThreadsGuard guard(threads);
        REQUIRE(at::get_num_threads() == threads);
        const auto output = fused_attend(heads, masking);
        expected = expected.defined() ? expected : output;
        CAPTURE(dtype, query_len, key_len, threads);
        CHECK(bit_equal(output, expected));
      }
    }
  }
}

TEST_CASE("the engine computes the same by any number of threads, within rounding", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const auto threads = GENERATE(1, 2, 3, 4);
  torch::manual_seed(6);
  const mha::parity::ThreadsGuard guard(threads);
  Trio trio(96, 3, dtype);
  const auto query = trio.random(3, 40);
  const auto memory = trio.random(3, 70);
  CHECK(trio.problem(query, query, query) == "");
  CHECK(trio.problem(query, memory, memory, torch::rand({40, 70}) > 0.3) == "");
}

TEST_CASE("many threads may call one engine at once, from its first call on", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  torch::manual_seed(7);
  MultiHeadAttention module(96, 4);
  module->to(dtype);
  const auto query = torch::randn({2, 33, 96}).to(dtype);
  const auto memory = torch::randn({2, 40, 96}).to(dtype);
  const auto value = torch::randn({2, 40, 96}).to(dtype);
  const auto keep = torch::rand({33, 40}) > 0.3;
  const auto call = [&](const FusedMultiHeadAttention& fused) {
    // Each wants other products: those of three, of two, of one.
    return std::vector<Tensor>{fused(query), fused(query, memory, keep), fused(query, memory, value, {}),
                               fused(query, mha::CausalAlignment::top_left),
                               fused.attention_weights(query, memory, keep)};
  };
  const auto expected = call(FusedMultiHeadAttention(module));
  const double rounding = 8 * mha::parity::epsilon(dtype);
  for (int round = 0; round < 5; ++round) {
    const FusedMultiHeadAttention fused(module);  // nothing is packed yet
    std::vector<std::vector<Tensor>> found(6);
    std::vector<std::thread> callers;
    for (auto& results : found) {
      callers.emplace_back([&] { results = call(fused); });
    }
    for (auto& caller : callers) {
      caller.join();
    }
    for (const auto& results : found) {
      REQUIRE(results.size() == expected.size());
      for (size_t i = 0; i < results.size(); ++i) {
        CAPTURE(dtype, round, i);
        // A caller of its own may have other threads below it, so the products may be rounded otherwise.
        CHECK(torch::allclose(results[i].to(torch::kDouble), expected[i].to(torch::kDouble), rounding,
                              rounding));
      }
    }
  }
}
