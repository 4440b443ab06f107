// Numbers as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mha::cli {

/// `1,234,567`.
std::string grouped(int64_t number);

/// `1 tensor`, `1,234 tensors`.
std::string counted(size_t count, std::string_view what);

/// `512 B`, `1.5 KiB`, `44.7 MiB`.
std::string size_text(int64_t bytes);

/// `44.7 MiB (46,886,400 bytes)`; `512 bytes`.
std::string exact_size_text(int64_t bytes);

/// A file name as a shell takes it: quoted where it needs to be, harmless on a terminal.
std::string shell_text(const std::string& path);

}  // namespace mha::cli
