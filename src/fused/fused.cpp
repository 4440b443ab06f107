#include "mha/fused.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "attention/checks.h"
#include "attention/parameter_names.h"
#include "fused/attend.h"
#include "fused/check_dtype.h"
#include "fused/projections.h"
#include "fused/state.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/shape_text.h"

namespace mha {

using torch::Tensor;

namespace {

/// The parts of one call's projections: which of query, key and value come from which tensor.
struct Source {
  Tensor tensor;
  int64_t first;
  int64_t count;
};

std::vector<Source> sources(const Tensor& query, const Tensor& key, const Tensor& value) {
  std::vector<Source> found;
  int64_t index = 0;
  for (const auto* tensor : {&query, &key, &value}) {
    if (!found.empty() && found.back().tensor.is_same(*tensor)) {
      ++found.back().count;
    } else {
      found.push_back({*tensor, index, 1});
    }
    ++index;
  }
  return found;
}

/// What one round of a call computes: some items of the batch, some heads.
struct Plan {
  int64_t batch;
  int64_t heads;
};

/// glibc returns blocks of more than 32 MiB to the system when they are freed, so that each call would fault all their
/// pages in again: rounds whose projections stay below that are faster, and need less memory.
Plan plan(const std::vector<Source>& sources, int64_t batch, int64_t num_heads, int64_t d_k,
          int64_t itemsize) {
  constexpr int64_t most = int64_t{30} << 20;
  int64_t head_bytes = 1;  // of one item, one head: the largest product
  for (const auto& source : sources) {
    head_bytes = std::max(head_bytes, source.tensor.size(1) * source.count * d_k * itemsize);
  }
  if (const auto items = most / (head_bytes * num_heads); items >= 1) {
    const int64_t rounds = (batch + items - 1) / items;
    return {(batch + rounds - 1) / rounds, num_heads};  // as equal as can be
  }
  // Some heads at a time, but no narrower products than these, which would be slower.
  constexpr int64_t least_columns = 512;
  int64_t heads = num_heads;
  for (int64_t divisor = num_heads; divisor >= 1; --divisor) {
    if (num_heads % divisor == 0 && divisor * d_k >= least_columns) {
      heads = divisor;
      if (head_bytes * divisor <= most) {
        break;
      }
    }
  }
  return {1, heads};
}

/// The lesson's eight tensors as copies in one dtype.
StateDict copied_weights(const StateDict& weights, int64_t num_heads,
                         std::optional<torch::ScalarType> dtype) {
  std::string problems;
  for (const auto expected_name : parameter_names) {
    const std::string name(expected_name);
    if (!weights.contains(name)) {
      problems += std::string(problems.empty() ? "" : ", ") + "missing " + quote(name);
    }
  }
  for (const auto& item : weights) {
    if (std::find(parameter_names.begin(), parameter_names.end(), item.key()) == parameter_names.end()) {
      problems += std::string(problems.empty() ? "" : ", ") + "unexpected " + quote(item.key());
    }
  }
  TORCH_CHECK_VALUE(problems.empty(), "weights: expected the lesson's eight names, found ", problems);
  const auto& first = weights["W_q.weight"];
  attention::check_defined("W_q.weight", first);
  TORCH_CHECK_VALUE(first.dim() == 2 && first.size(0) == first.size(1), "W_q.weight",
                    ": expected shape (d_model, d_model), found ", shape_text(first.sizes()));
  const int64_t d_model = first.size(0);
  attention::check_options(MultiHeadAttentionOptions(d_model, num_heads));
  const auto wanted = dtype.value_or(first.scalar_type());
  fused::check_dtype("W_q.weight", wanted);
  StateDict copies;
  for (const auto expected_name : parameter_names) {
    const std::string name(expected_name);
    const auto& tensor = weights[name];
    attention::check_defined(name.c_str(), tensor);
    fused::check_plain(name.c_str(), tensor.detach());
    const bool is_bias = name.ends_with("bias");
    const auto expected = is_bias ? std::vector<int64_t>{d_model} : std::vector<int64_t>{d_model, d_model};
    TORCH_CHECK_VALUE(tensor.sizes() == expected, name, ": expected shape ", shape_text(expected), ", found ",
                      shape_text(tensor.sizes()));
    TORCH_CHECK_VALUE(tensor.device() == first.device(), name, ": expected device ", first.device(),
                      " (that of ", "W_q.weight", "), found ", tensor.device());
    TORCH_CHECK_VALUE(
        dtype ? tensor.is_floating_point() : tensor.scalar_type() == wanted, name, ": expected ",
        dtype ? "a floating point dtype" : "dtype " + dtype_text(wanted) + " (that of W_q.weight)",
        ", found ", dtype_text(tensor.scalar_type()));
    copies.insert(name, tensor.detach().to(wanted, /*non_blocking=*/false, /*copy=*/true).contiguous());
  }
  return copies;
}

const MultiHeadAttentionImpl& held(const MultiHeadAttention& module) {
  TORCH_CHECK_VALUE(!module.is_empty(), "module: expected a module, found an empty holder");
  return *module;
}

}  // namespace

FusedMultiHeadAttention::FusedMultiHeadAttention(const MultiHeadAttention& module)
    : FusedMultiHeadAttention(mha::state_dict(held(module)), held(module).num_heads) {}

FusedMultiHeadAttention::FusedMultiHeadAttention(const StateDict& weights, int64_t num_heads,
                                                 std::optional<torch::ScalarType> dtype) {
  const fused::PlainDispatch plain;
  state_ = std::make_shared<const State>(copied_weights(weights, num_heads, dtype), num_heads);
}

Tensor FusedMultiHeadAttention::operator()(const Tensor& x, const Masking& masking) const {
  return (*this)(x, x, x, masking);
}

Tensor FusedMultiHeadAttention::operator()(const Tensor& query, const Tensor& memory,
                                           const Masking& masking) const {
  return (*this)(query, memory, memory, masking);
}

Tensor FusedMultiHeadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const Masking& masking) const {
  state_->check(query, key, value, masking.mask);
  const fused::PlainDispatch plain;
  const auto blocking = state_->blocking(query, key, masking);
  if (query.is_same(key) && query.is_same(value) &&
      state_->projections.are_few(query.size(0) * query.size(1))) {
    return state_->attend_few(query, blocking);
  }
  const auto parts = sources(query, key, value);
  const int64_t d_k = state_->d_k();
  const auto rounds =
      plan(parts, query.size(0), state_->num_heads, d_k, static_cast<int64_t>(query.itemsize()));
  const auto context = at::empty({query.size(0), query.size(1), state_->num_heads, d_k}, query.options());
  for (int64_t item = 0; item < query.size(0); item += rounds.batch) {
    const int64_t items = std::min(rounds.batch, query.size(0) - item);
    for (int64_t head = 0; head < state_->num_heads; head += rounds.heads) {
      std::array<Tensor, 3> projected;  // query, key, value: (items, length, heads, d_k)
      for (const auto& source : parts) {
        const auto product = state_->projections(source.tensor.narrow(0, item, items),
                                                 {source.first, source.count, head, rounds.heads});
        for (int64_t i = 0; i < source.count; ++i) {
          projected.at(static_cast<size_t>(source.first + i)) = product.select(2, i);
        }
      }
      fused::attend(projected[0], projected[1], projected[2], blocking.part(item, items, head, rounds.heads),
                    context.narrow(0, item, items).narrow(2, head, rounds.heads));
    }
  }
  return state_->project_output(context);
}

Tensor FusedMultiHeadAttention::attention_weights(const Tensor& query, const Tensor& key,
                                                  const Masking& masking) const {
  state_->check(query, key, key, masking.mask);
  const fused::PlainDispatch plain;
  const auto project = [&](const Tensor& x, int64_t part) {
    return state_->projections(x, {part, 1, 0, state_->num_heads}).select(2, 0);
  };
  return fused::attention_weights(project(query, 0), project(key, 1), state_->blocking(query, key, masking));
}

std::string FusedMultiHeadAttention::describe(const Tensor& query, const Tensor& key, const Tensor& value,
                                              const Masking& masking) const {
  state_->check(query, key, value, masking.mask);
  static constexpr std::array<const char*, 3> roles = {"query", "key", "value"};
  std::string products;
  std::string how;
  for (const auto& source : sources(query, key, value)) {
    const auto method = state_->projections.describe(source.tensor.size(0) * source.tensor.size(1));
    if (!how.empty()) {
      products += method == how ? ", " : " projected by " + how + ", ";
    }
    for (int64_t i = 0; i < source.count; ++i) {
      products += std::string(i == 0 ? "" : " + ") + roles[static_cast<size_t>(source.first + i)];
    }
    how = method;
  }
  return dtype_text(dtype()) + " on " + device().str() + ": " + products + " projected by " + how + "; " +
         fused::describe_attend(dtype(), device(), masking.mask.defined(), masking.causal, query.size(1),
                                key.size(1));
}

StateDict FusedMultiHeadAttention::state_dict() const {
  const fused::PlainDispatch plain;
  const auto weight = at::cat({state_->projections.weight(), state_->output.weight()});
  const auto bias = at::cat({state_->projections.bias(), state_->output.bias()});
  StateDict weights;
  for (size_t i = 0; i < parameter_names.size(); ++i) {
    const auto& stacked = i % 2 == 0 ? weight : bias;
    const auto layer = static_cast<int64_t>(i / 2);
    weights.insert(std::string(parameter_names.at(i)),
                   stacked.narrow(0, layer * d_model(), d_model()).clone());
  }
  return weights;
}

int64_t FusedMultiHeadAttention::d_model() const {
  return state_->d_model;
}
int64_t FusedMultiHeadAttention::num_heads() const {
  return state_->num_heads;
}
torch::ScalarType FusedMultiHeadAttention::dtype() const {
  return state_->dtype();
}
torch::Device FusedMultiHeadAttention::device() const {
  return state_->device();
}

Tensor fused_scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                          const Masking& masking) {
  const std::pair<const char*, const Tensor&> tensors[] = {{"query", query}, {"key", key}, {"value", value}};
  for (const auto& [name, tensor] : tensors) {
    fused::check_plain(name, tensor);
    fused::check_dtype(name, tensor.scalar_type());
    TORCH_CHECK_VALUE(!tensor.is_meta(), name, ": expected values, found a tensor of the meta device");
    TORCH_CHECK_VALUE(tensor.dim() == 4, name,
                      ": expected 4 dimensions (batch, num_heads, length, d_k), found shape ",
                      shape_text(tensor.sizes()));
    TORCH_CHECK_VALUE(
        tensor.sizes().slice(0, 2) == query.sizes().slice(0, 2) && tensor.size(3) == query.size(3), name,
        ": expected batch, num_heads and d_k of query, ", shape_text(query.sizes()), ", found shape ",
        shape_text(tensor.sizes()));
  }
  if (masking.mask.defined()) {
    fused::check_plain("mask", masking.mask);
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    attention::check_scaled_dot_product(query, key, value, masking.mask);
  }
  const fused::PlainDispatch plain;
  const auto rows = [](const Tensor& heads) {
    return (heads.stride(3) == 1 ? heads : heads.contiguous()).transpose(1, 2);  // (B, length, H, d_k)
  };
  const auto blocking = fused::make_blocking(masking.mask, masking.causal,
                                             {query.size(0), query.size(1), query.size(2), key.size(2)});
  auto output = at::empty(query.sizes(), query.options().memory_format(torch::MemoryFormat::Contiguous));
  fused::attend(rows(query), rows(key), rows(value), blocking, output.transpose(1, 2));
  return output;
}

}  // namespace mha
