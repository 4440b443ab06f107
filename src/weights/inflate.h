/// Raw deflate streams, as zip archives hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mha::weights {

/// The bytes that `compressed` stands for: exactly `size` of them, else an `mha::Error` that begins with
/// `where`.
///
/// Nothing is allocated for a `size` that so few bytes cannot stand for.
std::vector<std::byte> inflate(std::span<const std::byte> compressed, std::uint64_t size,
                               const std::string& where);

/// The CRC-32 of `bytes`, as in zip archives.
std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace mha::weights
