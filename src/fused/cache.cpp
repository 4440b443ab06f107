#include "mha/cache.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "attention/checks.h"
#include "fused/attend.h"
#include "fused/core.h"
#include "fused/parallel.h"
#include "fused/state.h"
#include "support/shape_text.h"

namespace mha {

using torch::Tensor;

struct KeyValueCache::State {
  FusedMultiHeadAttention attention;
  const FusedMultiHeadAttention::State& engine;
  int64_t capacity;
  Tensor keys;                         // (B, H, capacity, d_k): item b is at places[b]
  Tensor values;                       // the same
  std::vector<int64_t> places;         // so that reordering need not move what is only renamed
  std::vector<int64_t> lengths;        // of each item
  std::vector<fused::ItemKeys> items;  // of the call under way

  State(const FusedMultiHeadAttention& attention, int64_t batch, int64_t capacity);

  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }

  int64_t index(const char* name, int64_t item) const;
  /// Errors of an input that is one of the engine's.
  void check(const Tensor& x, c10::ArrayRef<int64_t> counts) const;
  /// Adds counts[b] positions to item b, or all of them; into `output` where that is defined.
  Tensor append(const Tensor& x, c10::ArrayRef<int64_t> counts, Tensor output);
  void copy(int64_t from_place, int64_t to_place, int64_t length) const;
  /// What `memory` holds at a place: (H, length, d_k).
  static Tensor rows(const Tensor& memory, int64_t place, int64_t length) {
    return memory.select(0, place).narrow(1, 0, length);
  }

 private:
  /// By our kernels. `projected` is (B, L, 3, H, d_k).
  void append_core(const std::byte* projected, int64_t length, std::byte* context);
  void store(const std::byte* projected, int64_t length) const;
  /// By ATen, one item after the other: context (B, L, H, d_k), of zeros.
  void append_aten(const Tensor& projected, const Tensor& context) const;
};

KeyValueCache::State::State(const FusedMultiHeadAttention& attention, int64_t batch, int64_t capacity)
    : attention(attention), engine(*attention.state_), capacity(capacity) {
  TORCH_CHECK_VALUE(batch > 0, "batch: expected at least 1, found ", batch);
  TORCH_CHECK_VALUE(capacity > 0, "capacity: expected at least 1, found ", capacity);
  const int64_t most = std::numeric_limits<int64_t>::max() / 16 / batch / engine.d_model;
  TORCH_CHECK_VALUE(capacity <= most, "capacity: expected at most ", most, " for batch ", batch,
                    " and d_model ", engine.d_model, ", found ", capacity);
  const fused::PlainDispatch plain;
  const auto options = torch::TensorOptions(engine.dtype()).device(engine.device());
  keys = at::empty({batch, engine.num_heads, capacity, engine.d_k()}, options);
  values = at::empty_like(keys);
  lengths.resize(static_cast<size_t>(batch));
  items.resize(lengths.size());
  places.resize(lengths.size());
  for (int64_t item = 0; item < batch; ++item) {
    places[static_cast<size_t>(item)] = item;
  }
}

int64_t KeyValueCache::State::index(const char* name, int64_t item) const {
  TORCH_CHECK_VALUE(item >= 0 && item < batch(), name, ": expected an item within [0, ", batch(), "), found ",
                    item);
  return item;
}

void KeyValueCache::State::check(const Tensor& x, c10::ArrayRef<int64_t> counts) const {
  TORCH_CHECK_VALUE(x.size(0) == batch(), "x: expected batch ", batch(), " (that of the cache), found shape ",
                    shape_text(x.sizes()));
  TORCH_CHECK_VALUE(counts.empty() || counts.size() == lengths.size(), "lengths: expected ", batch(),
                    " (one for each item), found ", counts.size());
  for (size_t item = 0; item < lengths.size(); ++item) {
    const int64_t count = counts.empty() ? x.size(1) : counts[item];
    TORCH_CHECK_VALUE(count >= 0 && count <= x.size(1), "lengths: expected numbers within [0, ", x.size(1),
                      "] (the length of x), found ", count, " for item ", item);
    TORCH_CHECK_VALUE(count <= capacity - lengths[item], "x: expected at most ", capacity - lengths[item],
                      " positions for item ", item, ", which has ", lengths[item], " of the capacity of ",
                      capacity, ", found ", count);
  }
}

Tensor KeyValueCache::State::append(const Tensor& x, c10::ArrayRef<int64_t> counts, Tensor output) {
  const int64_t length = x.size(1);
  for (size_t item = 0; item < items.size(); ++item) {
    const int64_t count = counts.empty() ? length : counts[item];
    items[item] = {.place = places[item], .key_len = lengths[item] + count, .causal_shift = lengths[item]};
  }
  const int64_t rows = batch() * length;
  if (rows > 0 && engine.projections.are_few(rows)) {
    const auto buffer = engine.call_buffer(rows, /*layers=*/3);
    engine.projections.project(x.contiguous().const_data_ptr(), rows, 0, 3, buffer.projected);
    append_core(buffer.projected, length, buffer.context);
    output = output.defined() ? output : at::empty(x.sizes(), keys.options());
    engine.output.project(buffer.context, rows, 0, 1, output.mutable_data_ptr());
  } else {
    const auto projected = engine.projections(x, {0, 3, 0, engine.num_heads});
    const auto context = at::zeros({x.size(0), length, engine.num_heads, engine.d_k()}, keys.options());
    if (rows > 0 && fused::has_core(engine.dtype(), engine.device())) {
      append_core(static_cast<const std::byte*>(projected.const_data_ptr()), length,
                  static_cast<std::byte*>(context.mutable_data_ptr()));
    } else {
      append_aten(projected, context);
    }
    const auto result = engine.project_output(context);
    output = output.defined() ? output.copy_(result) : result;
  }
  for (size_t item = 0; item < items.size(); ++item) {
    const int64_t count = items[item].key_len - lengths[item];
    if (count < length) {
      output.select(0, static_cast<int64_t>(item)).narrow(0, count, length - count).zero_();
    }
    lengths[item] = items[item].key_len;
  }
  return output;
}

void KeyValueCache::State::append_core(const std::byte* projected, int64_t length, std::byte* context) {
  store(projected, length);
  auto arguments = engine.core_arguments(batch(), length, /*layers=*/3);
  for (const auto& item : items) {
    arguments.key_len = std::max(arguments.key_len, item.key_len);
  }
  arguments.query = projected;
  arguments.key = keys.const_data_ptr();
  arguments.value = values.const_data_ptr();
  arguments.key_strides = arguments.value_strides = {keys.stride(0), keys.stride(1), keys.stride(2)};
  arguments.output = context;
  arguments.causal = length > 1;  // one position sees all there is
  arguments.items = items.data();
  fused::attend(arguments);
}

void KeyValueCache::State::store(const std::byte* projected, int64_t length) const {
  const int64_t num_heads = engine.num_heads;
  const size_t row = static_cast<size_t>(engine.d_k()) * engine.itemsize();  // of one head
  const auto head_bytes = static_cast<size_t>(capacity) * row;
  const int64_t grain =
      std::max<int64_t>(1, (int64_t{256} << 10) / std::max<int64_t>(1, length * engine.d_k()));
  auto* const all_keys = static_cast<std::byte*>(keys.mutable_data_ptr());
  auto* const all_values = static_cast<std::byte*>(values.mutable_data_ptr());
  at::parallel_for(0, batch() * num_heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto& item = items[static_cast<size_t>(task / num_heads)];
      const auto head = static_cast<size_t>(task % num_heads);
      const size_t to = (static_cast<size_t>(item.place * num_heads) + head) * head_bytes;
      const std::byte* from =
          projected + static_cast<size_t>(task / num_heads * length) * 3 * engine.layer_bytes();
      for (int64_t position = item.causal_shift; position < item.key_len; ++position) {
        const std::byte* const key = from + engine.layer_bytes() + head * row;
        const size_t at = to + static_cast<size_t>(position) * row;
        std::memcpy(all_keys + at, key, row);
        std::memcpy(all_values + at, key + engine.layer_bytes(), row);
        from += 3 * engine.layer_bytes();
      }
    }
  });
}

void KeyValueCache::State::append_aten(const Tensor& projected, const Tensor& context) const {
  for (size_t item = 0; item < items.size(); ++item) {
    const auto& of_item = items[item];
    const int64_t count = of_item.key_len - of_item.causal_shift;
    if (count == 0) {
      continue;
    }
    const auto at = static_cast<int64_t>(item);
    const auto rows = projected.narrow(0, at, 1).narrow(1, 0, count);  // (1, n, 3, H, d_k)
    const auto place = [&](const Tensor& memory, int64_t first, int64_t length) {
      return memory.narrow(0, of_item.place, 1)
          .narrow(2, first, length)
          .transpose(1, 2);  // (1, length, H, d_k)
    };
    place(keys, of_item.causal_shift, count).copy_(rows.select(2, 1));
    place(values, of_item.causal_shift, count).copy_(rows.select(2, 2));
    fused::Blocking blocking;
    if (count > 1) {
      blocking.causal = CausalAlignment::bottom_right;
    }
    fused::attend(rows.select(2, 0), place(keys, 0, of_item.key_len), place(values, 0, of_item.key_len),
                  blocking, context.narrow(0, at, 1).narrow(1, 0, count));
  }
}

void KeyValueCache::State::copy(int64_t from_place, int64_t to_place, int64_t length) const {
  for (const auto* memory : {&keys, &values}) {
    rows(*memory, to_place, length).copy_(rows(*memory, from_place, length));
  }
}

KeyValueCache::KeyValueCache(const FusedMultiHeadAttention& attention, int64_t batch, int64_t capacity)
    : state_(std::make_unique<State>(attention, batch, capacity)) {}

KeyValueCache::KeyValueCache(const KeyValueCache& other)
    : state_(std::make_unique<State>(other.attention(), other.batch(), other.capacity())) {
  for (int64_t item = 0; item < batch(); ++item) {
    assign(item, other.stored_view(other.state_->keys, item), other.stored_view(other.state_->values, item));
  }
}

KeyValueCache& KeyValueCache::operator=(const KeyValueCache& other) {
  if (this != &other) {
    *this = KeyValueCache(other);
  }
  return *this;
}

KeyValueCache::KeyValueCache(KeyValueCache&&) noexcept = default;
KeyValueCache& KeyValueCache::operator=(KeyValueCache&&) noexcept = default;
KeyValueCache::~KeyValueCache() = default;

Tensor KeyValueCache::prefill(const Tensor& x, c10::ArrayRef<int64_t> lengths) {
  state_->engine.check_input("x", x);
  state_->check(x, lengths);
  const fused::PlainDispatch plain;
  return state_->append(x, lengths, Tensor());
}

Tensor KeyValueCache::step(const Tensor& x) {
  check_step(x);
  const fused::PlainDispatch plain;
  return state_->append(x, {}, Tensor());
}

void KeyValueCache::step_into(const Tensor& x, const Tensor& output) {
  check_step(x);
  state_->engine.check_output(output, x.sizes());
  const fused::PlainDispatch plain;
  state_->append(x, {}, output);
  FusedMultiHeadAttention::State::mark_changed(output);
}

void KeyValueCache::check_step(const Tensor& x) const {
  state_->engine.check_input("x", x);
  TORCH_CHECK_VALUE(x.size(1) == 1, "x: expected length 1 (one position), found shape ",
                    shape_text(x.sizes()));
  state_->check(x, {});
}

void KeyValueCache::reset() {
  std::fill(state_->lengths.begin(), state_->lengths.end(), 0);
}

void KeyValueCache::reset(int64_t item) {
  truncate(item, 0);
}

void KeyValueCache::truncate(int64_t item, int64_t length) {
  auto& current = state_->lengths[static_cast<size_t>(state_->index("item", item))];
  TORCH_CHECK_VALUE(length >= 0 && length <= current, "length: expected one within [0, ", current,
                    "], found ", length);
  current = length;
}

void KeyValueCache::copy(int64_t from, int64_t to) {
  const auto source = static_cast<size_t>(state_->index("from", from));
  const auto target = static_cast<size_t>(state_->index("to", to));
  if (source == target) {
    return;
  }
  const fused::PlainDispatch plain;
  state_->copy(state_->places[source], state_->places[target], state_->lengths[source]);
  state_->lengths[target] = state_->lengths[source];
}

void KeyValueCache::assign(int64_t item, const Tensor& keys, const Tensor& values) {
  const auto index = static_cast<size_t>(state_->index("item", item));
  state_->engine.check_stored(keys, values, /*dimensions=*/3);
  const int64_t length = keys.size(1);
  TORCH_CHECK_VALUE(length <= capacity(), "keys: expected a length of at most ", capacity(),
                    " (the capacity), found shape ", shape_text(keys.sizes()));
  const fused::PlainDispatch plain;
  State::rows(state_->keys, state_->places[index], length).copy_(keys);
  State::rows(state_->values, state_->places[index], length).copy_(values);
  state_->lengths[index] = length;
}

void KeyValueCache::reorder(c10::ArrayRef<int64_t> sources) {
  const auto batch = state_->lengths.size();
  TORCH_CHECK_VALUE(sources.size() == batch, "sources: expected ", batch, " items, found ", sources.size());
  for (const auto source : sources) {
    state_->index("sources", source);
  }
  const fused::PlainDispatch plain;
  const auto old_places = state_->places;
  const auto old_lengths = state_->lengths;
  std::vector<bool> is_taken(batch);
  std::vector<size_t> copies;  // items whose source's memory another item has taken
  for (size_t item = 0; item < batch; ++item) {
    const auto source = static_cast<size_t>(sources[item]);
    state_->lengths[item] = old_lengths[source];
    if (is_taken[source]) {
      copies.push_back(item);
    } else {
      is_taken[source] = true;
      state_->places[item] = old_places[source];
    }
  }
  size_t free = 0;
  for (const auto item : copies) {
    while (is_taken[free]) {
      ++free;
    }
    state_->places[item] = old_places[free++];
    state_->copy(old_places[static_cast<size_t>(sources[item])], state_->places[item], state_->lengths[item]);
  }
}

const std::vector<int64_t>& KeyValueCache::lengths() const {
  return state_->lengths;
}
int64_t KeyValueCache::batch() const {
  return state_->batch();
}
int64_t KeyValueCache::capacity() const {
  return state_->capacity;
}

Tensor KeyValueCache::keys(int64_t item) const {
  return stored_view(state_->keys, item).clone(torch::MemoryFormat::Contiguous);
}
Tensor KeyValueCache::values(int64_t item) const {
  return stored_view(state_->values, item).clone(torch::MemoryFormat::Contiguous);
}

Tensor KeyValueCache::stored_view(const Tensor& memory, int64_t item) const {
  const auto index = static_cast<size_t>(state_->index("item", item));
  return State::rows(memory, state_->places[index], state_->lengths[index]);
}

const FusedMultiHeadAttention& KeyValueCache::attention() const {
  return state_->attention;
}

}  // namespace mha
