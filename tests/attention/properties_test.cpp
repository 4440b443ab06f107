// What must hold for attention whatever the numbers are.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>

#include "mha/attention.h"
#include "mha/masks.h"
#include "testing.h"

using mha::MultiHeadAttention;
using mha::testing::bit_equal;
using torch::Tensor;

namespace {

MultiHeadAttention eval_module(int64_t d_model, int64_t num_heads) {
  MultiHeadAttention attention(d_model, num_heads);
  attention->to(torch::kDouble);
  attention->eval();
  return attention;
}

Tensor random(torch::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

bool close(const Tensor& a, const Tensor& b) {
  return torch::allclose(a, b, 1e-12, 1e-12);
}

}  // namespace

TEST_CASE("attention weights are probabilities in eval") {
  const auto key_len = GENERATE(1, 3, 7, 50);
  auto attention = eval_module(12, 3);
  const auto query = random({2, 5, 12});
  const auto memory = random({2, key_len, 12});
  attention(query, memory, memory, torch::rand({2, 1, 5, key_len}) > 0.5);
  CHECK(close(attention->attention_weights.sum(-1), torch::ones({2, 3, 5}, torch::kDouble)));
  CHECK(attention->attention_weights.min().item<double>() >= 0);
}

TEST_CASE("in training the stored weights are those after dropout and do not sum to 1") {
  MultiHeadAttention attention(12, 3, 0.5);
  const auto x = torch::randn({2, 20, 12});
  const auto steps = attention->forward_steps(x, x, x);
  CHECK(torch::allclose(steps.softmax.sum(-1), torch::ones({2, 3, 20})));
  CHECK_FALSE(torch::allclose(attention->attention_weights.sum(-1), torch::ones({2, 3, 20})));
  const auto kept = attention->attention_weights != 0;
  CHECK(torch::allclose(attention->attention_weights.masked_select(kept),
                        (steps.softmax * 2).masked_select(kept)));
}

TEST_CASE("dropout does nothing in eval") {
  MultiHeadAttention attention(12, 3, 0.9);
  attention->eval();
  const auto x = torch::randn({2, 5, 12});
  CHECK(bit_equal(attention(x, x, x), attention(x, x, x)));
}

TEST_CASE("permuting keys with their values and masks changes nothing but the order of the weights") {
  auto attention = eval_module(12, 3);
  const auto query = random({2, 4, 12});
  const auto memory = random({2, 9, 12});
  const auto mask = torch::rand({2, 1, 4, 9}) > 0.3;
  const auto order = torch::randperm(9);
  const auto output = attention(query, memory, memory, mask);
  const auto weights = attention->attention_weights;
  const auto permuted = memory.index_select(1, order);
  CHECK(close(attention(query, permuted, permuted, mask.index_select(3, order)), output));
  CHECK(close(attention->attention_weights, weights.index_select(3, order)));
}

TEST_CASE("queries do not see one another") {
  auto attention = eval_module(12, 3);
  const auto query = random({2, 4, 12});
  const auto memory = random({2, 9, 12});
  const auto output = attention(query, memory, memory);
  CHECK(close(attention(query.slice(1, 1, 3), memory, memory), output.slice(1, 1, 3)));
}

TEST_CASE("a causal prefix does not depend on the future") {
  auto attention = eval_module(12, 3);
  const auto x = random({2, 10, 12});
  const auto output = attention(x, x, x, mha::causal_mask(10));
  auto changed = x.clone();
  changed.slice(1, 6).copy_(random({2, 4, 12}) * 100);
  CHECK(close(attention(changed, changed, changed, mha::causal_mask(10)).slice(1, 0, 6),
              output.slice(1, 0, 6)));
  const auto prefix = x.slice(1, 0, 6);
  CHECK(close(attention(prefix, prefix, prefix, mha::causal_mask(6)), output.slice(1, 0, 6)));
}

TEST_CASE("a masked key and its value do not matter, unless the value is NaN or infinite") {
  auto attention = eval_module(12, 3);
  const auto query = random({2, 4, 12});
  const auto memory = random({2, 6, 12});
  const auto mask = torch::tensor({1, 1, 0, 1, 1, 1});
  const auto output = attention(query, memory, memory, mask);

  auto changed = memory.clone();
  changed.select(1, 2).fill_(1e3);
  CHECK(bit_equal(attention(query, changed, changed, mask), output));

  // The score of a NaN key is replaced, so only the value side lets NaN through: 0 * NaN is NaN.
  changed.select(1, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  CHECK(bit_equal(attention(query, changed, memory, mask), output));
  CHECK(attention(query, memory, changed, mask).isnan().all().item<bool>());
}

TEST_CASE("a fully masked row attends to all keys equally, forward and backward") {
  auto attention = eval_module(12, 3);
  auto query = random({2, 4, 12}).requires_grad_();
  auto memory = random({2, 8, 12}).requires_grad_();
  auto mask = torch::ones({4, 8});
  mask[1].zero_();
  const auto output = attention(query, memory, memory, mask);
  CHECK(bit_equal(attention->attention_weights.select(2, 1), torch::full({2, 3, 8}, 0.125, torch::kDouble)));
  output.sum().backward();
  CHECK(query.grad().isfinite().all().item<bool>());
  CHECK(memory.grad().isfinite().all().item<bool>());
  CHECK(bit_equal(query.grad().select(1, 1), torch::zeros({2, 12}, torch::kDouble)));
}

TEST_CASE("a key whose score is below the fill loses to a masked one") {
  const auto query = torch::full({1, 1, 1}, 1e5, torch::kDouble);
  const auto key = torch::tensor({{{-1e5}, {0.0}}}, torch::kDouble);  // scores -1e10 and 0
  const auto value = torch::tensor({{{1.0}, {2.0}}}, torch::kDouble);
  const auto result = mha::scaled_dot_product_attention(query, key, value, torch::tensor({1, 0}));
  CHECK(result.output.item<double>() == 2.0);
}

TEST_CASE("the fill in bfloat16 is -9.98e8") {
  MultiHeadAttention attention(4, 1);
  attention->to(torch::kBFloat16);
  const auto x = torch::randn({1, 2, 4}).to(torch::kBFloat16);
  const auto steps = attention->forward_steps(x, x, x, torch::zeros({2, 2}));
  CHECK(steps.masked_scores.to(torch::kFloat).max().item<float>() == -998244352.0F);
}

TEST_CASE("an additive mask means the opposite here, as in Python") {
  auto attention = eval_module(12, 3);
  const auto x = random({1, 3, 12});
  const auto additive = torch::zeros({3}).masked_fill(torch::tensor({0, 0, 1}) == 1, -INFINITY);
  attention(x, x, x, additive);
  CHECK(close(attention->attention_weights.select(-1, 2), torch::ones({1, 3, 3}, torch::kDouble)));
  attention(x, x, x, mha::keep_from_additive(additive));
  CHECK(attention->attention_weights.select(-1, 2).abs().max().item<double>() == 0);
}

TEST_CASE("a (B, L, S) mask with B equal to H masks heads, as in Python") {
  auto attention = eval_module(8, 2);
  const auto x = random({2, 3, 8});
  auto mask = torch::ones({2, 3, 3});
  mask[0].select(-1, 0).zero_();
  attention(x, x, x, mask);
  CHECK(attention->attention_weights.select(1, 0).select(-1, 0).abs().max().item<double>() == 0);
  CHECK(attention->attention_weights.select(1, 1).select(-1, 0).min().item<double>() > 0);
}

TEST_CASE("the module equals a loop over its heads") {
  const auto heads = GENERATE(1, 2, 3, 6);
  auto attention = eval_module(12, heads);
  const auto query = random({2, 4, 12});
  const auto memory = random({2, 5, 12});
  const auto mask = torch::rand({2, heads, 4, 5}) > 0.3;
  const auto output = attention(query, memory, memory, mask);

  const auto width = 12 / heads;
  std::vector<Tensor> contexts;
  for (int64_t head = 0; head < heads; ++head) {
    const auto rows = [&](const torch::nn::Linear& layer, const Tensor& input) {
      return torch::linear(input, layer->weight.narrow(0, head * width, width),
                           layer->bias.narrow(0, head * width, width));
    };
    auto scores = torch::matmul(rows(attention->W_q, query), rows(attention->W_k, memory).transpose(-2, -1)) /
                  std::sqrt(static_cast<double>(width));
    scores = torch::where(mask.select(1, head), scores, torch::full_like(scores, -1e9));
    const auto weights = scores.exp() / scores.exp().sum(-1, true);
    const auto uniform = torch::full_like(weights, 1.0 / 5);
    const auto any_kept = mask.select(1, head).any(-1, /*keepdim=*/true);
    contexts.push_back(torch::matmul(torch::where(any_kept, weights, uniform), rows(attention->W_v, memory)));
  }
  const auto expected = torch::linear(torch::cat(contexts, -1), attention->W_o->weight, attention->W_o->bias);
  CHECK(close(output, expected));
}

TEST_CASE("lengths of zero are computed as Python does") {
  auto attention = eval_module(12, 3);
  const auto some = random({2, 3, 12});
  const auto none = random({2, 0, 12});
  CHECK(attention(none, some, some).sizes() == torch::IntArrayRef({2, 0, 12}));
  // No key: the context is 0, what remains is the output bias.
  CHECK(bit_equal(attention(some, none, none), attention->W_o->bias.expand({2, 3, 12})));
}

TEST_CASE("long keys: S = 65537") {
  auto attention = eval_module(4, 2);
  const auto query = random({1, 1, 4});
  const auto memory = random({1, 65537, 4});
  auto mask = torch::ones({65537}, torch::kBool);
  mask.slice(0, 1).zero_();
  attention(query, memory, memory, mask);
  CHECK(attention->attention_weights.select(-1, 0).min().item<double>() == 1.0);
}

TEST_CASE("inputs of any strides give the contiguous result, within rounding") {
  auto attention = eval_module(12, 3);
  const auto x = random({2, 5, 12});
  const auto expected = attention(x, x, x);
  const auto transposed = x.transpose(0, 1).contiguous().transpose(0, 1);
  const auto strided = torch::stack({x, x}, -1).select(-1, 0);
  const auto padded = torch::cat({x, x}, 1).slice(1, 0, 5);
  for (const auto& view : {transposed, strided, padded}) {
    CHECK_FALSE((view.is_contiguous() && view.data_ptr() == x.data_ptr()));
    CHECK(close(attention(view, view, view), expected));
  }
  const auto expanded = x.slice(0, 0, 1).expand({4, 5, 12});
  CHECK(close(attention(expanded, expanded, expanded),
              attention(x.slice(0, 0, 1), x.slice(0, 0, 1), x.slice(0, 0, 1)).expand({4, 5, 12})));
}

TEST_CASE("a gradient check in double precision") {
  auto attention = eval_module(6, 2);
  auto x = random({1, 3, 6}).requires_grad_();
  const auto direction = random({1, 3, 6});
  const auto mask = mha::causal_mask(3);
  const auto loss = [&](const Tensor& input) { return attention(input, input, input, mask).pow(2).sum(); };
  const auto gradient = torch::autograd::grad({loss(x)}, {x})[0];
  const double step = 1e-6;
  const torch::NoGradGuard no_grad;
  const auto difference =
      (loss(x + step * direction) - loss(x - step * direction)).item<double>() / (2 * step);
  CHECK(std::abs((gradient * direction).sum().item<double>() - difference) <
        1e-6 * std::max(1.0, std::abs(difference)));
}
