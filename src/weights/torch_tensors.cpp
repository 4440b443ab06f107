#include "weights/torch_tensors.h"

#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "mha/error.h"
#include "support/checked_math.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/shape_text.h"
#include "weights/mapped_file.h"
#include "weights/torch_dtypes.h"

namespace mha::weights {
namespace {

using Kind = PickleValue::Kind;
using Arguments = std::vector<PickleValue>;

/// What a function that rebuilds a tensor takes.
enum class Rebuild {
  kView,           ///< (storage, offset, shape, strides, ...)
  kViewWithDtype,  ///< the same, with a dtype in the seventh place
  kWrapper,        ///< (tensor, ...)
  kCall,           ///< (function, class, its arguments, ...): a subclass or a tensor with attributes
  kUnsupported,    ///< no dense tensor of a CPU
};

struct RebuildFunction {
  std::string_view name;
  Rebuild takes;
  std::string_view makes;
};

constexpr std::array<RebuildFunction, 17> kRebuildFunctions{{
    {"torch._utils._rebuild_tensor", Rebuild::kView, ""},
    {"torch._utils._rebuild_tensor_v2", Rebuild::kView, ""},
    {"torch._utils._rebuild_tensor_v3", Rebuild::kViewWithDtype, ""},
    {"torch._utils._rebuild_parameter", Rebuild::kWrapper, ""},
    {"torch._utils._rebuild_parameter_with_state", Rebuild::kWrapper, ""},
    {"torch._tensor._rebuild_from_type", Rebuild::kCall, ""},
    {"torch._tensor._rebuild_from_type_v2", Rebuild::kCall, ""},
    {"torch.tensor._rebuild_from_type", Rebuild::kCall, ""},
    {"torch._utils._rebuild_qtensor", Rebuild::kUnsupported, "a quantized one"},
    {"torch._utils._rebuild_sparse_tensor", Rebuild::kUnsupported, "a sparse one"},
    {"torch._utils._rebuild_sparse_csr_tensor", Rebuild::kUnsupported, "a sparse one"},
    {"torch._utils._rebuild_nested_tensor", Rebuild::kUnsupported, "a nested one"},
    {"torch._utils._rebuild_meta_tensor_no_storage", Rebuild::kUnsupported, "one on the meta device"},
    {"torch._utils._rebuild_wrapper_subclass", Rebuild::kUnsupported, "a subclass without data of its own"},
    {"torch._utils._rebuild_device_tensor_from_numpy", Rebuild::kUnsupported, "one kept as a NumPy array"},
    {"torch._utils._rebuild_xla_tensor", Rebuild::kUnsupported, "one kept as a NumPy array"},
    {"torch._utils._rebuild_device_tensor_from_cpu_tensor", Rebuild::kUnsupported, "one of another backend"},
}};

/// Wrappers around wrappers are at most a few; a record that wraps itself has no end.
constexpr int kMaxWrappers = 16;
/// Python keeps two flags beside a tensor at most; a search in many would be paid for by every tensor again.
constexpr std::size_t kMaxFlags = 16;
/// Conjugated and negated copies of one storage. Views of a tensor and of its real and imaginary part need two.
constexpr std::size_t kMaxResolved = 4;
/// As many dimensions as Python's tensors can have.
constexpr std::size_t kMaxDimensions = 64;

const RebuildFunction* rebuild_function(std::string_view name) {
  const auto* const found = std::find_if(kRebuildFunctions.begin(), kRebuildFunctions.end(),
                                         [name](const RebuildFunction& each) { return each.name == name; });
  return found == kRebuildFunctions.end() ? nullptr : found;
}

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(where + ": " + why);
}

std::int64_t count(const PickleValue& value, const std::string& what, const std::string& where) {
  if (!value.is(Kind::kInteger) || value.integer() < 0) {
    refuse(where, "expected " + what + " that is an integer from 0 to 2^63 - 1, found " + describe(value));
  }
  return value.integer();
}

/// The integers of a tuple, list or torch.Size.
std::vector<std::int64_t> counts(PickleValue value, const std::string& what, const std::string& where) {
  if (value.is(Kind::kObject) && class_name(value.node()) == "torch.Size" &&
      value.node().arguments.node().items.size() == 1) {
    value = value.node().arguments.node().items[0];
  }
  if (!value.is(Kind::kTuple) && !value.is(Kind::kList)) {
    refuse(where, "expected " + what + " in a tuple, found " + describe(value));
  }
  const Arguments& items = value.node().items;
  if (items.size() > kMaxDimensions) {
    refuse(where, "expected at most " + std::to_string(kMaxDimensions) + " dimensions, found " +
                      std::to_string(items.size()));
  }
  std::vector<std::int64_t> result;
  for (const PickleValue& item : items) {
    result.push_back(count(item, what, where));
  }
  return result;
}

/// Elements from the first to one past the last that this view touches, which may be many more than it has;
/// 0 for a view of none. Nothing when LibTorch cannot count them, or the view's own bytes.
std::optional<std::int64_t> extent(const std::vector<std::int64_t>& shape,
                                   const std::vector<std::int64_t>& strides, std::int64_t item_size) {
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  std::optional<std::int64_t> last = 0;
  std::optional<std::int64_t> bytes = item_size;
  for (std::size_t i = 0; i < shape.size() && last && bytes; ++i) {
    bytes = multiply(*bytes, std::max<std::int64_t>(shape[i], 1));
    const auto reach = empty ? std::optional<std::int64_t>(0) : multiply(shape[i] - 1, strides[i]);
    last = reach ? add(*last, *reach) : reach;
  }
  if (!last || !bytes) {
    return std::nullopt;
  }
  return empty ? 0 : add(*last, 1);
}

c10::Storage storage_over(const OwnedBytes& owned) {
  auto* const owner = new std::shared_ptr<void>(owned.owner);
  c10::DataPtr data(
      owned.bytes.data(), owner, [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); },
      c10::kCPU);
  return {c10::Storage::use_byte_size_t(), owned.bytes.size(), std::move(data), /*allocator=*/nullptr,
          /*resizable=*/false};
}

/// Copies piece by piece and gives back the file's pages behind it: it shall not be in memory twice.
void copy_releasing(const OwnedBytes& from, std::byte* to) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (std::size_t done = 0; done < from.bytes.size(); done += kPiece) {
    const auto piece = from.bytes.subspan(done, std::min(kPiece, from.bytes.size() - done));
    std::memcpy(to + done, piece.data(), piece.size());
    release_pages({piece, from.owner, from.is_mapped});
  }
}

/// Python keeps the flags of lazy conjugation and negation beside the data: {"conj": True}.
PickleValue flags_of(const Arguments& arguments, std::size_t at, const std::string& where) {
  const PickleValue flags = arguments.size() > at ? unwrap(arguments[at]) : PickleValue{};
  if (!flags.is(Kind::kDict)) {
    return {};
  }
  if (flags.node().items.size() > 2 * kMaxFlags) {
    refuse(where, "expected at most " + std::to_string(kMaxFlags) + " flags of a tensor, found " +
                      std::to_string(flags.node().items.size() / 2));
  }
  return flags;
}

bool has_flag(const PickleValue& flags, std::string_view flag) {
  const PickleValue* const value = flags.is(Kind::kDict) ? find_key(flags.node(), flag) : nullptr;
  return value != nullptr && value->is(Kind::kBool) && value->integer() != 0;
}

bool can_be_negated(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) || dtype == c10::kDouble || dtype == c10::kFloat || dtype == c10::kHalf ||
         dtype == c10::kBFloat16;
}

}  // namespace

StorageReference storage_reference(const PickleNode& persistent, const std::string& where) {
  const PickleValue& id = persistent.arguments;
  if (!id.is(Kind::kTuple) || id.node().items.size() < 5) {
    refuse(where,
           "expected a storage of (\"storage\", class, key, location, elements), found " + describe(id));
  }
  const Arguments& items = id.node().items;
  if (!items[0].is(Kind::kText) || items[0].text() != "storage") {
    refuse(where, "expected a storage, found " + describe(items[0]));
  }
  const auto dtype = items[1].is(Kind::kGlobal) ? dtype_of_storage(items[1].text()) : std::nullopt;
  if (!dtype) {
    refuse(where, "expected a class of storage such as torch.FloatStorage, found " + describe(items[1]));
  }
  if (!items[2].is(Kind::kText)) {
    refuse(where, "expected the key of a storage as text, found " + describe(items[2]));
  }
  if (items[3].is(Kind::kText) && items[3].text() == "meta") {
    refuse(where, "expected a tensor with data, found one on the meta device");
  }
  if (items.size() > 5 && !items[5].is_none()) {
    refuse(where, "expected a whole storage, found a view of one (PyTorch of before 0.4)");
  }
  return {items[2].text(), *dtype, count(items[4], "a number of elements", where)};
}

bool is_tensor(const PickleValue& value) {
  return value.is(Kind::kObject) && rebuild_function(class_name(value.node())) != nullptr;
}

PickleValue unwrap(PickleValue value) {
  constexpr std::string_view kHelpers = "torch.jit._pickle.";
  for (int i = 0; i < kMaxWrappers; ++i) {
    if (!value.is(Kind::kObject) || !class_name(value.node()).starts_with(kHelpers) ||
        value.node().arguments.node().items.empty()) {
      break;
    }
    value = value.node().arguments.node().items[0];
  }
  return value;
}

at::Tensor TensorMaker::make(const PickleValue& record, const std::string& where) {
  const auto known = made_.find(&record.node());
  if (known != made_.end()) {
    return known->second;
  }
  PickleValue callable = record.node().callable;
  std::string_view name = class_name(record.node());
  PickleValue arguments = record.node().arguments;
  for (int i = 0; i < kMaxWrappers; ++i) {
    const RebuildFunction* const function = rebuild_function(name);
    if (function == nullptr) {
      refuse(where, "expected a function that rebuilds a tensor, found " + describe(callable));
    }
    if (function->takes == Rebuild::kUnsupported) {
      refuse(where, "expected a dense tensor, found " + std::string(function->makes));
    }
    const Arguments& items = arguments.node().items;
    if (function->takes == Rebuild::kWrapper && !items.empty() && items[0].is(Kind::kObject)) {
      callable = items[0].node().callable;
      name = class_name(items[0].node());
      arguments = items[0].node().arguments;
    } else if (function->takes == Rebuild::kCall && items.size() >= 3 && items[0].is(Kind::kGlobal) &&
               items[2].is(Kind::kTuple)) {
      callable = items[0];
      name = items[0].text();
      arguments = items[2];
    } else if (function->takes == Rebuild::kView || function->takes == Rebuild::kViewWithDtype) {
      at::Tensor tensor = make_view(items, function->takes == Rebuild::kViewWithDtype, where);
      made_.emplace(&record.node(), tensor);
      return tensor;
    } else {
      refuse(where, "expected the arguments of " + std::string(name) + ", found " +
                        (items.empty() ? "none" : describe(items[0])));
    }
  }
  refuse(where, "expected a tensor, found more than " + std::to_string(kMaxWrappers) + " wrappers");
}

at::Tensor TensorMaker::make_view(const Arguments& arguments, bool has_dtype, const std::string& where) {
  const std::size_t needed = has_dtype ? 7 : 4;
  if (arguments.size() < needed || !arguments[0].is(Kind::kPersistent)) {
    refuse(where, "expected a storage, an offset, a shape and strides, found " +
                      std::to_string(arguments.size()) + " arguments" +
                      (arguments.empty() ? "" : ", the first " + describe(arguments[0])));
  }
  const StorageReference reference = storage_reference(arguments[0].node(), where);
  c10::ScalarType dtype = reference.dtype;
  if (has_dtype) {
    const auto named = arguments[6].is(Kind::kGlobal) ? dtype_of_name(arguments[6].text()) : std::nullopt;
    if (!named) {
      refuse(where, "expected a dtype such as torch.float32, found " + describe(arguments[6]));
    }
    dtype = *named;
  }
  if (c10::isQIntType(dtype)) {
    refuse(where, "expected a dense tensor, found a quantized one");
  }
  const std::int64_t offset = count(arguments[1], "an offset", where);
  const std::vector<std::int64_t> shape = counts(arguments[2], "a shape", where);
  const std::vector<std::int64_t> strides = counts(arguments[3], "strides", where);
  if (shape.size() != strides.size()) {
    refuse(where, "expected as many strides as dimensions, found shape " + shape_text(shape) +
                      " and strides " + shape_text(strides));
  }
  const auto item_size = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::optional<std::int64_t> reach = extent(shape, strides, item_size);
  if (!reach) {
    refuse(where, "expected a shape of less than 2^63 bytes, found " + shape_text(shape) + " with strides " +
                      shape_text(strides));
  }
  KeptStorage& kept = keep(reference, where);
  const std::int64_t elements = static_cast<std::int64_t>(kept.bytes.bytes.size()) / item_size;
  const std::optional<std::int64_t> end = add(offset, *reach);
  const auto options = at::TensorOptions().dtype(dtype);
  if (*reach == 0) {
    return at::empty(shape, options);
  }
  if (!end || *end > elements) {
    refuse(where, "expected elements inside its storage of " + std::to_string(elements) + " " +
                      dtype_text(dtype) + ", found shape " + shape_text(shape) + ", strides " +
                      shape_text(strides) + ", offset " + std::to_string(offset));
  }
  const PickleValue flags = flags_of(arguments, has_dtype ? 7 : 6, where);
  Resolved wanted{dtype, c10::isComplexType(dtype) && has_flag(flags, "conj"), has_flag(flags, "neg"), {}};
  if (wanted.conjugated || wanted.negated) {
    return resolve(kept, std::move(wanted), where).as_strided(shape, strides, offset);
  }
  return at::empty({0}, options)
      .set_(aligned(kept, static_cast<std::size_t>(item_size)), offset, shape, strides);
}

/// All elements at once and once only: a view may repeat them without end, and many views may share them.
const at::Tensor& TensorMaker::resolve(KeptStorage& kept, Resolved wanted, const std::string& where) {
  for (const Resolved& known : kept.resolved) {
    if (known.dtype == wanted.dtype && known.conjugated == wanted.conjugated &&
        known.negated == wanted.negated) {
      return known.elements;
    }
  }
  if (!can_be_negated(wanted.dtype)) {
    refuse(where, "expected a dtype that can be negated, found " + dtype_text(wanted.dtype));
  }
  if (kept.resolved.size() == kMaxResolved) {
    refuse(where, "expected at most " + std::to_string(kMaxResolved) +
                      " conjugated or negated copies of its storage, found more");
  }
  const std::size_t item_size = c10::elementSize(wanted.dtype);
  const auto count = static_cast<std::int64_t>(kept.bytes.bytes.size() / item_size);
  at::Tensor elements =
      at::empty({0}, at::TensorOptions().dtype(wanted.dtype)).set_(aligned(kept, item_size), 0, {count}, {1});
  elements = wanted.conjugated ? elements.conj().resolve_conj() : elements;
  wanted.elements = wanted.negated ? elements.neg() : elements;
  return kept.resolved.emplace_back(std::move(wanted)).elements;
}

TensorMaker::KeptStorage& TensorMaker::keep(const StorageReference& reference, const std::string& where) {
  const std::string key(reference.key);
  auto found = kept_.find(key);
  if (found == kept_.end()) {
    KeptStorage kept;
    kept.bytes = storages_(reference, where);
    found = kept_.emplace(key, std::move(kept)).first;
  }
  KeptStorage& kept = found->second;
  const std::size_t item_size = c10::elementSize(reference.dtype);
  if (kept.bytes.bytes.size() / item_size != static_cast<std::uint64_t>(reference.elements)) {
    refuse(where, "storage " + quote(key) + ": expected " + std::to_string(reference.elements) +
                      " elements of " + std::to_string(item_size) + " bytes, found " +
                      std::to_string(kept.bytes.bytes.size()) + " bytes");
  }
  return kept;
}

c10::Storage TensorMaker::aligned(KeptStorage& kept, std::size_t item_size) {
  const OwnedBytes& owned = kept.bytes;
  if (reinterpret_cast<std::uintptr_t>(owned.bytes.data()) % item_size == 0) {
    if (!kept.in_place) {
      kept.in_place = storage_over(owned);
    }
    return kept.in_place;
  }
  if (!kept.copy) {
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(owned.bytes.size());
    copy_releasing(owned, static_cast<std::byte*>(data.get()));
    kept.copy = c10::Storage(c10::Storage::use_byte_size_t(), owned.bytes.size(), std::move(data),
                             /*allocator=*/nullptr, /*resizable=*/false);
  }
  return kept.copy;
}

}  // namespace mha::weights
