// torch.classes.mha.KeyValueCache.
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "mha/cache.h"
#include "ops/classes.h"
#include "ops/shapes.h"

namespace mha::ops {
namespace {

using Lengths = std::vector<int64_t>;

/// A cache is for one thread at a time, and Python's lock is not held during calls: they take turns.
struct Cache : torch::CustomClassHolder {
  KeyValueCache cache;
  FusedPtr fused;  ///< for pickles
  std::mutex mutex;

  Cache(FusedPtr fused, int64_t batch, int64_t capacity)
      : cache(fused->attention, batch, capacity), fused(std::move(fused)) {}
};

using CachePtr = c10::intrusive_ptr<Cache>;
using Stored = std::vector<Tensor>;                           // of each item
using State = std::tuple<FusedPtr, int64_t, Stored, Stored>;  // capacity, keys, values

CachePtr make(const FusedPtr& fused, int64_t batch, int64_t capacity) {
  return translated([&] { return c10::make_intrusive<Cache>(fused, batch, capacity); });
}

State to_state(const CachePtr& self) {
  const std::lock_guard lock(self->mutex);
  Stored keys;
  Stored values;
  for (int64_t item = 0; item < self->cache.batch(); ++item) {
    keys.push_back(self->cache.keys(item));
    values.push_back(self->cache.values(item));
  }
  return {self->fused, self->cache.capacity(), keys, values};
}

CachePtr from_state(const State& state) {
  return translated([&] {
    const auto& [fused, capacity, keys, values] = state;
    TORCH_CHECK_VALUE(keys.size() == values.size(), "values: expected ", keys.size(),
                      " (as many as keys), found ", values.size());
    auto made = c10::make_intrusive<Cache>(fused, static_cast<int64_t>(keys.size()), capacity);
    for (size_t item = 0; item < keys.size(); ++item) {
      made->cache.assign(static_cast<int64_t>(item), keys[item], values[item]);
    }
    return made;
  });
}

/// A method that calls `function` with the cache while no other call does.
template <typename Result, typename... Arguments>
auto locked(Result (*function)(KeyValueCache&, Arguments...)) {
  return [function](const CachePtr& self, Arguments... arguments) {
    const std::lock_guard lock(self->mutex);
    return function(self->cache, arguments...);
  };
}

/// One that changes the cache, and is no operator.
template <typename... Arguments>
auto changing(const char* name, void (*function)(KeyValueCache&, Arguments...)) {
  return [name, function](const CachePtr& self, Arguments... arguments) {
    check_not_traced(name);
    const std::lock_guard lock(self->mutex);
    function(self->cache, arguments...);
  };
}

// Kernels of the operators.

Tensor prefill_kernel(const CachePtr& self, const Tensor& x, at::OptionalIntArrayRef lengths) {
  TORCH_CHECK_VALUE(!lengths || !lengths->empty(), "lengths: expected one for each of ", self->cache.batch(),
                    " items, found none");
  const std::lock_guard lock(self->mutex);
  return self->cache.prefill(x, lengths.value_or(c10::ArrayRef<int64_t>()));
}

Tensor step_kernel(const CachePtr& self, const Tensor& x) {
  const std::lock_guard lock(self->mutex);
  return self->cache.step(x);
}

void check_positions(const CachePtr& self, const Tensor& x) {
  const auto& attention = self->cache.attention();
  check_input({attention.d_model(), attention.num_heads(), attention.dtype()}, "x", x, self->cache.batch(),
              "that of the cache");
}

Tensor prefill_shape(const CachePtr& self, const Tensor& x, at::OptionalIntArrayRef /*lengths*/) {
  check_positions(self, x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor step_shape(const CachePtr& self, const Tensor& x) {
  check_positions(self, x);
  expect(x.sym_size(1).sym_eq(1), "x", "length 1", x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

// Methods.

Tensor prefill(const CachePtr& self, const Tensor& x, const std::optional<Lengths>& lengths) {
  static const auto op = operation("mha::prefill", &prefill_kernel);
  return op.call(self, x, lengths ? at::OptionalIntArrayRef(*lengths) : std::nullopt);
}

Tensor step(const CachePtr& self, const Tensor& x) {
  static const auto op = operation("mha::step", &step_kernel);
  return op.call(self, x);
}

void reset(KeyValueCache& cache, std::optional<int64_t> item) {
  if (item) {
    cache.reset(*item);
  } else {
    cache.reset();
  }
}

}  // namespace

void register_cache(torch::Library& library) {
  auto holder = library.class_<Cache>("KeyValueCache");
  define_tracing(holder);
  holder.def(torch::init(&make), "", {arg("fused"), arg("batch"), arg("capacity")})
      .def("prefill", &prefill, "", {arg("x"), arg("lengths") = c10::IValue()})
      .def("step", &step, "", {arg("x")})
      .def("step_into",
           changing(
               "step_into", +[](KeyValueCache& cache, const Tensor& x,
                                const Tensor& output) { cache.step_into(x, output); }),
           "", {arg("x"), arg("output")})
      .def("reset", changing("reset", &reset), "", {arg("item") = c10::IValue()})
      .def("truncate",
           changing(
               "truncate",
               +[](KeyValueCache& cache, int64_t item, int64_t length) { cache.truncate(item, length); }),
           "", {arg("item"), arg("length")})
      .def("copy",
           changing(
               "copy",
               +[](KeyValueCache& cache, int64_t source, int64_t target) { cache.copy(source, target); }),
           "", {arg("source"), arg("target")})
      .def("reorder",
           changing(
               "reorder", +[](KeyValueCache& cache, const Lengths& sources) { cache.reorder(sources); }),
           "", {arg("sources")})
      .def("assign",
           changing(
               "assign", +[](KeyValueCache& cache, int64_t item, const Tensor& keys,
                             const Tensor& values) { cache.assign(item, keys, values); }),
           "", {arg("item"), arg("keys"), arg("values")})
      .def("lengths", locked(+[](KeyValueCache& cache) { return cache.lengths(); }))
      .def("batch", locked(+[](KeyValueCache& cache) { return cache.batch(); }))
      .def("capacity", locked(+[](KeyValueCache& cache) { return cache.capacity(); }))
      .def("keys", locked(+[](KeyValueCache& cache, int64_t item) { return cache.keys(item); }), "",
           {arg("item")})
      .def("values", locked(+[](KeyValueCache& cache, int64_t item) { return cache.values(item); }), "",
           {arg("item")})
      .def("__len__", locked(+[](KeyValueCache& cache) { return cache.batch(); }))
      .def_pickle([](const CachePtr& self) { return to_state(self); },
                  [](const State& state) { return from_state(state); });

  define(library,
         "prefill(__torch__.torch.classes.mha.KeyValueCache cache, Tensor x, int[]? lengths=None) -> Tensor",
         &prefill_kernel, &prefill_shape);
  define(library, "step(__torch__.torch.classes.mha.KeyValueCache cache, Tensor x) -> Tensor", &step_kernel,
         &step_shape);
}

}  // namespace mha::ops
