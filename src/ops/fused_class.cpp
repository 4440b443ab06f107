// torch.classes.mha.FusedMultiHeadAttention and ProjectedMemory.
#include <tuple>
#include <utility>

#include "ops/classes.h"
#include "ops/shapes.h"

namespace mha::ops {
namespace {

using State = std::tuple<Weights, int64_t>;
using MemoryState = std::tuple<FusedPtr, Tensor, Tensor, Mask>;

FusedPtr make(const Weights& weights, int64_t num_heads, std::optional<torch::ScalarType> dtype) {
  return translated([&] {
    return c10::make_intrusive<Fused>(FusedMultiHeadAttention(to_state_dict(weights), num_heads, dtype));
  });
}

FusedPtr load(const std::string& path, std::optional<int64_t> num_heads, const std::string& prefix,
              const std::string& layout, std::optional<torch::ScalarType> dtype) {
  return translated([&] {
    const auto block = read_block(path, num_heads, prefix, layout);
    return c10::make_intrusive<Fused>(FusedMultiHeadAttention(block.tensors, block.num_heads, dtype));
  });
}

// Kernels of the operators.

Tensor attend_kernel(const FusedPtr& self, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Mask& mask, bool causal) {
  return self->attention(query, key, value, masking(mask, causal));
}

Tensor weights_kernel(const FusedPtr& self, const Tensor& query, const Tensor& key, const Mask& mask,
                      bool causal) {
  return self->attention.attention_weights(query, key, masking(mask, causal));
}

Expected expected(const Fused& self) {
  return {self.attention.d_model(), self.attention.num_heads(), self.attention.dtype()};
}

Tensor attend_shape(const FusedPtr& self, const Tensor& query, const Tensor& key, const Tensor& value,
                    const Mask& mask, bool /*causal*/) {
  check_call(expected(*self), query, key, value, mask);
  return at::empty_symint(query.sym_sizes(), query.options());
}

Tensor weights_shape(const FusedPtr& self, const Tensor& query, const Tensor& key, const Mask& mask,
                     bool /*causal*/) {
  check_call(expected(*self), query, key, key, mask);
  return at::empty_symint(
      {query.sym_size(0), self->attention.num_heads(), query.sym_size(1), key.sym_size(1)}, query.options());
}

Tensor attend_memory_kernel(const MemoryPtr& self, const Tensor& query) {
  return self->memory.attend(query);
}

Tensor attend_memory_shape(const MemoryPtr& self, const Tensor& query) {
  check_input(expected(*self->fused), "query", query, self->memory.batch(), "that of memory");
  return at::empty_symint(query.sym_sizes(), query.options());
}

// Methods.

Tensor attend(const FusedPtr& self, const Tensor& query, const Tensor& key, const Tensor& value,
              const Mask& mask, bool causal) {
  static const auto op = operation("mha::attend", &attend_kernel);
  return op.call(self, query, key, value, mask, causal);
}

Tensor forward(const FusedPtr& self, const Tensor& x, const Mask& mask, bool causal) {
  return attend(self, x, x, x, mask, causal);
}

Tensor cross(const FusedPtr& self, const Tensor& query, const Tensor& memory, const Mask& mask, bool causal) {
  return attend(self, query, memory, memory, mask, causal);
}

Tensor attention_weights(const FusedPtr& self, const Tensor& query, const Tensor& key, const Mask& mask,
                         bool causal) {
  static const auto op = operation("mha::attention_weights", &weights_kernel);
  return op.call(self, query, key, mask, causal);
}

Weights weights_of(const FusedPtr& self) {
  return to_dict(self->attention.state_dict());
}

MemoryPtr project_memory(const FusedPtr& self, const Tensor& memory, const Mask& mask) {
  check_not_traced("project_memory");
  return c10::make_intrusive<Memory>(self->attention.project_memory(memory, mask.value_or(Tensor())), self);
}

Tensor attend_memory(const MemoryPtr& self, const Tensor& query) {
  static const auto op = operation("mha::attend_memory", &attend_memory_kernel);
  return op.call(self, query);
}

void attend_memory_into(const MemoryPtr& self, const Tensor& query, const Tensor& output) {
  check_not_traced("attend_into");
  self->memory.attend_into(query, output);
}

Mask memory_mask(const MemoryPtr& self) {
  const auto mask = self->memory.mask();
  return mask.defined() ? Mask(mask) : std::nullopt;
}

MemoryPtr restore_memory(const MemoryState& state) {
  return translated([&] {
    const auto& [fused, keys, values, mask] = state;
    return c10::make_intrusive<Memory>(fused->attention.restore_memory(keys, values, mask.value_or(Tensor())),
                                       fused);
  });
}

std::string describe(const FusedPtr& self, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Mask& mask, bool causal) {
  return self->attention.describe(query, key, value, masking(mask, causal));
}

}  // namespace

void register_fused(torch::Library& library) {
  const auto no_mask = arg("mask") = c10::IValue();
  const auto not_causal = arg("causal") = false;
  auto memory = library.class_<Memory>("ProjectedMemory");
  auto fused =
      library.class_<Fused>("FusedMultiHeadAttention");  // both, before methods of one name the other
  define_tracing(memory);
  memory.def("keys", [](const MemoryPtr& self) { return self->memory.keys(); })
      .def("values", [](const MemoryPtr& self) { return self->memory.values(); })
      .def("mask", &memory_mask)
      .def("attend", &attend_memory, "", {arg("query")})
      .def("attend_into", &attend_memory_into, "", {arg("query"), arg("output")})
      .def_pickle(
          [](const MemoryPtr& self) {
            return MemoryState(self->fused, self->memory.keys(), self->memory.values(), memory_mask(self));
          },
          [](const MemoryState& state) { return restore_memory(state); });
  define_tracing(fused);
  fused.def(torch::init(&make), "", {arg("weights"), arg("num_heads"), arg("dtype") = c10::IValue()})
      .def_static("load", &load, "",
                  {arg("path"), arg("num_heads") = c10::IValue(), arg("prefix") = "", arg("layout") = "",
                   arg("dtype") = c10::IValue()})
      .def("forward", &forward, "", {arg("x"), no_mask, not_causal})
      .def("cross", &cross, "", {arg("query"), arg("memory"), no_mask, not_causal})
      .def("attend", &attend, "", {arg("query"), arg("key"), arg("value"), no_mask, not_causal})
      .def("attention_weights", &attention_weights, "", {arg("query"), arg("key"), no_mask, not_causal})
      .def("project_memory", &project_memory, "", {arg("memory"), no_mask})
      .def("describe", &describe, "", {arg("query"), arg("key"), arg("value"), no_mask, not_causal})
      .def("d_model", [](const FusedPtr& self) { return self->attention.d_model(); })
      .def("num_heads", [](const FusedPtr& self) { return self->attention.num_heads(); })
      .def("state_dict", &weights_of)
      .def_pickle(
          [](const FusedPtr& self) { return State(weights_of(self), self->attention.num_heads()); },
          [](const State& state) { return make(std::get<0>(state), std::get<1>(state), std::nullopt); });

  define(library,
         "attend(__torch__.torch.classes.mha.FusedMultiHeadAttention attention, Tensor query, Tensor key, "
         "Tensor value, Tensor? mask=None, bool causal=False) -> Tensor",
         &attend_kernel, &attend_shape);
  define(library,
         "attention_weights(__torch__.torch.classes.mha.FusedMultiHeadAttention attention, Tensor query, "
         "Tensor key, Tensor? mask=None, bool causal=False) -> Tensor",
         &weights_kernel, &weights_shape);
  define(library, "attend_memory(__torch__.torch.classes.mha.ProjectedMemory memory, Tensor query) -> Tensor",
         &attend_memory_kernel, &attend_memory_shape);
}

}  // namespace mha::ops
