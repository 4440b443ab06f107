#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "support/quote.h"

namespace mha::cli {
namespace {

constexpr int64_t kibi = 1024;

}  // namespace

std::string grouped(int64_t number) {
  auto digits = std::to_string(number);
  constexpr int64_t group = 3;
  for (auto i = static_cast<int64_t>(digits.size()) - group; i > 0; i -= group) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

std::string counted(size_t count, std::string_view what) {
  return fmt::format("{} {}{}", grouped(static_cast<int64_t>(count)), what, count == 1 ? "" : "s");
}

std::string size_text(int64_t bytes) {
  if (bytes < kibi) {
    return fmt::format("{} B", bytes);
  }
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto size = static_cast<double>(bytes) / kibi;
  size_t unit = 0;
  constexpr double next = 1023.95;  // would be shown as 1024.0
  while (size >= next && unit + 1 < units.size()) {
    size /= kibi;
    ++unit;
  }
  return fmt::format("{:.1f} {}", size, units.at(unit));
}

std::string exact_size_text(int64_t bytes) {
  const auto exact = counted(static_cast<size_t>(bytes), "byte");
  return bytes < kibi ? exact : fmt::format("{} ({})", size_text(bytes), exact);
}

std::string shell_text(const std::string& path) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%";
  if (!path.empty() && path.find_first_not_of(plain) == std::string::npos) {
    return path;
  }
  std::string quoted = "'";
  for (const char c : path) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return one_line(quoted + "'");
}

}  // namespace mha::cli
