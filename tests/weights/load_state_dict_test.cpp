#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <utility>
#include <vector>

#include "mha/weights.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

/// weight (2, 3) and bias (2,).
torch::nn::Linear make_linear() {
  return torch::nn::Linear(3, 2);
}

StateDict dict(const std::vector<std::pair<std::string, at::Tensor>>& items) {
  StateDict result;
  for (const auto& [name, tensor] : items) {
    result.insert(name, tensor);
  }
  return result;
}

/// Values for a Linear under these names.
StateDict linear_values(const std::string& weight = "weight", const std::string& bias = "bias") {
  return dict({{weight, at::arange(6, at::kFloat).view({2, 3})}, {bias, at::full({2}, 9.0)}});
}

bool is_loaded(const torch::nn::Linear& linear) {
  return at::equal(linear->weight, linear_values()["weight"]) &&
         at::equal(linear->bias, linear_values()["bias"]);
}

std::string message_for(torch::nn::Module& module, const StateDict& values, const std::string& prefix = "") {
  return error_of<c10::ValueError>([&] { load_state_dict(module, values, {prefix}); });
}

TEST_CASE("load_state_dict: values are copied, the module's tensors stay", "[weights]") {
  auto linear = make_linear();
  linear->bias.set_requires_grad(false);
  const void* const data = linear->weight.data_ptr();
  StateDict values = linear_values();
  load_state_dict(*linear, values);
  CHECK(is_loaded(linear));
  CHECK(linear->weight.data_ptr() == data);
  CHECK(linear->weight.requires_grad());
  CHECK(linear->weight.is_leaf());
  CHECK_FALSE(linear->bias.requires_grad());
  values["weight"].zero_();
  CHECK(is_loaded(linear));
}

TEST_CASE("load_state_dict: values are cast to the module's dtype", "[weights]") {
  for (const auto from :
       {at::kHalf, at::kBFloat16, at::kDouble, at::kLong, at::kUInt16, at::kFloat8_e4m3fn}) {
    auto linear = make_linear();
    StateDict values = linear_values();
    values["weight"] = values["weight"].to(from);
    load_state_dict(*linear, values);
    CHECK(linear->weight.scalar_type() == at::kFloat);
    CHECK(is_loaded(linear));
  }
  auto doubles = make_linear();
  doubles->to(torch::kDouble);
  load_state_dict(*doubles, linear_values());
  CHECK(at::equal(doubles->weight, linear_values()["weight"].to(at::kDouble)));
}

TEST_CASE("load_state_dict: buffers, strided and mapped sources", "[weights]") {
  torch::nn::BatchNorm1d from(3);
  torch::nn::BatchNorm1d into(3);
  from->running_mean.fill_(5);
  from->num_batches_tracked.fill_(7);
  const TemporaryFolder folder;
  write_weights(folder / "a", state_dict(*from));
  load_state_dict(*into, read_weights(folder / "a"));
  CHECK(at::equal(into->running_mean, from->running_mean));
  CHECK(into->num_batches_tracked.item<int64_t>() == 7);

  auto linear = make_linear();
  StateDict values = linear_values();
  values["weight"] = values["weight"].t().contiguous().t();
  load_state_dict(*linear, values);
  CHECK(is_loaded(linear));
  load_state_dict(*linear, state_dict(*linear));  // onto itself
  CHECK(is_loaded(linear));
}

TEST_CASE("load_state_dict: one error names everything, and nothing is copied", "[weights]") {
  auto linear = make_linear();
  const at::Tensor before = linear->weight.detach().clone();
  CHECK(
      message_for(*linear,
                  dict({{"weight", at::ones({3, 2})}, {"extra", at::ones({1})}, {"a\nb", at::ones({1})}})) ==
      R"(load_state_dict: missing "bias"; unexpected "extra", "a\x0ab"; )"
      R"(not fitting "weight" (expected (2, 3), found (3, 2)))");
  CHECK_THAT(message_for(*linear, dict({{"weight", at::ones({2, 3})}})),
             ContainsSubstring(R"(missing "bias")"));
  CHECK_THAT(message_for(*linear, dict({})), ContainsSubstring(R"(missing "weight", "bias")"));
  CHECK(at::equal(linear->weight, before));

  StateDict many = linear_values();
  for (int i = 0; i < 25; ++i) {
    many.insert("extra" + std::to_string(i), at::ones({1}));
  }
  CHECK_THAT(message_for(*linear, many), ContainsSubstring(R"("extra19" and 5 more)"));
  CHECK(at::equal(linear->weight, before));
}

TEST_CASE("load_state_dict: tensors that cannot be copied are refused", "[weights]") {
  const at::Tensor one = at::ones({2, 3});
  const std::vector<std::pair<at::Tensor, std::string>> rows{
      {{}, "found an undefined tensor"},
      {at::ones({2, 3}, at::kComplexFloat), "expected real values, found complex64"},
      {one.to_sparse(), "found a tensor that is not dense"},
      {at::quantize_per_tensor(one, 1.0, 0, at::kQInt8), "found a quantized tensor"},
      {at::empty({2, 3}, at::kMeta), "found a meta tensor"},
  };
  for (const auto& [tensor, found] : rows) {
    auto linear = make_linear();
    const at::Tensor bias = linear->bias.detach().clone();
    StateDict values = linear_values();
    values["weight"] = tensor;
    CHECK_THAT(message_for(*linear, values), ContainsSubstring(found));
    CHECK(at::equal(linear->bias, bias));
  }
}

TEST_CASE("load_state_dict: a module that cannot be written is refused first", "[weights]") {
  SECTION("inference tensors") {
    torch::nn::Linear linear = nullptr;
    {
      const c10::InferenceMode guard;
      linear = make_linear();
    }
    CHECK_THAT(message_for(*linear, linear_values()),
               ContainsSubstring("an inference tensor outside InferenceMode"));
    const c10::InferenceMode guard;
    load_state_dict(*linear, linear_values());
    CHECK(is_loaded(linear));
  }
  SECTION("expanded") {
    auto linear = make_linear();
    linear->weight.set_data(at::ones({2, 1}).expand({2, 3}));
    CHECK_THAT(message_for(*linear, linear_values()), ContainsSubstring("an expanded tensor"));
  }
  SECTION("meta") {
    torch::nn::Module module;
    module.register_parameter("weight", at::empty({2}, at::kMeta));
    const std::string message = message_for(module, dict({{"weight", at::ones({2})}}));
    CHECK_THAT(message, ContainsSubstring("found a meta tensor"));
  }
}

TEST_CASE("load_state_dict: prefixes and wrappers", "[weights]") {
  struct Row {
    std::string prefix;
    std::string weight;
    std::string bias;
  };
  const std::vector<Row> rows{
      {"", "weight", "bias"},
      {"a", "a.weight", "a.bias"},
      {"a.", "a.weight", "a.bias"},
      {"a.b.0", "a.b.0.weight", "a.b.0.bias"},
      {"", "module.weight", "module.bias"},
      {"", "_orig_mod.weight", "_orig_mod.bias"},
      {"", "module._orig_mod.weight", "module._orig_mod.bias"},
      {"", "_orig_mod.module.module.weight", "_orig_mod.module.module.bias"},
      {"", "module.weight", "bias"},
      {"a", "module.a.weight", "module.a.bias"},
      {"a", "_orig_mod.module.a.weight", "_orig_mod.module.a.bias"},
      {"a", "a._orig_mod.weight", "a._orig_mod.bias"},
      {"a", "a._orig_mod.weight", "a.bias"},
      {"a", "a.module.weight", "a.module.bias"},
      {"a.b", "a._orig_mod.b.weight", "a._orig_mod.b.bias"},
      {"module.a", "module.a.weight", "module.a.bias"},
      {"module.a", "_orig_mod.module.a.weight", "_orig_mod.module.a.bias"},
      {"module", "module.weight", "module.bias"},
      {"a._orig_mod", "a._orig_mod.weight", "a._orig_mod.bias"},
  };
  for (const Row& row : rows) {
    INFO(row.prefix << " of " << row.weight << ", " << row.bias);
    auto linear = make_linear();
    load_state_dict(*linear, linear_values(row.weight, row.bias), {row.prefix});
    CHECK(is_loaded(linear));
  }
}

TEST_CASE("load_state_dict: only names under the prefix count", "[weights]") {
  auto linear = make_linear();
  StateDict values = linear_values("a.weight", "a.bias");
  values.insert("weight", at::ones({5}));
  values.insert("ab.weight", at::ones({5}));
  values.insert("b.a.weight", at::ones({5}));
  load_state_dict(*linear, values, {"a"});
  CHECK(is_loaded(linear));
  values.insert("a.extra", at::ones({1}));
  CHECK_THAT(message_for(*linear, values, "a"), ContainsSubstring(R"(unexpected "a.extra")"));
}

TEST_CASE("load_state_dict: full names come first", "[weights]") {
  auto linear = make_linear();
  StateDict both = linear_values("a.weight", "a.bias");
  both.insert("module.a.weight", at::ones({2, 3}));
  both.insert("module.a.bias", at::ones({2}));
  load_state_dict(*linear, both, {"a"});
  CHECK(is_loaded(linear));

  struct Wrapper : torch::nn::Module {
    Wrapper() { register_module("module", inner); }
    torch::nn::Linear inner = make_linear();
  } wrapper;
  load_state_dict(wrapper, linear_values("module.weight", "module.bias"));
  CHECK(is_loaded(wrapper.inner));
}

TEST_CASE("load_state_dict: ambiguous and absent prefixes", "[weights]") {
  auto linear = make_linear();
  StateDict values = linear_values("module.weight", "module.bias");
  values.insert("_orig_mod.bias", at::ones({2}));
  CHECK_THAT(message_for(*linear, values),
             ContainsSubstring(R"(differ without their wrappers, found "module.bias" and "_orig_mod.bias")"));

  const StateDict layers =
      dict({{"enc.0.weight", at::ones({1})}, {"enc.1.weight", at::ones({1})}, {"x.y", at::ones({1})}});
  CHECK(message_for(*linear, layers, "enc.2.") ==
        R"(load_state_dict: expected names under the prefix "enc.2", found the prefixes "enc.0", "enc.1")");
  CHECK_THAT(message_for(*linear, layers, "module"),
             ContainsSubstring(R"(the prefix "module", found the prefixes)"));
  CHECK_THAT(message_for(*linear, dict({{"x.y", at::ones({1})}}), "a"),
             ContainsSubstring(R"(found the prefixes "x")"));
  CHECK_THAT(message_for(*linear, linear_values(), "a"), ContainsSubstring("only names without a prefix"));
  CHECK_THAT(message_for(*linear, dict({}), "a"), ContainsSubstring("only names without a prefix"));
  CHECK_THAT(message_for(*linear, layers),
             ContainsSubstring(R"(; the names have the prefixes "enc.0", "enc.1")"));
}

TEST_CASE("load_state_dict: of tied names the last value counts, as in Python", "[weights]") {
  torch::nn::Module module;
  const at::Tensor tied = module.register_parameter("first", at::zeros({2}));
  module.register_parameter("second", tied);
  load_state_dict(module, dict({{"second", at::full({2}, 2.0)}, {"first", at::ones({2})}}));
  CHECK(at::equal(tied, at::full({2}, 2.0)));
}

}  // namespace
}  // namespace mha::testing
