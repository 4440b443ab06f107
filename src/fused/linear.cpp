#include "fused/linear.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <bit>
#include <utility>

namespace mha::fused {
namespace {

using torch::Tensor;

// LibTorch has oneDNN's products with packed weights, but no C++ function for them: only the operators that its
// compiler calls. The same in 2.13 and 2.14.
using Multiply = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                        c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

std::optional<c10::OperatorHandle> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchema({name, ""});
}

const std::optional<c10::OperatorHandle>& pack_operator() {
  static const auto found = find_operator("mkldnn::_reorder_linear_weight");
  return found;
}

const std::optional<c10::OperatorHandle>& multiply_operator() {
  static const auto found = find_operator("mkldnn::_linear_pointwise");
  return found;
}

bool has_bfloat16_products() {
  const auto supported = find_operator("mkldnn::_is_mkldnn_bf16_supported");
  return supported && supported->typed<bool()>().call();
}

/// The next number with five significant bits. oneDNN keeps something of a megabyte for each number of rows that it has
/// met, for good: where lengths vary there must be few.
int64_t padded_rows(int64_t rows) {
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)) / 16);
  return step <= 1 ? rows : (rows + step - 1) / step * step;
}

}  // namespace

bool has_packed_products(torch::ScalarType dtype, torch::Device device) {
  if (!device.is_cpu() || !at::globalContext().userEnabledMkldnn() || !at::hasMKLDNN() || !pack_operator() ||
      !multiply_operator()) {
    return false;
  }
  static const bool bfloat16 = has_bfloat16_products();
  return dtype == torch::kFloat || (dtype == torch::kBFloat16 && bfloat16);
}

Linear::Linear(Tensor weight, Tensor bias)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      packed_(weight_.numel() != 0 && has_packed_products(weight_.scalar_type(), weight_.device())) {
  if (packed_) {
    torch::jit::Stack stack{weight_, c10::IValue()};  // no hint of the number of rows: it makes no difference
    pack_operator()->callBoxed(stack);
    weight_ = std::move(stack.back()).toTensor();
  }
}

Tensor Linear::operator()(const Tensor& x) const {
  if (!packed_) {
    return at::linear(x, weight_, bias_);
  }
  auto sizes = x.sizes().vec();
  sizes.back() = bias_.numel();
  if (x.numel() == 0) {
    return x.new_empty(sizes);
  }
  const auto rows = x.reshape({-1, x.size(-1)});
  const int64_t padded = padded_rows(rows.size(0));
  if (padded == rows.size(0)) {
    return multiply(rows).view(sizes);
  }
  const auto input = at::empty({padded, rows.size(1)}, rows.options());
  input.narrow(0, 0, rows.size(0)).copy_(rows);
  input.narrow(0, rows.size(0), padded - rows.size(0)).zero_();
  return multiply(input).narrow(0, 0, rows.size(0)).view(sizes);
}

Tensor Linear::multiply(const Tensor& rows) const {
  return multiply_operator()->typed<Multiply>().call(rows, weight_, bias_, "none",
                                                     c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace mha::fused
