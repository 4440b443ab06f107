// The kernels without LibTorch around them: tasks in any order, scratch memory that held anything before.
#include "fused/core.h"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fused/fused_testing.h"
#include "testing.h"

using mha::CausalAlignment;
using mha::Masking;
using mha::fused::CoreArguments;
using mha::fused::Element;
using mha::testing::bit_equal;
using mha::testing::fused_attend;
using mha::testing::Heads;
using mha::testing::random_heads;
using torch::Tensor;

namespace {

mha::fused::Strides strides(const Tensor& heads) {
  return {.batch = heads.stride(0), .head = heads.stride(2), .row = heads.stride(1)};
}

/// `keep` is (B, 1, L, S), or undefined.
CoreArguments arguments_for(const Heads& heads, const Tensor& output, const Tensor& keep, bool causal) {
  CoreArguments arguments;
  arguments.element = heads.query.scalar_type() == torch::kFloat ? Element::float32 : Element::bfloat16;
  arguments.batch = heads.query.size(0);
  arguments.num_heads = heads.query.size(2);
  arguments.query_len = heads.query.size(1);
  arguments.key_len = heads.key.size(1);
  arguments.d_k = heads.query.size(3);
  arguments.query = heads.query.const_data_ptr();
  arguments.key = heads.key.const_data_ptr();
  arguments.value = heads.value.const_data_ptr();
  arguments.output = output.mutable_data_ptr();
  arguments.query_strides = strides(heads.query);
  arguments.key_strides = strides(heads.key);
  arguments.value_strides = strides(heads.value);
  arguments.output_strides = strides(output);
  if (keep.defined()) {
    arguments.mask = {.data = static_cast<const uint8_t*>(keep.const_data_ptr()),
                      .batch = keep.stride(0),
                      .head = 0,
                      .query = keep.stride(2),
                      .key = keep.stride(3)};
  }
  arguments.causal = causal;
  return arguments;
}

/// A thread's scratch memory, all bits set: NaN in every format. Also after its end, to tell who writes there.
class Scratch {
 public:
  explicit Scratch(size_t bytes)
      : bytes_(bytes), memory_(torch::empty({static_cast<int64_t>(bytes + guard)}, torch::kByte)) {
    poison();
  }

  void poison() const { memory_.fill_(0xFF); }
  void* data() const { return memory_.mutable_data_ptr(); }
  bool is_untouched_behind() const {
    return (memory_.slice(0, static_cast<int64_t>(bytes_)) == 0xFF).all().item<bool>();
  }

 private:
  static constexpr size_t guard = 4096;
  size_t bytes_;
  Tensor memory_;
};

}  // namespace

TEST_CASE("tasks in any order and on any scratch memory give the same bits", "[fused]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const auto d_k = GENERATE(1, 3, 16, 64, 65);
  const auto causal = GENERATE(false, true);
  torch::manual_seed(1);
  for (const auto& [query_len, key_len] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 530}, {7, 33}, {64, 64}, {65, 1}, {130, 513}, {200, 15}}) {
    const auto heads = random_heads(
        {.batch = 2, .num_heads = 3, .query_len = query_len, .key_len = key_len, .d_k = d_k}, dtype);
    auto keep = torch::rand({2, 1, query_len, key_len}) > 0.4;
    keep.select(2, 0).zero_();
    for (const bool masked : {false, true}) {
      const auto mask = masked ? keep : Tensor();
      const auto expected =
          fused_attend(heads, causal ? Masking(mask, CausalAlignment::top_left) : Masking(mask));
      const auto output = torch::full_like(expected, std::nan(""));
      const auto arguments = arguments_for(heads, output, mask, causal);
      const auto tasks = mha::fused::core_tasks(arguments);
      const Scratch scratch(mha::fused::core_scratch(arguments));
      CAPTURE(dtype, d_k, causal, query_len, key_len, masked, tasks);
      REQUIRE(tasks >= 1);

      mha::fused::run_core(arguments, 0, tasks, scratch.data());
      CHECK(scratch.is_untouched_behind());
      CHECK(bit_equal(output, expected));

      output.fill_(std::nan(""));
      for (int64_t task = tasks - 1; task >= 0; --task) {
        scratch.poison();
        mha::fused::run_core(arguments, task, task + 1, scratch.data());
      }
      CHECK(bit_equal(output, expected));

      // Every task writes its own rows, and only those.
      output.fill_(1024);
      mha::fused::run_core(arguments, 0, tasks / 2, scratch.data());
      const auto first_half = output.clone();
      mha::fused::run_core(arguments, tasks / 2, tasks, scratch.data());
      const auto untouched = first_half == 1024;
      CHECK(torch::equal(first_half.masked_select(untouched.logical_not()),
                         expected.masked_select(untouched.logical_not())));
      CHECK(bit_equal(output, expected));
      CHECK(untouched.any().item<bool>());
    }
  }
}
