#include "weights/zip_archive.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "mha/error.h"
#include "support/quote.h"
#include "weights/inflate.h"
#include "weights/mapped_file.h"
#include "weights/zip_format.h"

namespace mha::weights {
namespace {

using namespace zip;  // NOLINT(google-build-using-namespace): the constants of the format

/// More than any model has tensors. A directory costs three times its size in memory.
constexpr std::size_t kMaxEntries = 1'000'000;
/// What deflated entries may take together, however small they are in the file: PyTorch deflates nothing, and
/// weights that other tools deflate hardly shrink. Also: this many times the file.
constexpr std::uint64_t kMaxInflated = std::uint64_t{128} << 20;
constexpr std::uint64_t kMaxInflatedRatio = 8;

/// Numbers of a record whose size has been checked.
template <typename Number>
Number number(std::span<const std::byte> record, std::size_t at) {
  Number value;
  std::memcpy(&value, record.data() + at, sizeof value);
  return value;
}

std::string_view text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hexadecimal(std::uint32_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) {
    text += kDigits[(value >> static_cast<unsigned>(shift)) & 0xFu];
  }
  return text;
}

struct Directory {
  std::uint64_t entries;
  std::uint64_t size;
  std::uint64_t begin;
};

class DirectoryReader {
 public:
  DirectoryReader(std::span<std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::vector<ZipEntry> read() {
    const Directory directory = find();
    directory_begin_ = directory.begin;
    // An entry takes its fixed part at least: no claim makes us reserve more than the file justifies.
    if (directory.entries > directory.size / kDirectoryHeaderSize) {
      refuse("expected a zip directory of " + std::to_string(directory.entries) + " entries, found " +
             std::to_string(directory.size) + " bytes");
    }
    if (directory.entries > kMaxEntries) {
      refuse("expected a zip directory of at most " + std::to_string(kMaxEntries) + " entries, found " +
             std::to_string(directory.entries));
    }
    std::vector<ZipEntry> entries;
    entries.reserve(static_cast<std::size_t>(directory.entries));
    auto rest =
        bytes_.subspan(static_cast<std::size_t>(directory.begin), static_cast<std::size_t>(directory.size));
    while (entries.size() < directory.entries) {
      entries.push_back(read_entry(rest));
    }
    if (!rest.empty()) {
      refuse("expected a zip directory of " + std::to_string(directory.entries) + " entries, found " +
             std::to_string(rest.size()) + " bytes more");
    }
    check_overlaps(entries);
    check_inflated_size(entries);
    return entries;
  }

 private:
  /// Where the directory is: told at the end of the file, before a comment of any length.
  Directory find() const {
    const std::size_t size = bytes_.size();
    const std::size_t furthest = std::min(size, kEndSize + kMaxComment);
    for (std::size_t back = kEndSize; back <= furthest; ++back) {
      const auto record = bytes_.last(back);
      if (number<std::uint32_t>(record, 0) == kEnd && number<std::uint16_t>(record, 20) == back - kEndSize) {
        return at_end(record, size - back);
      }
    }
    refuse("expected a zip directory at the end, found none (file cut short?)");
  }

  Directory at_end(std::span<const std::byte> end, std::size_t end_begin) const {
    Directory directory{number<std::uint16_t>(end, 10), number<std::uint32_t>(end, 12),
                        number<std::uint32_t>(end, 16)};
    std::uint64_t directory_end = end_begin;
    // PyTorch writes a zip64 record even where the numbers would fit the old one.
    if (end_begin >= kZip64LocatorSize &&
        number<std::uint32_t>(bytes_, end_begin - kZip64LocatorSize) == kZip64Locator) {
      const std::size_t locator = end_begin - kZip64LocatorSize;
      const auto begin = number<std::uint64_t>(bytes_, locator + 8);
      if (locator < kZip64EndSize || begin > locator - kZip64EndSize ||
          number<std::uint32_t>(bytes_, static_cast<std::size_t>(begin)) != kZip64End) {
        refuse("expected the zip64 end record that its locator tells of, found none at byte " +
               std::to_string(begin));
      }
      const auto record = bytes_.subspan(static_cast<std::size_t>(begin), kZip64EndSize);
      const Directory old = directory;
      directory = {number<std::uint64_t>(record, 32), number<std::uint64_t>(record, 40),
                   number<std::uint64_t>(record, 48)};
      directory_end = begin;
      if ((old.entries != kInZip64 && old.entries != directory.entries) ||
          (old.size != kInZip64Long && old.size != directory.size) ||
          (old.begin != kInZip64Long && old.begin != directory.begin)) {
        refuse("expected the same zip directory in the end record and the zip64 end record, found two");
      }
    } else if (number<std::uint16_t>(end, 4) != 0 || number<std::uint16_t>(end, 6) != 0) {
      refuse("expected a zip archive on one disk, found a part of several");
    }
    if (directory.begin > directory_end || directory.size != directory_end - directory.begin) {
      refuse("expected a zip directory that ends at byte " + std::to_string(directory_end) + ", found " +
             std::to_string(directory.size) + " bytes at " + std::to_string(directory.begin));
    }
    return directory;
  }

  /// Reads the entry at the front of `rest` and removes it there.
  ZipEntry read_entry(std::span<std::byte>& rest) const {
    if (rest.size() < kDirectoryHeaderSize || number<std::uint32_t>(rest, 0) != kDirectoryHeader) {
      refuse("expected an entry of the zip directory, found " + quote(text(rest).substr(0, 4)));
    }
    const std::size_t name_size = number<std::uint16_t>(rest, 28);
    const std::size_t extra_size = number<std::uint16_t>(rest, 30);
    const std::size_t comment_size = number<std::uint16_t>(rest, 32);
    const auto variable = rest.subspan(kDirectoryHeaderSize);
    if (name_size + extra_size + comment_size > variable.size()) {
      refuse("expected an entry inside the zip directory, found one past its end");
    }
    ZipEntry entry;
    entry.name = text(variable.first(name_size));
    check_name(entry);
    const auto flags = number<std::uint16_t>(rest, 8);
    const auto method = number<std::uint16_t>(rest, 10);
    if ((flags & kEncrypted) != 0) {
      refuse(entry, "expected plain data, found it encrypted");
    }
    if (method != 0 && method != 8) {
      refuse(entry, "expected the method stored (0) or deflated (8), found " + std::to_string(method));
    }
    entry.deflated = method == 8;
    entry.crc = number<std::uint32_t>(rest, 16);
    entry.size = number<std::uint32_t>(rest, 24);
    entry.header = number<std::uint32_t>(rest, 42);
    std::uint64_t packed = number<std::uint32_t>(rest, 20);
    read_zip64(entry, packed, variable.subspan(name_size, extra_size));
    if (!entry.deflated && packed != entry.size) {
      refuse(entry, "expected as many bytes in the file as stored, " + std::to_string(entry.size) +
                        ", found " + std::to_string(packed));
    }
    locate(entry, packed, method, flags);
    rest = variable.subspan(name_size + extra_size + comment_size);
    return entry;
  }

  void check_name(const ZipEntry& entry) const {
    if (entry.name.empty() || entry.name.find('\0') != std::string::npos || !is_utf8(entry.name)) {
      refuse("expected entries named in UTF-8, found " + quote(entry.name));
    }
  }

  /// Takes what does not fit 32 bits from the entry's zip64 field, where it stands in this order.
  void read_zip64(ZipEntry& entry, std::uint64_t& packed, std::span<const std::byte> extra) const {
    std::span<const std::byte> field;
    while (extra.size() >= 4) {
      const std::size_t size = number<std::uint16_t>(extra, 2);
      if (size > extra.size() - 4) {
        refuse(entry, "expected extra fields inside the entry, found one past its end");
      }
      if (number<std::uint16_t>(extra, 0) == kZip64Extra) {
        field = extra.subspan(4, size);
      }
      extra = extra.subspan(4 + size);
    }
    for (std::uint64_t* value : {&entry.size, &packed, &entry.header}) {
      if (*value == kInZip64Long) {
        if (field.size() < sizeof *value) {
          refuse(entry, "expected a zip64 field with its sizes and offset, found none");
        }
        *value = number<std::uint64_t>(field, 0);
        field = field.subspan(sizeof *value);
      }
    }
  }

  /// Finds the entry's data through its local header, which must tell what the directory tells.
  void locate(ZipEntry& entry, std::uint64_t packed, std::uint16_t method, std::uint16_t flags) const {
    if (entry.header > directory_begin_ || directory_begin_ - entry.header < kLocalHeaderSize) {
      refuse(entry, "expected a local header before the directory, found it at byte " +
                        std::to_string(entry.header));
    }
    const auto local = bytes_.subspan(static_cast<std::size_t>(entry.header),
                                      static_cast<std::size_t>(directory_begin_ - entry.header));
    if (number<std::uint32_t>(local, 0) != kLocalHeader) {
      refuse(entry, "expected a local header at byte " + std::to_string(entry.header) + ", found " +
                        quote(text(local).substr(0, 4)));
    }
    const std::size_t name_size = number<std::uint16_t>(local, 26);
    const std::size_t data = kLocalHeaderSize + name_size + number<std::uint16_t>(local, 28);
    if (data > local.size() || packed > local.size() - data) {
      refuse(entry, "expected " + std::to_string(packed) + " bytes before the directory, found " +
                        std::to_string(local.size() - std::min(data, local.size())));
    }
    if (text(local.subspan(kLocalHeaderSize, name_size)) != entry.name) {
      refuse(entry, "expected the same name in its local header, found " +
                        quote(text(local.subspan(kLocalHeaderSize, name_size))));
    }
    if (number<std::uint16_t>(local, 8) != method || (number<std::uint16_t>(local, 6) & kEncrypted) != 0) {
      refuse(entry, "expected the same method in its local header, found another");
    }
    const auto agrees = [&](std::size_t at, std::uint64_t expected) {
      const auto found = number<std::uint32_t>(local, at);
      return found == expected || found == kInZip64Long || (found == 0 && (flags & kSizesFollowData) != 0);
    };
    if (!agrees(18, packed) || !agrees(22, entry.size)) {
      refuse(entry, "expected the same sizes in its local header, found others");
    }
    entry.packed = local.subspan(data, static_cast<std::size_t>(packed));
  }

  void check_overlaps(const std::vector<ZipEntry>& entries) const {
    std::vector<const ZipEntry*> by_place;
    by_place.reserve(entries.size());
    for (const ZipEntry& entry : entries) {
      by_place.push_back(&entry);
    }
    std::sort(by_place.begin(), by_place.end(),
              [](const ZipEntry* a, const ZipEntry* b) { return a->header < b->header; });
    for (std::size_t i = 1; i < by_place.size(); ++i) {
      const std::byte* const next = bytes_.data() + by_place[i]->header;
      const std::span<std::byte> packed = by_place[i - 1]->packed;
      if (next < packed.data() + packed.size()) {
        refuse(*by_place[i], "expected bytes of its own, found those of " + quote(by_place[i - 1]->name));
      }
    }
  }

  void check_inflated_size(const std::vector<ZipEntry>& entries) const {
    const std::uint64_t limit = std::max(kMaxInflated, kMaxInflatedRatio * bytes_.size());
    std::uint64_t size = 0;
    for (const ZipEntry& entry : entries) {
      size += entry.deflated ? std::min(entry.size, limit + 1 - size) : 0;
    }
    if (size > limit) {
      refuse("expected deflated entries of at most " + std::to_string(limit) +
             " bytes together, found more; pack them without compression");
    }
  }

  [[noreturn]] void refuse(const std::string& why) const { throw Error(file_ + ": " + why); }

  [[noreturn]] void refuse(const ZipEntry& entry, const std::string& why) const {
    throw Error(file_ + ": entry " + quote(entry.name) + ": " + why);
  }

  std::span<std::byte> bytes_;
  const std::string& file_;
  std::uint64_t directory_begin_ = 0;
};

}  // namespace

ZipArchive::ZipArchive(Source source) : source_(std::move(source)) {
  entries_ = DirectoryReader(source_.bytes, source_.file).read();
  by_name_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!by_name_.emplace(entries_[i].name, i).second) {
      throw Error(source_.file + ": entry " + quote(entries_[i].name) + ": expected once, found twice");
    }
  }
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

OwnedBytes ZipArchive::read(const ZipEntry& entry, const std::string& where) const {
  const std::string here = where + ": entry " + quote(entry.name);
  OwnedBytes result{entry.packed, source_.owner, source_.is_mapped};
  if (entry.deflated) {
    auto inflated = std::make_shared<std::vector<std::byte>>(inflate(entry.packed, entry.size, here));
    release_pages(result);
    result = {*inflated, inflated};
  }
  if (source_.options.verify_checksums) {
    const std::uint32_t found = crc32(result.bytes);
    if (found != entry.crc) {
      throw Error(here + ": expected the CRC-32 " + hexadecimal(entry.crc) + ", found " + hexadecimal(found) +
                  " (damaged, or written under torch.serialization.set_crc32_options(False))");
    }
  }
  return result;
}

}  // namespace mha::weights
