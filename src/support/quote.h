/// How messages show text that comes from files: on one line, short, and harmless on a terminal.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace mha {

/// `text` with quotes, backslashes, control and invisible characters and broken UTF-8 escaped (`\xNN`), cut
/// after about `limit` bytes.
std::string escape(std::string_view text, std::size_t limit = 200);

/// `escape(text)` in double quotes.
std::string quote(std::string_view text);

/// `text` on one line that is harmless on a terminal; quotes and backslashes stay, so escaped parts are not
/// escaped again.
std::string one_line(std::string_view text);

/// A path for messages: escaped, never cut.
std::string show(const std::filesystem::path& path);

/// Whether `text` is valid UTF-8 (no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

}  // namespace mha
