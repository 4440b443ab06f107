// How far long work is: for people who wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace mha::cli {

/// A line on standard error, only on a terminal and only when the work takes long; gone when it is done.
class Progress {
 public:
  explicit Progress(std::string what);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// So many bytes of the whole are done.
  void show(uint64_t done, uint64_t total);

  /// What is being done now, at once.
  void say(const std::string& now);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  bool on_terminal_;
  bool shown_ = false;
  Clock::time_point next_;
};

}  // namespace mha::cli
