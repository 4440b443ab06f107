/// What the tests of weights share: files made byte by byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "testing.h"

namespace mha::testing {

/// The names in a folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// `count` as a safetensors file begins with it.
inline std::string length_bytes(std::uint64_t count) {
  std::string bytes(sizeof count, '\0');
  std::memcpy(bytes.data(), &count, sizeof count);
  return bytes;
}

/// A safetensors file of this header and `data_size` bytes 0, 1, 2, ...
inline std::string safetensors(const std::string& header, std::size_t data_size = 0) {
  std::string data(data_size, '\0');
  for (std::size_t i = 0; i < data_size; ++i) {
    data[i] = static_cast<char>(i);
  }
  return length_bytes(header.size()) + header + data;
}

}  // namespace mha::testing
