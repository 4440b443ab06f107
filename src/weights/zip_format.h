/// What the reader and the writer of zip archives must agree on, from PKWARE's APPNOTE.TXT. All numbers are
/// little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mha::weights::zip {

inline constexpr std::uint32_t kLocalHeader = 0x04034b50;
inline constexpr std::uint32_t kDirectoryHeader = 0x02014b50;
inline constexpr std::uint32_t kEnd = 0x06054b50;
inline constexpr std::uint32_t kZip64Locator = 0x07064b50;
inline constexpr std::uint32_t kZip64End = 0x06064b50;
inline constexpr std::size_t kLocalHeaderSize = 30;
inline constexpr std::size_t kDirectoryHeaderSize = 46;
inline constexpr std::size_t kEndSize = 22;
inline constexpr std::size_t kZip64LocatorSize = 20;
inline constexpr std::size_t kZip64EndSize = 56;
inline constexpr std::size_t kMaxComment = 0xFFFF;
inline constexpr std::uint16_t kZip64Extra = 1;
inline constexpr std::uint16_t kEncrypted = 1;
inline constexpr std::uint16_t kSizesFollowData = 8;
inline constexpr std::uint16_t kUtf8Name = 0x0800;
/// Instead of numbers that stand in the zip64 record or field.
inline constexpr std::uint16_t kInZip64 = 0xFFFF;
inline constexpr std::uint32_t kInZip64Long = 0xFFFFFFFF;

}  // namespace mha::weights::zip
