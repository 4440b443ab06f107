// torch.classes.mha.MultiHeadAttention: the lesson's module, bit for bit.
#include <mutex>
#include <tuple>
#include <utility>

#include "mha/attention.h"
#include "mha/weights.h"
#include "ops/classes.h"

namespace mha::ops {
namespace {

/// A module keeps the weights of its last call, and Python's lock is not held during calls: they take turns.
struct Lesson : torch::CustomClassHolder {
  MultiHeadAttention attention{nullptr};
  std::mutex mutex;

  Lesson(const StateDict& weights, int64_t num_heads) {
    const auto* weight = weights.find("W_q.weight");
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
    load_state_dict(*attention, weights);
  }
};

using LessonPtr = c10::intrusive_ptr<Lesson>;
using State = std::tuple<Weights, int64_t>;

LessonPtr make(const Weights& weights, int64_t num_heads) {
  return translated([&] { return c10::make_intrusive<Lesson>(to_state_dict(weights), num_heads); });
}

LessonPtr load(const std::string& path, std::optional<int64_t> num_heads, const std::string& prefix,
               const std::string& layout) {
  return translated([&] {
    const auto block = read_block(path, num_heads, prefix, layout);
    return c10::make_intrusive<Lesson>(block.tensors, block.num_heads);
  });
}

Tensor forward(const LessonPtr& self, const Tensor& query, const Tensor& key, const Tensor& value,
               const Mask& mask) {
  const std::lock_guard lock(self->mutex);
  return self->attention(query, key, value, mask.value_or(Tensor()));
}

Mask attention_weights(const LessonPtr& self) {
  const std::lock_guard lock(self->mutex);
  const auto& weights = self->attention->attention_weights;
  return weights.defined() ? Mask(weights) : std::nullopt;
}

}  // namespace

void register_lesson(torch::Library& library) {
  library.class_<Lesson>("MultiHeadAttention")
      .def(torch::init(&make), "", {arg("weights"), arg("num_heads")})
      .def_static("load", &load, "",
                  {arg("path"), arg("num_heads") = c10::IValue(), arg("prefix") = "", arg("layout") = ""})
      .def("forward", &forward, "", {arg("query"), arg("key"), arg("value"), arg("mask") = c10::IValue()})
      .def("attention_weights", &attention_weights)
      .def_pickle(
          [](const LessonPtr& self) {
            return State(to_dict(state_dict(*self->attention)), self->attention->num_heads);
          },
          [](const State& state) { return make(std::get<0>(state), std::get<1>(state)); });
}

}  // namespace mha::ops
