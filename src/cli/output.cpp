#include "cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "mha/error.h"

namespace mha::cli {

void print(std::FILE* stream, const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stream) != text.size() || std::fflush(stream) != 0) {
    const auto reason = std::generic_category().message(errno);
    throw Error((stream == stdout ? "standard output" : "standard error") + std::string(": cannot write: ") +
                reason);
  }
}

bool use_color(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && isatty(fileno(stream)) == 1;
}

}  // namespace mha::cli
