/// What is said of JSON that nlohmann's parser refuses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/detail/exceptions.hpp>
#include <string>
#include <string_view>

#include "mha/error.h"
#include "support/quote.h"

namespace mha::weights {

/// Throws an `mha::Error` that begins with `file` and names `what` was expected, such as "an index".
[[noreturn]] inline void refuse_json(const std::string& file, const std::string& what, std::size_t position,
                                     const std::string& found) {
  throw Error(file + ": expected " + what + " of valid JSON, found at its byte " + std::to_string(position) +
              ": " + found);
}

/// The same with the parser's own words.
[[noreturn]] inline void refuse_json(const std::string& file, const std::string& what, std::size_t position,
                                     const nlohmann::detail::exception& error) {
  std::string why = error.what();
  why.erase(0, std::min(why.find("] "), why.size() - 2) + 2);  // the exception's number
  refuse_json(file, what, position, escape(why));
}

/// The parser takes a NUL for the end of its input.
inline void refuse_nul(std::string_view json, const std::string& file, const std::string& what) {
  if (const std::size_t nul = json.find('\0'); nul != std::string_view::npos) {
    refuse_json(file, what, nul, "NUL");
  }
}

}  // namespace mha::weights
