// Cross-attention to a memory that is projected once.
#include <utility>

#include "attention/checks.h"
#include "fused/attend.h"
#include "fused/parallel.h"
#include "fused/state.h"
#include "mha/fused.h"
#include "support/shape_text.h"

namespace mha {

using torch::Tensor;

struct ProjectedMemory::State {
  std::shared_ptr<const FusedMultiHeadAttention::State> engine;
  Tensor keys;    // (B, H, S, d_k)
  Tensor values;  // (B, H, S, d_k)
  Tensor mask;
  fused::Blocking blocking;  // (B, H, 1, S)

  void check(const Tensor& query) const;
  /// Attention to it; into `output` where that is defined.
  Tensor attend(const Tensor& query, Tensor output) const;

 private:
  void attend_few(const Tensor& query, const Tensor& output) const;
};

ProjectedMemory::ProjectedMemory(std::shared_ptr<const State> state) : state_(std::move(state)) {}

int64_t ProjectedMemory::batch() const {
  return state_->keys.size(0);
}
Tensor ProjectedMemory::keys() const {
  return state_->keys.clone();
}
Tensor ProjectedMemory::values() const {
  return state_->values.clone();
}
Tensor ProjectedMemory::mask() const {
  return state_->mask.defined() ? state_->mask.clone() : state_->mask;
}

ProjectedMemory FusedMultiHeadAttention::project_memory(const Tensor& memory, const Tensor& mask) const {
  state_->check_input("memory", memory);
  check_memory_mask(mask, memory.size(0), memory.size(1));
  const fused::PlainDispatch plain;
  const auto projected = state_->projections(memory, {1, 2, 0, num_heads()});  // (B, S, 2, H, d_k)
  const auto heads = [&](int64_t index) {
    return projected.select(2, index).transpose(1, 2).clone(
        torch::MemoryFormat::Contiguous);  // (B, H, S, d_k)
  };
  return make_memory(heads(0), heads(1), mask);
}

ProjectedMemory FusedMultiHeadAttention::restore_memory(const Tensor& keys, const Tensor& values,
                                                        const Tensor& mask) const {
  state_->check_stored(keys, values, /*dimensions=*/4);
  TORCH_CHECK_VALUE(keys.size(0) > 0, "keys: expected a batch of at least 1, found shape ",
                    shape_text(keys.sizes()));
  check_memory_mask(mask, keys.size(0), keys.size(2));
  const fused::PlainDispatch plain;
  return make_memory(keys.clone(torch::MemoryFormat::Contiguous),
                     values.clone(torch::MemoryFormat::Contiguous), mask);
}

void FusedMultiHeadAttention::check_memory_mask(const Tensor& mask, int64_t batch, int64_t key_len) const {
  if (mask.defined()) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    fused::check_plain("mask", mask);
    const int64_t sizes[] = {batch, num_heads(), 1, key_len};
    attention::check_mask(mask, sizes, "(batch, num_heads, 1, key_len)", state_->output.bias());
  }
}

ProjectedMemory FusedMultiHeadAttention::make_memory(const Tensor& keys, const Tensor& values,
                                                     const Tensor& mask) const {
  auto state = std::make_shared<ProjectedMemory::State>();
  state->engine = state_;
  state->keys = keys;
  state->values = values;
  state->mask = mask.defined() ? mask.clone() : mask;  // the caller may change its own
  state->blocking =
      fused::make_blocking(state->mask, /*causal=*/{}, {keys.size(0), num_heads(), 1, keys.size(2)});
  return ProjectedMemory(std::move(state));
}

Tensor ProjectedMemory::attend(const Tensor& query) const {
  state_->check(query);
  const fused::PlainDispatch plain;
  return state_->attend(query, Tensor());
}

void ProjectedMemory::attend_into(const Tensor& query, const Tensor& output) const {
  state_->check(query);
  state_->engine->check_output(output, query.sizes());
  const fused::PlainDispatch plain;
  state_->attend(query, output);
  FusedMultiHeadAttention::State::mark_changed(output);
}

void ProjectedMemory::State::check(const Tensor& query) const {
  engine->check_input("query", query);
  TORCH_CHECK_VALUE(query.size(0) == keys.size(0), "query: expected batch ", keys.size(0),
                    " (that of memory), found shape ", shape_text(query.sizes()));
}

Tensor ProjectedMemory::State::attend(const Tensor& query, Tensor output) const {
  const int64_t rows = query.size(0) * query.size(1);
  if (engine->projections.are_few(rows) && rows > 0 && keys.size(2) > 0) {
    output = output.defined() ? output : at::empty(query.sizes(), keys.options());
    attend_few(query, output);
    return output;
  }
  const auto Q = engine->projections(query, {0, 1, 0, engine->num_heads}).select(2, 0);  // (B, L, H, d_k)
  const auto context = at::empty(Q.sizes(), keys.options());
  const auto keep = blocking.keep.defined()
                        ? blocking.keep.expand({Q.size(0), Q.size(2), Q.size(1), keys.size(2)})
                        : Tensor();
  fused::attend(Q, keys.transpose(1, 2), values.transpose(1, 2), {keep, {}}, context);
  const auto result = engine->project_output(context);
  return output.defined() ? output.copy_(result) : result;
}

void ProjectedMemory::State::attend_few(const Tensor& query, const Tensor& output) const {
  const int64_t rows = query.size(0) * query.size(1);
  const auto buffer = engine->call_buffer(rows, /*layers=*/1);
  engine->projections.project(query.contiguous().const_data_ptr(), rows, 0, 1, buffer.projected);
  auto arguments = engine->core_arguments(query.size(0), query.size(1), /*layers=*/1);
  arguments.key_len = keys.size(2);
  arguments.query = buffer.projected;
  arguments.key = keys.const_data_ptr();
  arguments.value = values.const_data_ptr();
  arguments.key_strides = arguments.value_strides = {keys.stride(0), keys.stride(1), keys.stride(2)};
  arguments.output = buffer.context;
  fused::set_blocking(arguments, blocking);
  arguments.mask.query = 0;  // all queries see the same
  fused::attend(arguments);
  engine->output.project(buffer.context, rows, 0, 1, output.mutable_data_ptr());
}

}  // namespace mha
