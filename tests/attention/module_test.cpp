// The module as LibTorch users handle modules.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <sstream>

#include "mha/attention.h"
#include "mha/state_dict.h"
#include "testing.h"

using mha::MultiHeadAttention;
using mha::MultiHeadAttentionOptions;
using mha::testing::bit_equal;
using mha::testing::error_of;
using torch::Tensor;

namespace {

std::vector<std::string> names(const mha::StateDict& dict) {
  return dict.keys();
}

bool same_parameters(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = mha::state_dict(a);
  const auto right = mha::state_dict(b);
  return left.keys() == right.keys() &&
         std::equal(left.begin(), left.end(), right.begin(),
                    [](const auto& x, const auto& y) { return bit_equal(x.value(), y.value()); });
}

}  // namespace

TEST_CASE("the lesson's question: (32, 50, 512) with 8 heads gives Q (32, 8, 50, 64)") {
  MultiHeadAttention attention(512, 8);
  attention->eval();
  const auto x = torch::randn({32, 50, 512});
  const auto steps = attention->forward_steps(x, x, x);
  CHECK(steps.Q.sizes() == torch::IntArrayRef({32, 8, 50, 64}));
  CHECK(steps.K.sizes() == torch::IntArrayRef({32, 8, 50, 64}));
  CHECK(steps.V.sizes() == torch::IntArrayRef({32, 8, 50, 64}));
  CHECK(steps.scores.sizes() == torch::IntArrayRef({32, 8, 50, 50}));
  CHECK(steps.context.sizes() == torch::IntArrayRef({32, 50, 512}));
  CHECK(steps.output.sizes() == torch::IntArrayRef({32, 50, 512}));
  CHECK(attention->attention_weights.sizes() == torch::IntArrayRef({32, 8, 50, 50}));
}

TEST_CASE("options and positional form make the same module") {
  MultiHeadAttention by_options(MultiHeadAttentionOptions(12, 3).dropout(0.25));
  MultiHeadAttention by_position(12, 3, 0.25);
  for (const auto& module : {by_options, by_position}) {
    CHECK(module->d_model == 12);
    CHECK(module->num_heads == 3);
    CHECK(module->d_k == 4);
    CHECK(module->options.dropout() == 0.25);
    CHECK(module->dropout->options.p() == 0.25);
    CHECK_FALSE(module->attention_weights.defined());
  }
  CHECK(MultiHeadAttention(12, 3)->options.dropout() == 0.1);
  CHECK(MultiHeadAttentionOptions(12, 3).dropout() == 0.1);
}

TEST_CASE("names are the lesson's, in the lesson's order") {
  MultiHeadAttention attention(8, 2);
  CHECK(names(mha::state_dict(*attention)) == std::vector<std::string>{"W_q.weight", "W_q.bias", "W_k.weight",
                                                                       "W_k.bias", "W_v.weight", "W_v.bias",
                                                                       "W_o.weight", "W_o.bias"});
  CHECK(attention->named_children().keys() ==
        std::vector<std::string>{"W_q", "W_k", "W_v", "W_o", "dropout"});
}

TEST_CASE("constructor errors name the values") {
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(10, 3); }) ==
        "d_model must be divisible by num_heads, found d_model 10 and num_heads 3");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(10, 0); }) ==
        "num_heads must be positive, found 0");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(10, -2); }) ==
        "num_heads must be positive, found -2");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(0, 1); }) == "d_model must be positive, found 0");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(-8, 2); }) == "d_model must be positive, found -8");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(8, 2, -0.1); }) ==
        "dropout must be within [0, 1], found -0.1");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(8, 2, 1.5); }) ==
        "dropout must be within [0, 1], found 1.5");
  CHECK(error_of<c10::ValueError>([] { MultiHeadAttention(8, 2, std::nan("")); }) ==
        "dropout must be within [0, 1], found nan");
}

TEST_CASE("dropout 0 and 1 are allowed") {
  const auto x = torch::randn({2, 5, 8});
  MultiHeadAttention none(8, 2, 0.0);
  none->forward(x, x, x);
  CHECK(torch::allclose(none->attention_weights.sum(-1), torch::ones({2, 2, 5})));
  MultiHeadAttention all(8, 2, 1.0);
  all->forward(x, x, x);
  CHECK(bit_equal(all->attention_weights, torch::zeros({2, 2, 5, 5})));
}

TEST_CASE("the mask may be left out through AnyModule and Sequential") {
  MultiHeadAttention attention(8, 2);
  attention->eval();
  const auto x = torch::randn({2, 5, 8});
  const auto mask = torch::ones({5, 5}).tril();
  const auto expected = attention(x, x, x);
  const auto expected_masked = attention(x, x, x, mask);

  torch::nn::AnyModule any(attention);
  CHECK(bit_equal(any.forward(x, x, x), expected));
  CHECK(bit_equal(any.forward(x, x, x, mask), expected_masked));

  torch::nn::Sequential sequential(attention, torch::nn::Identity());
  CHECK(bit_equal(sequential->forward(x, x, x), expected));
  CHECK(bit_equal(sequential->forward(x, x, x, mask), expected_masked));
}

TEST_CASE("clone is deep and keeps mode, dtype and requires_grad") {
  MultiHeadAttention attention(8, 2, 0.5);
  attention->to(torch::kDouble);
  attention->eval();
  attention->W_k->weight.requires_grad_(false);
  const auto x = torch::randn({2, 5, 8}, torch::kDouble);
  attention->forward(x, x, x);
  auto copy = std::dynamic_pointer_cast<mha::MultiHeadAttentionImpl>(attention->clone());

  REQUIRE(copy != nullptr);
  CHECK(same_parameters(*copy, *attention));
  CHECK_FALSE(copy->is_training());
  CHECK_FALSE(copy->dropout->is_training());
  CHECK_FALSE(copy->W_k->weight.requires_grad());
  CHECK(copy->W_q->weight.requires_grad());
  CHECK_FALSE(copy->attention_weights.defined());
  CHECK(attention->attention_weights.defined());
  CHECK(bit_equal(copy->forward(x, x, x), attention->forward(x, x, x)));

  const torch::NoGradGuard no_grad;
  copy->W_q->weight.zero_();
  CHECK_FALSE(bit_equal(copy->W_q->weight, attention->W_q->weight));
}

TEST_CASE("pretty_print tells the module and its parts") {
  MultiHeadAttention attention(512, 8, 0.1);
  std::ostringstream text;
  text << attention;
  CHECK(text.str().starts_with("mha::MultiHeadAttention(d_model=512, num_heads=8, dropout=0.1)"));
  CHECK(text.str().find("(W_o): torch::nn::Linear(in_features=512, out_features=512, bias=true)") !=
        std::string::npos);
}

TEST_CASE("dropout changed on the live module is the one that counts") {
  MultiHeadAttention attention(8, 2, 0.1);
  attention->dropout->options.p(0.75);
  std::ostringstream text;
  attention->pretty_print(text);
  CHECK(text.str() == "mha::MultiHeadAttention(d_model=8, num_heads=2, dropout=0.75)");
  CHECK(mha::to_torch(attention)->options.dropout() == 0.75);
}

TEST_CASE("scaled_dot_product_attention applies a dropout module in training only") {
  const auto q = torch::randn({2, 3, 5, 4});
  torch::nn::Dropout dropout(0.5);
  torch::manual_seed(2);
  const auto [output, weights] = mha::scaled_dot_product_attention(q, q, q, {}, dropout);
  const auto plain = mha::scaled_dot_product_attention(q, q, q);
  torch::manual_seed(2);
  CHECK(bit_equal(weights, torch::dropout(plain.attention_weights, 0.5, /*train=*/true)));
  CHECK(bit_equal(output, torch::matmul(weights, q)));
  CHECK_FALSE(bit_equal(weights, plain.attention_weights));
  dropout->eval();
  CHECK(bit_equal(mha::scaled_dot_product_attention(q, q, q, {}, dropout).attention_weights,
                  plain.attention_weights));
}

TEST_CASE("to(dtype) after construction: a double module computes in double") {
  MultiHeadAttention attention(8, 2);
  attention->to(torch::kDouble);
  const auto x = torch::randn({2, 5, 8}, torch::kDouble);
  CHECK(attention(x, x, x).scalar_type() == torch::kDouble);
  attention->to(torch::kBFloat16);
  const auto half_width = x.to(torch::kBFloat16);
  CHECK(attention(half_width, half_width, half_width).scalar_type() == torch::kBFloat16);
}

TEST_CASE("to(device) after construction moves every parameter") {
  MultiHeadAttention attention(8, 2);
  const auto device =
      torch::cuda::is_available() ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
  attention->to(device);
  for (const auto& item : mha::state_dict(*attention)) {
    CHECK(item.value().device() == device);
  }
  const auto x = torch::randn({2, 5, 8}, device);
  CHECK(attention(x, x, x).device() == device);
}

TEST_CASE("another default dtype makes a module of that dtype") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  MultiHeadAttention attention(8, 2);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  CHECK(attention->W_q->weight.scalar_type() == torch::kDouble);
}

TEST_CASE("torch::save and torch::load carry all parameters") {
  MultiHeadAttention saved(8, 2);
  MultiHeadAttention loaded(8, 2);
  CHECK_FALSE(same_parameters(*saved, *loaded));
  std::stringstream stream;
  torch::save(saved, stream);
  torch::load(loaded, stream);
  CHECK(same_parameters(*saved, *loaded));
}

TEST_CASE("reset() makes the module anew") {
  MultiHeadAttention attention(8, 2);
  attention->eval();
  const auto x = torch::randn({2, 5, 8});
  attention->forward(x, x, x);
  const auto before = mha::state_dict(*attention);

  torch::manual_seed(3);
  attention->reset();
  CHECK_FALSE(attention->attention_weights.defined());
  CHECK_FALSE(attention->is_training());
  CHECK_FALSE(attention->dropout->is_training());
  CHECK_FALSE(bit_equal(before["W_q.weight"], attention->W_q->weight));
  torch::manual_seed(3);
  CHECK(same_parameters(*attention, *MultiHeadAttention(8, 2)));

  attention->options = MultiHeadAttentionOptions(12, 3);
  attention->reset();
  CHECK(attention->d_k == 4);
  CHECK(attention->W_q->weight.sizes() == torch::IntArrayRef({12, 12}));

  // Memory that cannot be had: the module stays as it was.
  attention->options = MultiHeadAttentionOptions(int64_t{1} << 40, 1);
  CHECK_THROWS_AS(attention->reset(), c10::Error);
  CHECK(attention->d_model == 12);
  CHECK(mha::state_dict(*attention).size() == 8);
  attention->options = MultiHeadAttentionOptions(12, 3);
  attention->options.num_heads(5);
  CHECK(error_of<c10::ValueError>([&] { attention->reset(); }) ==
        "d_model must be divisible by num_heads, found d_model 12 and num_heads 5");
}

TEST_CASE("reset_parameters() draws afresh in place") {
  MultiHeadAttention attention(8, 2);
  const auto x = torch::randn({2, 5, 8});
  attention->forward(x, x, x);
  const auto* weight = attention->W_q->weight.unsafeGetTensorImpl();
  torch::manual_seed(3);
  attention->reset_parameters();
  CHECK(attention->W_q->weight.unsafeGetTensorImpl() == weight);
  CHECK_FALSE(attention->attention_weights.defined());
  torch::manual_seed(3);
  CHECK(same_parameters(*attention, *MultiHeadAttention(8, 2)));
}

TEST_CASE("attention_weights belong to the last forward and carry gradients") {
  MultiHeadAttention attention(8, 2, 0.0);
  const auto x = torch::randn({2, 5, 8});
  attention->forward(x, x, x);
  const auto first = attention->attention_weights;
  CHECK(first.requires_grad());
  attention->forward(x * 2, x, x);
  CHECK_FALSE(bit_equal(first, attention->attention_weights));
  attention->attention_weights.sum().backward();
  CHECK(attention->W_q->weight.grad().defined());
  const torch::NoGradGuard no_grad;
  attention->forward(x, x, x);
  CHECK_FALSE(attention->attention_weights.requires_grad());
}

TEST_CASE("capturing steps changes neither bits nor attention_weights") {
  MultiHeadAttention attention(8, 2, 0.5);
  const auto x = torch::randn({2, 5, 8});
  const auto mask = torch::ones({5, 5}).tril();
  torch::manual_seed(1);
  const auto plain = attention(x, x, x, mask);
  const auto plain_weights = attention->attention_weights;
  torch::manual_seed(1);
  const auto steps = attention->forward_steps(x, x, x, mask);
  CHECK(bit_equal(steps.output, plain));
  CHECK(bit_equal(steps.attention_weights, plain_weights));
  CHECK(bit_equal(attention->attention_weights, plain_weights));
  CHECK(steps.masked_scores.defined());
  CHECK_FALSE(bit_equal(steps.softmax, steps.attention_weights));
  attention->eval();
  const auto unmasked = attention->forward_steps(x, x, x);
  CHECK_FALSE(unmasked.masked_scores.defined());
  CHECK(bit_equal(unmasked.softmax, unmasked.attention_weights));
}

TEST_CASE("steps follow from one another") {
  MultiHeadAttention attention(12, 3, 0.0);
  const auto query = torch::randn({2, 4, 12});
  const auto memory = torch::randn({2, 6, 12});
  const auto mask = torch::rand({2, 1, 4, 6}) > 0.3;
  const auto steps = attention->forward_steps(query, memory, memory, mask);
  CHECK(bit_equal(steps.scores, torch::matmul(steps.Q, steps.K.transpose(-2, -1)) / std::sqrt(4.0)));
  CHECK(bit_equal(steps.masked_scores, steps.scores.masked_fill(mask == 0, -1e9)));
  CHECK(bit_equal(steps.softmax, torch::softmax(steps.masked_scores, -1)));
  const auto output = torch::matmul(steps.attention_weights, steps.V);
  CHECK(bit_equal(steps.context, output.transpose(1, 2).contiguous().view({2, 4, 12})));
  CHECK(bit_equal(steps.output, torch::linear(steps.context, attention->W_o->weight, attention->W_o->bias)));
}
