// Suffixes of weights files, in small or capital letters.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace mha {

/// Those that PyTorch's users give to what torch.save writes.
inline constexpr std::array<std::string_view, 4> torch_suffixes{".pt", ".pth", ".bin", ".ckpt"};

/// In small letters.
inline std::string lower_suffix(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return suffix;
}

inline bool has_torch_suffix(const std::filesystem::path& path) {
  return std::find(torch_suffixes.begin(), torch_suffixes.end(), lower_suffix(path)) != torch_suffixes.end();
}

}  // namespace mha
