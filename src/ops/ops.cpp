// What Python sees of the library, after torch.classes.load_library("build/release/libmha_ops.so"):
//
//     fused = torch.classes.mha.FusedMultiHeadAttention(module.state_dict(), num_heads, dtype=None)
//     fused.forward(x, mask=None, causal=False)                          self-attention
//     fused.cross(query, memory, mask=None, causal=False)                cross-attention
//     fused.attend(query, key, value, mask=None, causal=False)           the lesson's forward
//     fused.attention_weights(query, key, mask=None, causal=False)       (B, H, L, S)
//     fused.describe(query, key, value, mask=None, causal=False)         the path that `attend` takes, as text
//
//     lesson = torch.classes.mha.MultiHeadAttention(module.state_dict(), num_heads)
//     lesson.forward(query, key, value, mask=None)
//     lesson.attention_weights()                                         (B, H, L, S) of the last forward, or None
//
// The weights are the lesson's eight. `causal` is CausalAlignment::top_left: query i sees keys 0 to i. What the library
// refuses is a ValueError of one line; arguments of other types are refused by LibTorch in its own words.

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "mha/attention.h"
#include "mha/fused.h"
#include "mha/masks.h"
#include "mha/state_dict.h"
#include "mha/weights.h"

namespace mha {
namespace {

using torch::arg;
using torch::Tensor;
using Mask = std::optional<Tensor>;
using Weights = c10::Dict<std::string, Tensor>;

/// Makes a `Holder`. LibTorch translates errors of methods, but takes those of constructors for any C++ exception, whose
/// text is then the whole backtrace: these become what Python's bindings call ValueError and RuntimeError.
template <typename Holder, typename... Arguments>
c10::intrusive_ptr<Holder> make(const Arguments&... arguments) {
  try {
    return c10::make_intrusive<Holder>(arguments...);
  } catch (const c10::ValueError& error) {
    throw std::invalid_argument(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

StateDict to_state_dict(const Weights& weights) {
  StateDict result;
  for (const auto& item : weights) {
    result.insert(item.key(), item.value());
  }
  return result;
}

Masking masking(const Mask& mask, bool causal) {
  Masking result(mask.value_or(Tensor()));
  if (causal) {
    result.causal = CausalAlignment::top_left;
  }
  return result;
}

struct Fused : torch::CustomClassHolder {
  FusedMultiHeadAttention attention;

  Fused(const Weights& weights, int64_t num_heads, std::optional<torch::ScalarType> dtype)
      : attention(to_state_dict(weights), num_heads, dtype) {}
};

c10::intrusive_ptr<Fused> make_fused(const Weights& weights, int64_t num_heads,
                                     std::optional<torch::ScalarType> dtype) {
  return make<Fused>(weights, num_heads, dtype);
}

Tensor attend(const c10::intrusive_ptr<Fused>& self, const Tensor& query, const Tensor& key,
              const Tensor& value, const Mask& mask, bool causal) {
  return self->attention(query, key, value, masking(mask, causal));
}

Tensor forward(const c10::intrusive_ptr<Fused>& self, const Tensor& x, const Mask& mask, bool causal) {
  return attend(self, x, x, x, mask, causal);
}

Tensor cross(const c10::intrusive_ptr<Fused>& self, const Tensor& query, const Tensor& memory,
             const Mask& mask, bool causal) {
  return attend(self, query, memory, memory, mask, causal);
}

Tensor attention_weights(const c10::intrusive_ptr<Fused>& self, const Tensor& query, const Tensor& key,
                         const Mask& mask, bool causal) {
  return self->attention.attention_weights(query, key, masking(mask, causal));
}

std::string describe(const c10::intrusive_ptr<Fused>& self, const Tensor& query, const Tensor& key,
                     const Tensor& value, const Mask& mask, bool causal) {
  return self->attention.describe(query, key, value, masking(mask, causal));
}

struct Lesson : torch::CustomClassHolder {
  MultiHeadAttention attention{nullptr};

  Lesson(const Weights& weights, int64_t num_heads) {
    const auto state_dict = to_state_dict(weights);
    const auto* weight = state_dict.find("W_q.weight");
    TORCH_CHECK_VALUE(weight != nullptr && weight->dim() == 2,
                      "weights: expected a matrix \"W_q.weight\", found none");
    TORCH_CHECK_VALUE(weight->is_floating_point() && !weight->is_meta(),
                      "W_q.weight: expected a floating point dtype and values, found ", weight->dtype(),
                      " on ", weight->device());
    attention = MultiHeadAttention(weight->size(1), num_heads);
    attention->to(weight->device(), weight->scalar_type());
    attention->eval();
    for (auto& parameter : attention->parameters()) {
      parameter.requires_grad_(false);  // Python cannot reach them
    }
    load_state_dict(*attention, state_dict);
  }
};

c10::intrusive_ptr<Lesson> make_lesson(const Weights& weights, int64_t num_heads) {
  return make<Lesson>(weights, num_heads);
}

Tensor lesson_forward(const c10::intrusive_ptr<Lesson>& self, const Tensor& query, const Tensor& key,
                      const Tensor& value, const Mask& mask) {
  return self->attention(query, key, value, mask.value_or(Tensor()));
}

Mask lesson_attention_weights(const c10::intrusive_ptr<Lesson>& self) {
  const auto& weights = self->attention->attention_weights;
  return weights.defined() ? Mask(weights) : std::nullopt;
}

}  // namespace

TORCH_LIBRARY(mha, library) {
  const auto no_mask = arg("mask") = c10::IValue();
  const auto not_causal = arg("causal") = false;
  library.class_<Fused>("FusedMultiHeadAttention")
      .def(torch::init(&make_fused), "", {arg("weights"), arg("num_heads"), arg("dtype") = c10::IValue()})
      .def("forward", &forward, "", {arg("x"), no_mask, not_causal})
      .def("cross", &cross, "", {arg("query"), arg("memory"), no_mask, not_causal})
      .def("attend", &attend, "", {arg("query"), arg("key"), arg("value"), no_mask, not_causal})
      .def("attention_weights", &attention_weights, "", {arg("query"), arg("key"), no_mask, not_causal})
      .def("describe", &describe, "", {arg("query"), arg("key"), arg("value"), no_mask, not_causal});
  library.class_<Lesson>("MultiHeadAttention")
      .def(torch::init(&make_lesson), "", {arg("weights"), arg("num_heads")})
      .def("forward", &lesson_forward, "", {arg("query"), arg("key"), arg("value"), no_mask})
      .def("attention_weights", &lesson_attention_weights);
}

}  // namespace mha
