/// PyTorch's files made byte by byte.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "weights/source.h"

namespace mha::testing {

/// `value` as its bytes lie in memory.
template <typename Number>
std::string bytes_of(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// `bytes`, which must outlive it, as the file "file" in memory.
inline weights::Source source_of(std::string& bytes, const ReadOptions& options = {}) {
  return {{reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}, nullptr, "file", options};
}

/// An entry of a zip archive; every number can be made wrong.
struct Entry {
  std::string name;
  std::string data;  // as it lies in the file
  std::uint16_t method = 0;
  std::uint16_t flags = 0;
  std::uint32_t size = static_cast<std::uint32_t>(data.size());  // once unpacked
  std::string local_name = name;
  std::uint16_t local_method = method;
  std::uint32_t local_size = size;
  std::uint32_t packed = static_cast<std::uint32_t>(data.size());
  std::int64_t header_shift = 0;  // of where the directory says the local header is
  std::string extra = {};         // of the directory
};

inline std::uint32_t crc_of(const std::string& data) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
}

struct ZipEnd {
  std::int64_t count_shift = 0;
  std::int64_t size_shift = 0;
  std::int64_t begin_shift = 0;
  std::uint16_t disk = 0;
  std::string comment = {};
  std::string before = {};  // before the end record
};

inline std::string zip(const std::vector<Entry>& entries, const ZipEnd& end = {}) {
  std::string file;
  std::string directory;
  for (const Entry& entry : entries) {
    const auto header =
        static_cast<std::uint32_t>(static_cast<std::int64_t>(file.size()) + entry.header_shift);
    const auto name_size = static_cast<std::uint16_t>(entry.name.size());
    directory += "PK\x01\x02" + bytes_of<std::uint16_t>(20) + bytes_of<std::uint16_t>(20) +
                 bytes_of(entry.flags) + bytes_of(entry.method) + std::string(4, '\0') +
                 bytes_of(crc_of(entry.data)) + bytes_of(entry.packed) + bytes_of(entry.size) +
                 bytes_of(name_size) + bytes_of(static_cast<std::uint16_t>(entry.extra.size())) +
                 std::string(10, '\0') + bytes_of(header) + entry.name + entry.extra;
    file += "PK\x03\x04" + bytes_of<std::uint16_t>(20) + bytes_of(entry.flags) +
            bytes_of(entry.local_method) + std::string(4, '\0') + bytes_of(crc_of(entry.data)) +
            bytes_of(entry.packed) + bytes_of(entry.local_size) +
            bytes_of(static_cast<std::uint16_t>(entry.local_name.size())) + std::string(2, '\0') +
            entry.local_name + entry.data;
  }
  const auto shifted = [](std::size_t value, std::int64_t shift) {
    return static_cast<std::int64_t>(value) + shift;
  };
  const auto count = static_cast<std::uint16_t>(shifted(entries.size(), end.count_shift));
  const auto begin = static_cast<std::uint32_t>(shifted(file.size(), end.begin_shift));
  return file + directory + end.before + "PK\x05\x06" + bytes_of(end.disk) + bytes_of(end.disk) +
         bytes_of(count) + bytes_of(count) +
         bytes_of(static_cast<std::uint32_t>(shifted(directory.size(), end.size_shift))) + bytes_of(begin) +
         bytes_of(static_cast<std::uint16_t>(end.comment.size())) + end.comment;
}

/// `data` as a raw deflate stream.
inline std::string deflated(const std::string& data) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string result(deflateBound(&stream, static_cast<uLong>(data.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

// Parts of pickles: each is what pushes one value.

inline std::string pickle(const std::string& value) {
  return "\x80\x02" + value + ".";
}

inline std::string text(const std::string& value) {
  return "X" + bytes_of(static_cast<std::uint32_t>(value.size())) + value;
}

inline std::string integer(std::int64_t value) {
  return "\x8a\x08" + bytes_of(value);
}

inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

inline std::string joined(const std::vector<std::string>& parts) {
  std::string result;
  for (const std::string& part : parts) {
    result += part;
  }
  return result;
}

inline std::string tuple(const std::vector<std::string>& items) {
  return "(" + joined(items) + "t";
}

inline std::string list(const std::vector<std::string>& items) {
  return "](" + joined(items) + "e";
}

inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string result = "}(";
  for (const auto& [key, value] : items) {
    result += key + value;
  }
  return result + "u";
}

inline std::string call(const std::string& callable, const std::vector<std::string>& arguments) {
  return callable + tuple(arguments) + "R";
}

inline std::string integers(const std::vector<std::int64_t>& values) {
  std::string result = "(";
  for (const std::int64_t value : values) {
    result += integer(value);
  }
  return result + "t";
}

inline std::string storage(const std::string& key, std::int64_t elements,
                           const std::string& type = "FloatStorage", const std::string& location = "cpu") {
  return tuple({text("storage"), global("torch", type), text(key), text(location), integer(elements)}) + "Q";
}

inline std::string ordered_dict() {
  return call(global("collections", "OrderedDict"), {});
}

inline std::string tensor(const std::string& storage, std::int64_t offset,
                          const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              {storage, integer(offset), integers(shape), integers(strides), "\x89", ordered_dict()});
}

/// An archive of this pickle and these storages, "0", "1", ...
inline std::string torch_archive(const std::string& data_pickle,
                                 const std::vector<std::string>& storages = {}) {
  std::vector<Entry> entries{{"m/data.pkl", data_pickle}};
  for (std::size_t i = 0; i < storages.size(); ++i) {
    entries.push_back({"m/data/" + std::to_string(i), storages[i]});
  }
  return zip(entries);
}

}  // namespace mha::testing
