// What the tests of the fused engine share: the lesson beside it in its own dtype and in float64, and the rule that the
// three must fulfil.
#pragma once

#include <torch/torch.h>

#include <catch2/catch_tostring.hpp>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "fused/attend.h"
#include "mha/attention.h"
#include "mha/fused.h"
#include "mha/masks.h"
#include "parity/tolerance.h"
#include "support/dtype_text.h"
#include "support/shape_text.h"

namespace mha::testing {

/// What the lesson's own error is multiplied by. The lesson always runs with this processor's best instructions, so
/// kernels that are made to run with others may round each product twice where the lesson rounds once.
inline double error_factor() {
  return std::getenv("MHA_TEST_TARGET") == nullptr ? parity::twin_error_factor
                                                   : 2 * parity::twin_error_factor;
}

/// What is wrong with `ours`, empty when nothing is: NaN and infinity stand where they do in `lesson`, and the error
/// against `float64` is at most twice the lesson's plus 8 roundings of the largest of `rounded`, by default the result.
/// Of a lesson in float64, which is no more exact than ours, the default tolerance decides.
inline std::string problem(const torch::Tensor& ours, const torch::Tensor& lesson,
                           const torch::Tensor& float64, const torch::Tensor& rounded = {}) {
  std::ostringstream text;
  if (ours.sizes() != lesson.sizes() || ours.scalar_type() != lesson.scalar_type()) {
    text << "expected " << dtype_text(lesson.scalar_type()) << " of shape " << shape_text(lesson.sizes())
         << ", found " << dtype_text(ours.scalar_type()) << " of shape " << shape_text(ours.sizes());
    return text.str();
  }
  const auto c = ours.to(torch::kDouble);
  const auto p = lesson.detach().to(torch::kDouble);
  const auto f = float64.detach();
  const auto finite = p.isfinite();
  const auto special = finite.logical_not();
  if (!torch::equal(c.isfinite(), finite) || !torch::equal(c.isnan(), p.isnan()) ||
      !torch::equal(c.masked_select(special).nan_to_num(0), p.masked_select(special).nan_to_num(0))) {
    text << "NaN " << c.isnan().sum().item<int64_t>() << " and inf " << c.isinf().sum().item<int64_t>()
         << ", the lesson has " << p.isnan().sum().item<int64_t>() << " and "
         << p.isinf().sum().item<int64_t>() << ", or has them elsewhere";
    return text.str();
  }
  const auto largest = [&](const torch::Tensor& values) {
    const auto bounded = finite & f.isfinite() & values.isfinite();
    return bounded.any().item<bool>() ? values.abs().masked_select(bounded).max().item<double>() : 0.0;
  };
  const auto error = largest(c - f);
  const auto dtype = lesson.scalar_type();
  const auto rounding = dtype == torch::kDouble ? parity::default_tolerance(dtype).relative
                                                : parity::twin_roundings * parity::epsilon(dtype);
  const auto allowed = error_factor() * largest(p - f) + rounding * largest(rounded.defined() ? rounded : f);
  if (!(error <= allowed)) {
    text << "error against float64 is " << error << ", allowed " << allowed << ", the lesson's "
         << largest(p - f);
  }
  return text.str();
}

/// Projected heads as `fused::attend` takes them: query (B, L, H, d_k), key and value (B, S, H, d_k).
struct Heads {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  Heads to(torch::ScalarType dtype) const { return {query.to(dtype), key.to(dtype), value.to(dtype)}; }
};

struct HeadSizes {
  int64_t batch = 1;
  int64_t num_heads = 1;
  int64_t query_len = 1;
  int64_t key_len = 1;
  int64_t d_k = 1;
};

inline Heads random_heads(const HeadSizes& sizes, torch::ScalarType dtype = torch::kFloat) {
  const auto random = [&](int64_t length) {
    return torch::randn({sizes.batch, length, sizes.num_heads, sizes.d_k}).to(dtype);
  };
  return {random(sizes.query_len), random(sizes.key_len), random(sizes.key_len)};
}

/// The mask tensor that means the same to the lesson.
inline torch::Tensor lesson_mask(const Masking& masking, int64_t query_len, int64_t key_len) {
  return masking.causal ? combine(masking.mask, causal_mask(query_len, key_len, *masking.causal))
                        : masking.mask;
}

/// (B, L, H, d_k) by the lesson.
inline torch::Tensor lesson_attend(const Heads& heads, const Masking& masking = {}) {
  const auto mask = lesson_mask(masking, heads.query.size(1), heads.key.size(1));
  return scaled_dot_product_attention(heads.query.transpose(1, 2), heads.key.transpose(1, 2),
                                      heads.value.transpose(1, 2), mask)
      .output.transpose(1, 2);
}

/// (B, L, H, d_k) by the engine, into memory that is all NaN before.
inline torch::Tensor fused_attend(const Heads& heads, const Masking& masking = {}) {
  const auto output = torch::full(heads.query.sizes(), std::nan(""), heads.query.options());
  const auto blocking = fused::make_blocking(
      masking.mask, masking.causal,
      {heads.query.size(0), heads.query.size(2), heads.query.size(1), heads.key.size(1)});
  fused::attend(heads.query, heads.key, heads.value, blocking, output);
  return output;
}

/// What is wrong with the engine's attention; empty: nothing. Weighted sums of values may cancel, what is rounded is
/// then the size of what was added up.
inline std::string attend_problem(const Heads& heads, const Masking& masking = {}) {
  const auto float64 = heads.to(torch::kDouble);
  return problem(fused_attend(heads, masking), lesson_attend(heads, masking), lesson_attend(float64, masking),
                 lesson_attend({float64.query, float64.key, float64.value.abs()}, masking));
}

inline MultiHeadAttention copy_of(const MultiHeadAttention& module) {
  return MultiHeadAttention(std::dynamic_pointer_cast<MultiHeadAttentionImpl>(module->clone()));
}

/// A module of random weights, the same in float64, and the engine made of it.
struct Trio {
  MultiHeadAttention lesson;
  MultiHeadAttention float64;
  FusedMultiHeadAttention fused;

  Trio(int64_t d_model, int64_t num_heads, torch::ScalarType dtype = torch::kFloat)
      : lesson(make(d_model, num_heads, dtype)), float64(copy_of(lesson)), fused(lesson) {
    float64->to(torch::kDouble);
  }

  /// (B, length, d_model)
  torch::Tensor random(int64_t batch, int64_t length) const {
    return torch::randn({batch, length, lesson->d_model}).to(fused.dtype());
  }

  /// What is wrong with `ours` as the output for these arguments; empty: nothing.
  std::string problem_of(const torch::Tensor& ours, const torch::Tensor& query, const torch::Tensor& key,
                         const torch::Tensor& value, const Masking& masking = {}) {
    const torch::NoGradGuard no_gradients;
    const auto mask = lesson_mask(masking, query.size(1), key.size(1));
    return testing::problem(
        ours, lesson(query, key, value, mask),
        float64(query.to(torch::kDouble), key.to(torch::kDouble), value.to(torch::kDouble), mask));
  }

  /// What is wrong with the engine's output for these arguments; empty: nothing.
  std::string problem(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                      const Masking& masking = {}) {
    return problem_of(fused(query, key, value, masking), query, key, value, masking);
  }

 private:
  static MultiHeadAttention make(int64_t d_model, int64_t num_heads, torch::ScalarType dtype) {
    MultiHeadAttention module(d_model, num_heads);
    module->to(dtype);
    module->eval();
    return module;
  }
};

}  // namespace mha::testing

/// Catch2 shows a dtype by its name.
template <>
struct Catch::StringMaker<c10::ScalarType> {
  static std::string convert(c10::ScalarType dtype) { return mha::dtype_text(dtype); }
};
