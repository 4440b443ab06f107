// Where a forward may run: autocast, inference mode, several devices, several modules in several threads.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

// LibTorch's header of data_parallel needs CUDA's headers, even to run on CPUs.
#if __has_include(<crt/host_defines.h>) && __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <torch/nn/parallel/data_parallel.h>
#define MHA_HAVE_DATA_PARALLEL
#endif

#include <catch2/catch_test_macros.hpp>
#include <thread>

#include "mha/attention.h"
#include "testing.h"

using mha::MultiHeadAttention;
using mha::testing::bit_equal;
using mha::testing::error_of;
using torch::Tensor;

namespace {

/// CPU autocast for a scope, as Python's `torch.autocast("cpu", dtype)`.
class Autocast {
 public:
  explicit Autocast(torch::ScalarType dtype)
      : enabled_(at::autocast::is_autocast_enabled(torch::kCPU)),
        dtype_(at::autocast::get_autocast_dtype(torch::kCPU)) {
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::set_autocast_dtype(torch::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_dtype(torch::kCPU, dtype_);
    at::autocast::set_autocast_enabled(torch::kCPU, enabled_);
  }

 private:
  bool enabled_;
  torch::ScalarType dtype_;
};

/// data_parallel() and Sequential pass one tensor: self-attention as a module of one input.
class SelfAttentionImpl : public torch::nn::Cloneable<SelfAttentionImpl> {
 public:
  SelfAttentionImpl() { SelfAttentionImpl::reset(); }
  void reset() override { attention = register_module("attention", MultiHeadAttention(8, 2)); }
  Tensor forward(const Tensor& x) { return attention(x, x, x); }

  MultiHeadAttention attention{nullptr};
};
TORCH_MODULE(SelfAttention);

}  // namespace

TEST_CASE("autocast lowers the products of a float module, mixed inputs included") {
  MultiHeadAttention attention(8, 2);
  attention->eval();
  const auto x = torch::randn({2, 5, 8});
  const auto mask = torch::ones({5, 5}).tril();
  const auto full = attention(x, x, x, mask);
  const Autocast autocast(torch::kBFloat16);
  const auto lowered = attention(x, x.to(torch::kBFloat16), x, mask);
  CHECK(lowered.scalar_type() == torch::kBFloat16);
  CHECK(torch::allclose(lowered.to(torch::kFloat), full, 0.05, 0.05));
}

TEST_CASE("autocast to float16 refuses a mask, as PyTorch does") {
  MultiHeadAttention attention(8, 2);
  attention->eval();
  const auto x = torch::randn({2, 5, 8});
  const Autocast autocast(torch::kHalf);
  CHECK(attention(x, x, x).scalar_type() == torch::kHalf);
  CHECK(error_of<c10::ValueError>([&] {
          attention(x, x, x, torch::ones({5, 5}));
        }).find("float16") != std::string::npos);
}

TEST_CASE("inference mode computes the same and leaves the module usable") {
  MultiHeadAttention attention(8, 2);
  attention->eval();
  const auto x = torch::randn({2, 5, 8});
  const auto expected = attention(x, x, x);
  {
    const c10::InferenceMode inference;
    CHECK(bit_equal(attention(x, x, x), expected));
    CHECK(attention->attention_weights.is_inference());
  }
  auto input = x.clone().requires_grad_();
  attention(input, input, input).sum().backward();
  CHECK(input.grad().defined());
}

TEST_CASE("inputs that require gradients are fine without gradient mode") {
  MultiHeadAttention attention(8, 2);
  const auto x = torch::randn({2, 5, 8}).requires_grad_();
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(attention(x, x, x).requires_grad());
}

#ifdef MHA_HAVE_DATA_PARALLEL
TEST_CASE("data_parallel works with the module inside a module of one input") {
  SelfAttention model;
  model->eval();
  const auto x = torch::randn({4, 5, 8});
  const auto expected = model(x);
  const std::vector<torch::Device> one = {torch::kCPU};
  CHECK(bit_equal(torch::nn::parallel::data_parallel(model, x, one), expected));

  const std::vector<torch::Device> two = {torch::kCPU, torch::kCPU};
  auto replicas = torch::nn::parallel::replicate(model, two);
  REQUIRE(replicas.size() == 2);
  const auto outputs = torch::nn::parallel::parallel_apply(replicas, x.chunk(2));
  CHECK(torch::allclose(torch::cat(outputs), expected, 1e-5, 1e-6));
  // Gradients of the replicas arrive at the original.
  torch::cat(outputs).sum().backward();
  CHECK(model->attention->W_q->weight.grad().defined());
}
#endif

TEST_CASE("what data_parallel is made of: replicas by clone(device), one chunk and one thread each") {
  SelfAttention model;
  model->eval();
  model->attention->W_v->bias.requires_grad_(false);
  const auto x = torch::randn({4, 5, 8});
  const auto expected = model(x);
  const auto chunks = x.chunk(2);
  std::vector<std::shared_ptr<SelfAttentionImpl>> replicas;
  for (size_t i = 0; i < chunks.size(); ++i) {
    replicas.push_back(
        std::dynamic_pointer_cast<SelfAttentionImpl>(model->clone(torch::Device(torch::kCPU))));
    REQUIRE(replicas.back() != nullptr);
    CHECK_FALSE(replicas.back()->attention->is_training());
    CHECK_FALSE(replicas.back()->attention->W_v->bias.requires_grad());
  }
  std::vector<Tensor> outputs(chunks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < chunks.size(); ++i) {
    threads.emplace_back([&, i] { outputs[i] = replicas[i]->forward(chunks[i]); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(torch::allclose(torch::cat(outputs), expected, 1e-5, 1e-6));
}

TEST_CASE("several modules run in several threads at once") {
  const auto x = torch::randn({2, 20, 8});
  std::vector<MultiHeadAttention> modules;
  std::vector<Tensor> expected;
  for (int i = 0; i < 4; ++i) {
    modules.emplace_back(8, 2);
    modules.back()->eval();
    expected.push_back(modules.back()(x, x, x));
  }
  std::vector<Tensor> outputs(modules.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < modules.size(); ++i) {
    threads.emplace_back([&, i] { outputs[i] = modules[i](x, x, x); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    CHECK(torch::allclose(outputs[i], expected[i], 1e-5, 1e-6));
  }
}
