// Text to people and programs, none of it lost silently.
#pragma once

#include <cstdio>
#include <string>

namespace mha::cli {

/// Writes all of `text` and flushes. Throws `mha::Error` when the stream cannot take it.
void print(std::FILE* stream, const std::string& text);

/// Colours only on a terminal, and not when NO_COLOR is set.
bool use_color(std::FILE* stream);

}  // namespace mha::cli
