// Runs inputs through a target without a fuzzer: replay TARGET FILE_OR_FOLDER...
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/targets.h"

namespace {

namespace fs = std::filesystem;

/// What fuzzers are given: larger inputs take long and show nothing that small ones do not.
constexpr std::uintmax_t kMaxBytes = std::uintmax_t{8} << 20;

std::vector<fs::path> inputs(int count, char** names) {
  std::vector<fs::path> found;
  for (int i = 0; i < count; ++i) {
    if (!fs::is_directory(names[i])) {
      found.emplace_back(names[i]);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(names[i])) {
      if (entry.is_regular_file() && entry.file_size() <= kMaxBytes) {
        found.push_back(entry.path());
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  const mha::fuzz::Target* const target = argc > 2 ? mha::fuzz::find_target(argv[1]) : nullptr;
  if (target == nullptr) {
    std::fputs("usage: replay TARGET FILE_OR_FOLDER...\n", stderr);
    return 2;
  }
  int failed = 0;
  const std::vector<fs::path> files = inputs(argc - 2, argv + 2);
  for (const fs::path& path : files) {
    const std::string bytes = content(path);
    try {
      target->run({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", path.c_str(), error.what());
      ++failed;
    }
  }
  std::printf("%s: %zu inputs, %d failed\n", argv[1], files.size(), failed);
  return failed != 0 || files.empty() ? 1 : 0;
}
