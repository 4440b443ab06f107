#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "mha/error.h"
#include "support/checked_math.h"
#include "support/quote.h"
#include "support/shape_text.h"
#include "weights/safetensors.h"
#include "weights/safetensors_format.h"
#include "weights/safetensors_header.h"

namespace mha::weights {
namespace {

[[noreturn]] void refuse(const std::string& file, const TensorEntry& entry, const std::string& why) {
  throw Error(file + ": tensor " + quote(entry.name) + ": " + why);
}

std::string offsets(const TensorEntry& entry) {
  return "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
}

/// Bytes of a tensor of this shape; nothing when LibTorch cannot count them.
std::optional<std::int64_t> bytes_of(const TensorEntry& entry) {
  // Strides are products of the dimensions, with 1 for 0: they too must fit, even if there is no element.
  std::optional<std::int64_t> strides = 1;
  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  for (const std::int64_t size : entry.shape) {
    strides = strides ? multiply(*strides, std::max<std::int64_t>(size, 1)) : strides;
    bytes = bytes && !empty ? multiply(*bytes, size) : bytes;
  }
  return !strides ? strides : empty ? 0 : bytes;
}

void check_entry(const TensorEntry& entry, const std::string& file) {
  if (entry.begin > entry.end) {
    refuse(file, entry, "expected data_offsets that do not decrease, found " + offsets(entry));
  }
  const std::optional<std::int64_t> bytes = bytes_of(entry);
  if (!bytes) {
    refuse(file, entry, "expected a shape of less than 2^63 bytes, found " + shape_text(entry.shape));
  }
  if (entry.end - entry.begin != static_cast<std::uint64_t>(*bytes)) {
    refuse(file, entry,
           "expected " + std::to_string(*bytes) + " bytes for " + std::string(safetensors_name(entry.dtype)) +
               " " + shape_text(entry.shape) + ", found data_offsets " + offsets(entry));
  }
}

/// Checks that the entries, ordered by offset, cover the data exactly: no gap, no byte twice, none left over.
void check_cover(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes, const std::string& file) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != covered) {
      refuse(file, entry,
             "expected data that begins at " + std::to_string(covered) +
                 ", where the tensor before ends, found " + offsets(entry) +
                 (entry.begin > covered ? " (a gap)" : " (an overlap)"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw Error(file + ": expected " + std::to_string(covered) + " bytes of data after the header, found " +
                std::to_string(data_bytes) +
                (data_bytes < covered ? " (file cut short)" : " (trailing bytes)"));
  }
}

void check_bools(const TensorEntry& entry, std::span<const std::byte> data, const std::string& file) {
  const auto bad = std::find_if(data.begin(), data.end(), [](std::byte each) { return each > std::byte{1}; });
  if (bad != data.end()) {
    refuse(file, entry,
           "expected bytes 0 and 1 in a BOOL tensor, found " + std::to_string(std::to_integer<int>(*bad)) +
               " at element " + std::to_string(bad - data.begin()));
  }
}

at::Tensor make_tensor(const TensorEntry& entry, std::span<std::byte> data,
                       const std::shared_ptr<void>& owner) {
  const auto options = at::TensorOptions().dtype(entry.dtype);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data.data()) % c10::elementSize(entry.dtype) == 0;
  if (!data.empty() && aligned) {
    return at::from_blob(
        data.data(), entry.shape, [owner](void*) {}, options);
  }
  at::Tensor tensor = at::empty(entry.shape, options);
  if (!data.empty()) {
    std::memcpy(tensor.data_ptr(), data.data(), data.size());
  }
  return tensor;
}

}  // namespace

WeightsFile read_safetensors(const Source& source) {
  const std::string& file = source.file;
  std::span<std::byte> bytes = source.bytes;
  if (bytes.size() < kLengthBytes) {
    throw Error(file + ": expected at least " + std::to_string(kLengthBytes) +
                " bytes of safetensors, found " + std::to_string(bytes.size()));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  bytes = bytes.subspan(kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    throw Error(file + ": expected a safetensors header of at most " + std::to_string(kMaxHeaderBytes) +
                " bytes, found " + std::to_string(header_bytes));
  }
  if (header_bytes > bytes.size()) {
    throw Error(file + ": expected a safetensors header of " + std::to_string(header_bytes) +
                " bytes, found " + std::to_string(bytes.size()) + " (file cut short)");
  }
  const auto header_size = static_cast<std::size_t>(header_bytes);
  SafetensorsHeader header =
      parse_safetensors_header({reinterpret_cast<const char*>(bytes.data()), header_size}, file);
  const std::span<std::byte> data = bytes.subspan(header_size);

  std::vector<TensorEntry>& entries = header.tensors;
  for (const TensorEntry& entry : entries) {
    check_entry(entry, file);
  }
  // Empty tensors share their offset with the next one: they sort before it, and among each other keep their
  // order.
  std::stable_sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  check_cover(entries, data.size(), file);

  WeightsFile result{StateDict("Tensor"), std::move(header.metadata), "safetensors"};
  result.tensors.reserve(entries.size());
  for (const TensorEntry& entry : entries) {
    const auto own = data.subspan(static_cast<std::size_t>(entry.begin),
                                  static_cast<std::size_t>(entry.end - entry.begin));
    if (entry.dtype == c10::kBool) {
      check_bools(entry, own, file);
    }
    result.tensors.insert(entry.name, make_tensor(entry, own, source.owner));
  }
  return result;
}

}  // namespace mha::weights
