#include "weights/zip_layout.h"

#include <algorithm>
#include <utility>

#include "weights/zip_format.h"

namespace mha::weights {
namespace {

using namespace zip;  // NOLINT(google-build-using-namespace): the constants of the format

/// As PyTorch: enough for every dtype and for vector loads.
constexpr std::uint64_t kAlignment = 64;
/// Begins the extra field that pads headers; PyTorch uses the same number.
constexpr std::uint16_t kPaddingExtra = 0x4246;
constexpr std::size_t kExtraHeaderSize = 4;
constexpr std::uint16_t kVersion = 20;
constexpr std::uint16_t kZip64Version = 45;
/// 1 January 1980, the first day there is: the same tensors shall give the same bytes on every day.
constexpr std::uint16_t kDate = 0x21;

template <typename Number>
void append(std::string& bytes, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFFu);
  }
}

std::uint32_t short_form(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, kInZip64Long));
}

/// The zip64 field that holds these numbers, of which only those too large for 32 bits stand in it.
std::string zip64_field(const std::vector<std::uint64_t>& numbers) {
  std::string content;
  for (const std::uint64_t number : numbers) {
    if (number >= kInZip64Long) {
      append(content, number);
    }
  }
  std::string field;
  if (!content.empty()) {
    append(field, kZip64Extra);
    append(field, static_cast<std::uint16_t>(content.size()));
  }
  return field + content;
}

/// What local header and directory say alike: version, flags, method, time, date, CRC, sizes, length of the
/// name.
std::string common_part(const std::string& name, std::uint64_t size, std::uint32_t crc, bool zip64) {
  std::string bytes;
  append(bytes, zip64 ? kZip64Version : kVersion);
  append(bytes, kUtf8Name);
  append(bytes, std::uint32_t{0});  // stored; midnight
  append(bytes, kDate);
  append(bytes, crc);
  append(bytes, short_form(size));
  append(bytes, short_form(size));
  append(bytes, static_cast<std::uint16_t>(name.size()));
  return bytes;
}

}  // namespace

void ZipLayout::add(std::string name, std::uint64_t size) {
  const std::uint64_t least =
      end_ + kLocalHeaderSize + name.size() + zip64_field({size, size}).size() + kExtraHeaderSize;
  const std::uint64_t data = (least + kAlignment - 1) / kAlignment * kAlignment;
  entries_.push_back({std::move(name), size, end_, data, 0});
  end_ = data + size;
}

std::string ZipLayout::header(std::size_t number, std::uint32_t crc) {
  Entry& entry = entries_[number];
  entry.crc = crc;
  const std::string zip64 = zip64_field({entry.size, entry.size});
  const std::uint64_t padding =
      entry.data - entry.begin - kLocalHeaderSize - entry.name.size() - zip64.size() - kExtraHeaderSize;
  std::string bytes;
  append(bytes, kLocalHeader);
  bytes += common_part(entry.name, entry.size, crc, !zip64.empty());
  append(bytes, static_cast<std::uint16_t>(zip64.size() + kExtraHeaderSize + padding));
  bytes += entry.name + zip64;
  append(bytes, kPaddingExtra);
  append(bytes, static_cast<std::uint16_t>(padding));
  return bytes + std::string(static_cast<std::size_t>(padding), '\0');
}

std::string ZipLayout::directory_entry(const Entry& entry) {
  const std::string zip64 = zip64_field({entry.size, entry.size, entry.begin});
  std::string bytes;
  append(bytes, kDirectoryHeader);
  append(bytes, zip64.empty() ? kVersion : kZip64Version);
  bytes += common_part(entry.name, entry.size, entry.crc, !zip64.empty());
  append(bytes, static_cast<std::uint16_t>(zip64.size()));
  append(bytes, std::uint16_t{0});  // comment
  append(bytes, std::uint16_t{0});  // disk
  append(bytes, std::uint16_t{0});  // internal attributes
  append(bytes, std::uint32_t{0});  // external attributes
  append(bytes, short_form(entry.begin));
  return bytes + entry.name + zip64;
}

std::string ZipLayout::directory() const {
  std::string bytes;
  for (const Entry& entry : entries_) {
    bytes += directory_entry(entry);
  }
  const std::uint64_t size = bytes.size();
  const std::uint64_t count = entries_.size();
  if (count >= kInZip64 || size >= kInZip64Long || end_ >= kInZip64Long) {
    append(bytes, kZip64End);
    append(bytes, static_cast<std::uint64_t>(kZip64EndSize - 12));  // bytes that follow in this record
    append(bytes, kZip64Version);
    append(bytes, kZip64Version);
    append(bytes, std::uint64_t{0});  // this disk, the directory's disk
    append(bytes, count);
    append(bytes, count);
    append(bytes, size);
    append(bytes, end_);
    append(bytes, kZip64Locator);
    append(bytes, std::uint32_t{0});  // disk
    append(bytes, end_ + size);
    append(bytes, std::uint32_t{1});  // disks
  }
  append(bytes, kEnd);
  append(bytes, std::uint32_t{0});  // this disk, the directory's disk
  const auto short_count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, kInZip64));
  append(bytes, short_count);
  append(bytes, short_count);
  append(bytes, short_form(size));
  append(bytes, short_form(end_));
  append(bytes, std::uint16_t{0});  // comment
  return bytes;
}

std::uint64_t ZipLayout::total() const {
  return end_ + directory().size();
}

}  // namespace mha::weights
