#include "weights/inflate.h"

#define ZLIB_CONST
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "mha/error.h"

namespace mha::weights {
namespace {

/// What one deflated byte can stand for at most: a length of 258 in a code of two bits.
constexpr std::uint64_t kMaxRatio = 1032;

/// zlib counts in 32 bits: the part of `bytes` that it can be given at once.
std::size_t piece(std::size_t bytes) {
  return std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max());
}

struct Inflater {
  z_stream stream{};

  Inflater() {
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {  // negative: no zlib header
      throw std::runtime_error("zlib cannot start");
    }
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream); }
};

}  // namespace

std::vector<std::byte> inflate(std::span<const std::byte> compressed, std::uint64_t size,
                               const std::string& where) {
  if (size / kMaxRatio > compressed.size()) {
    throw Error(where + ": expected at most " + std::to_string(kMaxRatio) +
                " times its compressed size, which is " + std::to_string(compressed.size()) + ", found " +
                std::to_string(size) + " bytes");
  }
  std::vector<std::byte> result(static_cast<std::size_t>(size));
  Inflater inflater;
  z_stream& stream = inflater.stream;
  std::span<const std::byte> in = compressed;
  std::span<std::byte> out = result;
  std::byte beyond{};  // room for one byte too many, so that it is noticed
  int status = Z_OK;
  while (status == Z_OK) {
    const std::size_t in_size = piece(in.size());
    const std::size_t out_size = out.empty() ? 1 : piece(out.size());
    stream.next_in = reinterpret_cast<const Bytef*>(in.data());
    stream.avail_in = static_cast<uInt>(in_size);
    stream.next_out = reinterpret_cast<Bytef*>(out.empty() ? &beyond : out.data());
    stream.avail_out = static_cast<uInt>(out_size);
    status = ::inflate(&stream, Z_NO_FLUSH);
    in = in.subspan(in_size - stream.avail_in);
    const std::size_t written = out_size - stream.avail_out;
    if (written > out.size()) {
      throw Error(where + ": expected " + std::to_string(size) + " bytes once inflated, found more");
    }
    out = out.subspan(written);
    if (status == Z_BUF_ERROR || (status == Z_OK && in.empty() && stream.avail_out != 0)) {
      throw Error(where + ": expected a whole deflate stream, found it cut short");
    }
  }
  if (status != Z_STREAM_END) {
    throw Error(where + ": expected a deflate stream, found bytes that are none");
  }
  if (!out.empty() || !in.empty()) {
    throw Error(where + ": expected " + std::to_string(size) + " bytes once inflated, found " +
                (out.empty() ? "bytes after the stream" : std::to_string(size - out.size())));
  }
  return result;
}

std::uint32_t crc32(std::span<const std::byte> bytes) {
  uLong value = ::crc32(0, nullptr, 0);
  while (!bytes.empty()) {
    const std::size_t size = piece(bytes.size());
    value = ::crc32(value, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(size));
    bytes = bytes.subspan(size);
  }
  return static_cast<std::uint32_t>(value);
}

}  // namespace mha::weights
