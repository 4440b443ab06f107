#include "parity/inputs.h"

#include <c10/util/safe_numerics.h>

#include "mha/error.h"
#include "support/quote.h"

namespace mha::parity {
namespace {

using torch::Tensor;

[[noreturn]] void fail(const ReferenceCase& reference, const std::string& name, const std::string& problem) {
  throw Error(show(reference.path) + ": metadata " + quote("strides/inputs/" + name) + ": " + problem);
}

/// `tensor` in fresh memory with the given element strides; 0 repeats one element along that dimension.
Tensor with_strides(const ReferenceCase& reference, const std::string& name, const Tensor& tensor,
                    const std::vector<int64_t>& strides, torch::Device device) {
  auto stored = tensor;
  auto stored_sizes = tensor.sizes().vec();
  uint64_t last_element = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    const auto axis = static_cast<size_t>(i);
    if (strides[axis] == 0 && stored_sizes[axis] > 1) {
      stored = stored.narrow(i, 0, 1);
      stored_sizes[axis] = 1;
    }
    uint64_t reach = 0;
    if (c10::mul_overflows(static_cast<uint64_t>(strides[axis]),
                           static_cast<uint64_t>(std::max<int64_t>(stored_sizes[axis], 1) - 1), &reach) ||
        c10::add_overflows(last_element, reach, &last_element) || last_element > (uint64_t{1} << 40)) {
      fail(reference, name, "expected strides within memory, found strides beyond it");
    }
  }
  auto fresh = torch::empty_strided(stored_sizes, strides, tensor.options().device(device));
  fresh.copy_(stored);
  auto rebuilt = fresh.expand(tensor.sizes());
  // Strides that make elements share memory, or repeat elements that differ, would silently be another input.
  if (compare(name, rebuilt, tensor).mismatched != 0) {
    fail(reference, name, "expected strides that keep elements apart, found strides that make them overlap");
  }
  return rebuilt;
}

}  // namespace

CaseInputs rebuild_inputs(const ReferenceCase& reference, torch::Device device) {
  const auto rebuild = [&](const std::string& name) -> Tensor {
    const auto* tensor = reference.tensors.find("inputs/" + name);
    if (tensor == nullptr) {
      return {};
    }
    const auto strides = reference.strides.find(name);
    auto input = strides == reference.strides.end()
                     ? tensor->to(device, tensor->scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                     : with_strides(reference, name, *tensor, strides->second, device);
    if (reference.tensors.contains("grads/" + name)) {
      input.requires_grad_();
    }
    return input;
  };
  CaseInputs inputs;
  inputs.query = rebuild("query");
  inputs.key = rebuild("key");
  inputs.value = rebuild("value");
  inputs.mask = rebuild("mask");
  inputs.key = inputs.key.defined() ? inputs.key : inputs.query;
  inputs.value = inputs.value.defined() ? inputs.value : inputs.key;
  return inputs;
}

}  // namespace mha::parity
