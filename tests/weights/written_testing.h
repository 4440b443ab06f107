/// Tensors to write, and their bits to compare.
#pragma once

#include <ATen/Functions.h>

#include <string>
#include <utility>
#include <vector>

#include "mha/state_dict.h"

namespace mha::testing {

/// Every dtype of a tensor that a file can hold; complex128 and complex32 only files of PyTorch.
inline const std::vector<c10::ScalarType> kDtypes{
    at::kDouble,        at::kFloat,         at::kHalf,        at::kBFloat16,        at::kLong,
    at::kInt,           at::kShort,         at::kChar,        at::kUInt64,          at::kUInt32,
    at::kUInt16,        at::kByte,          at::kBool,        at::kComplexFloat,    at::kComplexDouble,
    at::kComplexHalf,   at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz,
    at::kFloat8_e8m0fnu};

/// The bits of a tensor, row-major.
inline std::string bits(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.resolve_conj().resolve_neg().contiguous();
  return plain.numel() == 0 ? ""
                            : std::string(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
}

inline StateDict dict(const std::vector<std::pair<std::string, at::Tensor>>& items) {
  StateDict result;
  for (const auto& [name, tensor] : items) {
    result.insert(name, tensor);
  }
  return result;
}

inline at::Tensor random_bytes(int64_t count) {
  return at::randint(0, 256, {count}, at::kByte);
}

/// Random bits of every dtype, whole and in views of every kind.
inline StateDict tensors_of_all_kinds() {
  StateDict tensors;
  for (const auto dtype : kDtypes) {
    const auto size = static_cast<int64_t>(c10::elementSize(dtype));
    const at::Tensor base =
        (dtype == at::kBool ? at::randint(0, 2, {60}, at::kByte) : random_bytes(60 * size))
            .view(dtype)
            .view({3, 4, 5});
    const std::string name = c10::toString(dtype);
    tensors.insert(name + ".plain", base);
    tensors.insert(name + ".transposed", base.transpose(0, 2));
    tensors.insert(name + ".sliced", base.slice(2, 1, 5, 2));
    tensors.insert(name + ".expanded", base.select(0, 1).expand({2, 4, 5}));
    tensors.insert(name + ".scalar", base.select(0, 0).select(0, 0).select(0, 0));
    tensors.insert(name + ".one", base.slice(0, 0, 1).slice(1, 0, 1).slice(2, 2, 3));
    tensors.insert(name + ".empty", base.slice(1, 4));
  }
  return tensors;
}

}  // namespace mha::testing
