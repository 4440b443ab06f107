#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cli/text.h"

namespace mha::cli {
namespace {

constexpr std::chrono::milliseconds patience{300};
constexpr std::chrono::milliseconds interval{100};

/// Where it cannot be written nothing is lost.
void write(const std::string& text) {
  static_cast<void>(std::fputs(text.c_str(), stderr));
  static_cast<void>(std::fflush(stderr));
}

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)), on_terminal_(isatty(fileno(stderr)) == 1), next_(Clock::now() + patience) {}

Progress::~Progress() {
  if (shown_) {
    write("\r\x1b[K");
  }
}

void Progress::show(uint64_t done, uint64_t total) {
  if (!on_terminal_ || total == 0 || Clock::now() < next_) {
    return;
  }
  next_ = Clock::now() + interval;
  shown_ = true;
  constexpr double percent = 100;
  const auto share = percent * static_cast<double>(done) / static_cast<double>(total);
  write(fmt::format("\r\x1b[K{}: {:.0f} % of {}", what_, share, size_text(static_cast<int64_t>(total))));
}

void Progress::say(const std::string& now) {
  if (on_terminal_) {
    shown_ = true;
    write("\r\x1b[K" + what_ + ": " + now);
  }
}

}  // namespace mha::cli
