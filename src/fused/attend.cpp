#include "fused/attend.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "attention/causal_shift.h"
#include "fused/parallel.h"

namespace mha::fused {
namespace {

using attention::causal_shift;
using torch::Tensor;

Strides strides_of(const Tensor& heads) {
  return {heads.stride(0), heads.stride(2), heads.stride(1)};
}

void attend_core(const Tensor& query, const Tensor& key, const Tensor& value, const Blocking& blocking,
                 const Tensor& output) {
  CoreArguments arguments;
  arguments.element = element_of(query.scalar_type());
  arguments.batch = query.size(0);
  arguments.num_heads = query.size(2);
  arguments.query_len = query.size(1);
  arguments.key_len = key.size(1);
  arguments.d_k = query.size(3);
  arguments.query = query.const_data_ptr();
  arguments.key = key.const_data_ptr();
  arguments.value = value.const_data_ptr();
  arguments.output = output.mutable_data_ptr();
  arguments.query_strides = strides_of(query);
  arguments.key_strides = strides_of(key);
  arguments.value_strides = strides_of(value);
  arguments.output_strides = strides_of(output);
  set_blocking(arguments, blocking);
  attend(arguments);
}

/// true where query rows [first, first + rows) keep a key by the causal rule: (rows, S).
Tensor causal_rows(int64_t first, int64_t rows, int64_t key_len, int64_t shift, torch::Device device) {
  const auto integers = torch::TensorOptions(torch::kLong).device(device);
  return at::arange(key_len, integers).unsqueeze(0) <=
         at::arange(first, first + rows, integers).unsqueeze(1) + shift;
}

/// The lesson's steps up to the weights, for query rows [first, first + rows).
Tensor weights_of_rows(const Tensor& query, const Tensor& key, const Blocking& blocking, int64_t first,
                       int64_t rows) {
  const int64_t query_len = query.size(2);
  const int64_t key_len = key.size(2);
  auto scores = at::matmul(query.narrow(2, first, rows), key.transpose(-2, -1)) /
                std::sqrt(static_cast<double>(query.size(3)));  // (B, H, rows, S)
  // -1e9 is no float16: there only the causal rule blocks, with that dtype's lowest value.
  const double fill = scores.scalar_type() == torch::kHalf ? -65504.0 : -1e9;
  if (blocking.keep.defined()) {
    scores.masked_fill_(blocking.keep.narrow(2, first, rows) == 0, fill);
  }
  if (blocking.causal) {
    const auto shift = causal_shift(*blocking.causal, query_len, key_len);
    scores.masked_fill_(causal_rows(first, rows, key_len, shift, query.device()).logical_not_(), fill);
  }
  return at::softmax(scores, /*dim=*/-1);
}

/// ATen's own kernel masks with -inf, which is the lesson's function only where no row can be without a key; on the CPU
/// it also loses NaN.
bool sdpa_computes_the_same(torch::Device device, bool masked, std::optional<CausalAlignment> causal,
                            int64_t query_len, int64_t key_len) {
  return !device.is_cpu() && !masked && (!causal || causal_shift(*causal, query_len, key_len) == 0);
}

void attend_aten(const Tensor& query, const Tensor& key, const Tensor& value, const Blocking& blocking,
                 const Tensor& output) {
  const auto Q = query.transpose(1, 2);         // (B, H, L, d_k)
  const auto K = key.transpose(1, 2);           // (B, H, S, d_k)
  const auto V = value.transpose(1, 2);         // (B, H, S, d_k)
  const auto context = output.transpose(1, 2);  // (B, H, L, d_k)
  const int64_t query_len = Q.size(2);
  const int64_t key_len = K.size(2);
  if (sdpa_computes_the_same(query.device(), blocking.keep.defined(), blocking.causal, query_len, key_len)) {
    context.copy_(at::scaled_dot_product_attention(Q, K, V, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                   /*is_causal=*/blocking.causal.has_value()));
    return;
  }
  // As many rows at a time as keep the scores within 16 MiB.
  const int64_t row_bytes =
      std::max<int64_t>(1, Q.size(0) * Q.size(1) * key_len * static_cast<int64_t>(Q.itemsize()));
  const int64_t most = std::max<int64_t>(1, (int64_t{16} << 20) / row_bytes);
  for (int64_t first = 0; first < query_len; first += most) {
    const int64_t rows = std::min(most, query_len - first);
    context.narrow(2, first, rows).copy_(at::matmul(weights_of_rows(Q, K, blocking, first, rows), V));
  }
}

/// The mask without the dimensions along which it only repeats.
Tensor without_repetition(Tensor mask) {
  for (int64_t dimension = 0; dimension < mask.dim(); ++dimension) {
    if (mask.size(dimension) > 1 && mask.stride(dimension) == 0) {
      mask = mask.narrow(dimension, 0, 1);
    }
  }
  return mask;
}

}  // namespace

Blocking make_blocking(const Tensor& mask, std::optional<CausalAlignment> causal, c10::IntArrayRef sizes) {
  if (!mask.defined()) {
    return {Tensor(), causal};
  }
  auto keep = without_repetition(mask);
  if (keep.scalar_type() != torch::kBool && keep.scalar_type() != torch::kByte) {
    keep = keep != 0;
  }
  if (keep.dim() > 0 && keep.size(-1) > 1 && keep.stride(-1) != 1) {
    keep = keep.contiguous();
  }
  return {keep.expand(sizes), causal};
}

Blocking Blocking::part(int64_t item, int64_t items, int64_t head, int64_t heads) const {
  return {keep.defined() ? keep.narrow(0, item, items).narrow(1, head, heads) : keep, causal};
}

Element element_of(torch::ScalarType dtype) {
  return dtype == torch::kFloat ? Element::float32 : Element::bfloat16;
}

void set_blocking(CoreArguments& arguments, const Blocking& blocking) {
  if (blocking.keep.defined()) {
    const auto& keep = blocking.keep;
    arguments.mask = {static_cast<const uint8_t*>(keep.const_data_ptr()), keep.stride(0), keep.stride(1),
                      keep.stride(2), keep.stride(3)};
  }
  if (blocking.causal) {
    arguments.causal = true;
    arguments.causal_shift = causal_shift(*blocking.causal, arguments.query_len, arguments.key_len);
  }
}

bool has_core(torch::ScalarType dtype, torch::Device device) {
  return device.is_cpu() && (dtype == torch::kFloat || dtype == torch::kBFloat16);
}

void attend(const Tensor& query, const Tensor& key, const Tensor& value, const Blocking& blocking,
            const Tensor& output) {
  if (output.numel() == 0) {
    return;
  }
  if (key.size(1) == 0) {
    output.zero_();  // the sum over nothing
  } else if (has_core(query.scalar_type(), query.device())) {
    attend_core(query, key, value, blocking, output);
  } else {
    attend_aten(query, key, value, blocking, output);
  }
}

std::string describe_attend(torch::ScalarType dtype, torch::Device device, bool masked,
                            std::optional<CausalAlignment> causal, int64_t query_len, int64_t key_len) {
  if (has_core(dtype, device)) {
    return "attention by own kernels, " + core_target(element_of(dtype));
  }
  if (sdpa_computes_the_same(device, masked, causal, query_len, key_len)) {
    return "attention by ATen's scaled_dot_product_attention";
  }
  return "attention by the lesson's steps, some query rows at a time";
}

Tensor attention_weights(const Tensor& query, const Tensor& key, const Blocking& blocking) {
  return weights_of_rows(query.transpose(1, 2), key.transpose(1, 2), blocking, 0, query.size(1));
}

}  // namespace mha::fused
