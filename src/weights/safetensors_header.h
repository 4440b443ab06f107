/// The JSON header of a safetensors file.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mha::weights {

struct TensorEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< first byte, counted from the first byte of the data
  std::uint64_t end = 0;    ///< one past the last byte
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of the header; names are unique
  std::map<std::string, std::string> metadata;
};

/// Reads `json`, strictly: whatever the format does not allow is an `mha::Error` that begins with `file`.
///
/// Every field has its type here; that shapes and offsets fit each other and the data is for the caller to
/// check.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file);

}  // namespace mha::weights
