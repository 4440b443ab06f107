// The classes that Python sees, and what their methods share.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "mha/fused.h"
#include "mha/state_dict.h"

namespace mha::ops {

using torch::arg;
using torch::Tensor;
using Mask = std::optional<Tensor>;
using Weights = c10::Dict<std::string, Tensor>;

/// torch.classes.mha.FusedMultiHeadAttention.
struct Fused : torch::CustomClassHolder {
  FusedMultiHeadAttention attention;

  explicit Fused(FusedMultiHeadAttention attention) : attention(std::move(attention)) {}
};

/// torch.classes.mha.ProjectedMemory.
struct Memory : torch::CustomClassHolder {
  ProjectedMemory memory;
  c10::intrusive_ptr<Fused> fused;  ///< for pickles

  Memory(ProjectedMemory memory, c10::intrusive_ptr<Fused> fused)
      : memory(std::move(memory)), fused(std::move(fused)) {}
};

using FusedPtr = c10::intrusive_ptr<Fused>;
using MemoryPtr = c10::intrusive_ptr<Memory>;

/// In TORCH_LIBRARY(mha), in this order: schemas name classes that are there.
void register_lesson(torch::Library& library);
void register_fused(torch::Library& library);
void register_cache(torch::Library& library);
void register_functional(torch::Library& library);

StateDict to_state_dict(const Weights& weights);
Weights to_dict(const StateDict& weights);

/// The block under `prefix` of a file by the lesson's names, and its number of heads: as given, or as the config.json
/// beside the file tells. An empty layout is the lesson's.
struct FileWeights {
  StateDict tensors;
  int64_t num_heads;
};
FileWeights read_block(const std::string& path, std::optional<int64_t> num_heads, const std::string& prefix,
                       const std::string& layout);

inline Masking masking(const Mask& mask, bool causal) {
  Masking result(mask.value_or(Tensor()));
  if (causal) {
    result.causal = CausalAlignment::top_left;
  }
  return result;
}

/// What `call` returns. LibTorch translates the errors of methods, but takes those of constructors and of static
/// methods for any C++ exception, whose text is then the whole backtrace: these become what Python's bindings call
/// ValueError and RuntimeError.
template <typename Call>
auto translated(const Call& call) {
  try {
    return call();
  } catch (const c10::ValueError& error) {
    throw std::invalid_argument(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

/// Defines an operator with a kernel for tensors of any device and one for shapes.
template <typename Function>
void define(torch::Library& library, const std::string& schema, Function* kernel, Function* shape) {
  const auto name = schema.substr(0, schema.find('('));
  library.def(schema.c_str());
  library.impl(name.c_str(), c10::DispatchKey::CompositeExplicitAutograd, kernel);
  library.impl(name.c_str(), c10::DispatchKey::Meta, shape);
}

/// An operator of this library: methods call through the dispatcher, so that tracers see them.
template <typename Function>
c10::TypedOperatorHandle<Function> operation(const char* name, Function* /*kernel*/) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

/// Methods of all classes that can be traced: torch.compile and torch.export call the real object, whose operators have
/// kernels for shapes, and compare objects, each of which equals itself alone.
template <typename Holder>
void define_tracing(torch::class_<Holder>& holder) {
  using Pointer = c10::intrusive_ptr<Holder>;
  const auto same = [](const Pointer& self, const c10::IValue& other) {
    return other.isObject() && *other.type() == *c10::getCustomClassType<Pointer>() &&
           other.toCustomClass<Holder>() == self;
  };
  holder.def("tracing_mode", [](const Pointer& /*self*/) { return std::string("real"); })
      .def("__eq__", same)
      .def("__ne__", [same](const Pointer& self, const c10::IValue& other) { return !same(self, other); })
      .def("__hash__", [](const Pointer& self) {
        return static_cast<int64_t>(std::hash<const Holder*>()(self.get()) >> 1U);
      });
}

}  // namespace mha::ops
