// To and from LibTorch's own multi-head attention.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>

#include "mha/attention.h"
#include "mha/masks.h"
#include "testing.h"

using mha::MultiHeadAttention;
using mha::testing::bit_equal;
using mha::testing::error_of;
using torch::Tensor;
using torch::nn::MultiheadAttentionOptions;

namespace {

/// LibTorch's module on batch-first inputs.
Tensor forward_torch(torch::nn::MultiheadAttention& module, const Tensor& query, const Tensor& memory,
                     const Tensor& key_padding_mask = {}) {
  const auto key = memory.transpose(0, 1);
  return std::get<0>(module->forward(query.transpose(0, 1), key, key, key_padding_mask)).transpose(0, 1);
}

}  // namespace

TEST_CASE("from_torch computes what LibTorch's module computes") {
  for (const bool bias : {true, false}) {
    torch::nn::MultiheadAttention theirs(MultiheadAttentionOptions(12, 3).dropout(0.2).bias(bias));
    theirs->eval();
    auto ours = mha::from_torch(theirs);
    CHECK(ours->options.dropout() == 0.2);
    CHECK_FALSE(ours->is_training());
    const auto query = torch::randn({2, 4, 12});
    const auto memory = torch::randn({2, 6, 12});
    CHECK(torch::allclose(ours(query, memory, memory), forward_torch(theirs, query, memory), 1e-5, 1e-6));

    const auto blocked = mha::keep_from_blocked(mha::padding_mask(torch::tensor({6, 2}), 6)).view({2, 6});
    CHECK(torch::allclose(ours(query, memory, memory, mha::keep_from_key_padding_mask(blocked)),
                          forward_torch(theirs, query, memory, blocked), 1e-5, 1e-6));
  }
}

TEST_CASE("to_torch and back keeps every bit, dtype and mode") {
  MultiHeadAttention ours(12, 3, 0.3);
  ours->to(torch::kDouble);
  ours->eval();
  auto theirs = mha::to_torch(ours);
  CHECK_FALSE(theirs->is_training());
  CHECK(theirs->options.dropout() == 0.3);
  const auto x = torch::randn({2, 4, 12}, torch::kDouble);
  CHECK(torch::allclose(forward_torch(theirs, x, x), ours(x, x, x), 1e-12, 1e-12));
  const auto back = mha::from_torch(theirs);
  CHECK_FALSE(back->is_training());
  for (const auto& parameter : ours->named_parameters()) {
    CHECK(bit_equal(back->named_parameters()[parameter.key()], parameter.value()));
  }
}

TEST_CASE("from_torch refuses what this module does not have") {
  const auto refused = [](const MultiheadAttentionOptions& options) {
    return error_of<c10::ValueError>([&] { mha::from_torch(torch::nn::MultiheadAttention(options)); });
  };
  CHECK(refused(MultiheadAttentionOptions(12, 3).kdim(8)) ==
        "module: expected kdim and vdim equal to embed_dim 12, found kdim 8 and vdim 12");
  CHECK(refused(MultiheadAttentionOptions(12, 3).add_bias_kv(true)) ==
        "module: expected no bias_k and bias_v, found them (add_bias_kv)");
  CHECK(refused(MultiheadAttentionOptions(12, 3).add_zero_attn(true)) ==
        "module: expected add_zero_attn false, found true");
  CHECK(error_of<c10::ValueError>([] { mha::from_torch(nullptr); }) ==
        "module: expected a torch::nn::MultiheadAttention, found an empty holder");
  CHECK(error_of<c10::ValueError>([] { mha::to_torch(nullptr); }) ==
        "module: expected a mha::MultiHeadAttention, found an empty holder");
}
