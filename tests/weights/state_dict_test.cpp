#include <ATen/Functions.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "mha/state_dict.h"

namespace mha::testing {
namespace {

/// Registers in an order unlike that of its state dict, and one tensor under two names.
struct Tangled : torch::nn::Module {
  Tangled() {
    child = register_module("child", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
    register_module("again", child);
    register_buffer("buffer", at::zeros({1}));
    weight = register_parameter("weight", at::ones({2}));
    register_parameter("none", {}, /*requires_grad=*/false);
    register_buffer("nothing", {});
    register_parameter("tied", weight);
    register_module("norms", torch::nn::Sequential(torch::nn::BatchNorm1d(3)));
  }
  torch::nn::Linear child = nullptr;
  torch::Tensor weight;
};

TEST_CASE("state_dict: Python's names and order", "[weights]") {
  const Tangled module;
  CHECK(state_dict(module).keys() ==
        std::vector<std::string>{"weight", "tied", "buffer", "child.weight", "again.weight", "norms.0.weight",
                                 "norms.0.bias", "norms.0.running_mean", "norms.0.running_var",
                                 "norms.0.num_batches_tracked"});
  CHECK(state_dict(torch::nn::Module()).is_empty());
}

TEST_CASE("state_dict: detached, in the module's memory", "[weights]") {
  const Tangled module;
  const StateDict tensors = state_dict(module);
  CHECK(module.weight.requires_grad());
  CHECK_FALSE(tensors["weight"].requires_grad());
  CHECK(tensors["weight"].data_ptr() == module.weight.data_ptr());
  CHECK(tensors["tied"].data_ptr() == module.weight.data_ptr());
  CHECK(tensors["again.weight"].data_ptr() == module.child->weight.data_ptr());
}

}  // namespace
}  // namespace mha::testing
