/// The values of tensors as files hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mha {

/// What makes `tensor` no dense tensor with values; empty: nothing.
std::string not_dense(const at::Tensor& tensor);

/// The values of `tensor`, row-major, on the CPU.
at::Tensor row_major(const at::Tensor& tensor);

}  // namespace mha
