/// What the safetensors reader and writer must agree on. The format:
/// https://github.com/huggingface/safetensors
///
///     8 bytes: N, the header's length, little-endian
///     N bytes: {"__metadata__": {"key": "text", ...},
///               "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}, padded with spaces
///     the rest: the data; offsets count from its first byte, and every byte belongs to exactly one tensor
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mha::weights {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is not swapped");

/// Bytes before the header.
inline constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
/// The format's own limit on the header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// The key of the header that is not a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct SafetensorsDtype {
  std::string_view name;
  c10::ScalarType type;
};

/// Every dtype that both sides know. Sub-byte dtypes (F4, F6_E2M3, F6_E3M2) have no LibTorch counterpart.
inline constexpr std::array<SafetensorsDtype, 19> kSafetensorsDtypes{{
    {"F64", c10::kDouble},
    {"F32", c10::kFloat},
    {"F16", c10::kHalf},
    {"BF16", c10::kBFloat16},
    {"I64", c10::kLong},
    {"I32", c10::kInt},
    {"I16", c10::kShort},
    {"I8", c10::kChar},
    {"U64", c10::kUInt64},
    {"U32", c10::kUInt32},
    {"U16", c10::kUInt16},
    {"U8", c10::kByte},
    {"BOOL", c10::kBool},
    {"C64", c10::kComplexFloat},
    {"F8_E4M3", c10::kFloat8_e4m3fn},
    {"F8_E5M2", c10::kFloat8_e5m2},
    {"F8_E4M3FNUZ", c10::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", c10::kFloat8_e5m2fnuz},
    {"F8_E8M0", c10::kFloat8_e8m0fnu},
}};

/// The format's name of a dtype; empty when it has none.
constexpr std::string_view safetensors_name(c10::ScalarType type) {
  for (const SafetensorsDtype& each : kSafetensorsDtypes) {
    if (each.type == type) {
      return each.name;
    }
  }
  return {};
}

}  // namespace mha::weights
