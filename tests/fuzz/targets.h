/// What is fuzzed: each target takes any bytes, reads them as its format and looks at all that it got.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mha::fuzz {

using Input = std::span<const std::uint8_t>;

struct Target {
  std::string_view name;
  /// Returns when the input is read or refused with an `mha::Error`; whatever else is thrown is a finding.
  void (*run)(Input input);
};

/// The target of that name; nullptr when there is none.
const Target* find_target(std::string_view name);

}  // namespace mha::fuzz
