#include "support/quote.h"

#include <cstdint>

namespace mha {
namespace {

struct CodePoint {
  std::uint32_t value;
  std::size_t length;  // in bytes; 0: not valid UTF-8
};

CodePoint decode(std::string_view text) {
  const auto byte = [text](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) {
    return {0, 0};
  }
  std::uint32_t value = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) {
      return {0, 0};
    }
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return overlong || surrogate || value > 0x10FFFF ? CodePoint{0, 0} : CodePoint{value, length};
}

/// Characters that would break the line, move the cursor or reorder what a reader sees.
bool is_unprintable(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

void append_hex(std::string& into, std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    into += "\\x";
    into += digits[byte >> 4];
    into += digits[byte & 0xFu];
  }
}

}  // namespace

namespace {

std::string escaped(std::string_view text, std::size_t limit, std::string_view with_backslash) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (result.size() >= limit) {
      return result + "...";
    }
    const CodePoint c = decode(text.substr(i));
    const std::string_view bytes = text.substr(i, c.length == 0 ? 1 : c.length);
    if (c.length == 0 || is_unprintable(c.value)) {
      append_hex(result, bytes);
    } else {
      if (bytes.size() == 1 && with_backslash.find(bytes) != std::string_view::npos) {
        result += '\\';
      }
      result += bytes;
    }
    i += bytes.size();
  }
  return result;
}

}  // namespace

std::string escape(std::string_view text, std::size_t limit) {
  return escaped(text, limit, "\"\\");
}

std::string one_line(std::string_view text) {
  return escaped(text, std::string::npos, "");
}

std::string quote(std::string_view text) {
  return '"' + escape(text) + '"';
}

std::string show(const std::filesystem::path& path) {
  return escape(path.string(), std::string::npos);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = decode(text).length;
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace mha
