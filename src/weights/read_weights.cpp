#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "mha/error.h"
#include "mha/weights.h"
#include "support/file_suffix.h"
#include "support/quote.h"
#include "weights/index.h"
#include "weights/mapped_file.h"
#include "weights/safetensors.h"
#include "weights/source.h"
#include "weights/torch_files.h"

namespace mha {
namespace {

using Bytes = std::span<std::byte>;

std::string_view text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// One file format: how to recognise it, and how to read it or, without a reader, what to say about it.
struct Format {
  bool (*recognises)(std::string_view content);
  WeightsFile (*read)(const weights::Source& source);
  std::string_view found;
};

/// Tried in this order.
constexpr std::array<Format, 7> kFormats{{
    // The eighth byte is the top one of the header's length: 0, which no text has there.
    {[](std::string_view content) { return content.size() > 8 && content[7] == '\0' && content[8] == '{'; },
     weights::read_safetensors, "safetensors"},
    {[](std::string_view content) {
       return content.starts_with("PK\x03\x04") || content.starts_with("PK\x05\x06");
     },
     weights::read_torch_archive, "a zip archive"},
    {weights::is_legacy, weights::read_legacy, "torch.save of before PyTorch 1.6"},
    {[](std::string_view content) {
       return content.size() > 1 && content[0] == '\x80' && content[1] >= 2 && content[1] <= 5;
     },
     nullptr, "a pickle that torch.save did not write, which is not supported"},
    {[](std::string_view content) { return content.starts_with("version https://git-lfs"); }, nullptr,
     "a Git LFS pointer; fetch the file itself with git lfs pull"},
    {[](std::string_view content) { return content.starts_with("\x89HDF\r\n"); }, nullptr,
     "HDF5 (Keras), which is not supported"},
    {[](std::string_view content) { return content.starts_with("GGUF"); }, nullptr,
     "GGUF (llama.cpp), which is not supported"},
}};

/// JSON: an index, the one format that leads to other files. A safetensors file begins with the length of its
/// header, whose lowest byte is a brace when it is 123.
bool is_index(Bytes bytes) {
  return text(bytes).starts_with("{") && !kFormats.front().recognises(text(bytes));
}

weights::Source open(const std::filesystem::path& path, const ReadOptions& options) {
  const std::shared_ptr<weights::MappedFile> mapping = weights::MappedFile::open(path);
  return {mapping->bytes(), mapping, show(path), options, /*is_mapped=*/true};
}

/// Reads a file that stands for itself.
WeightsFile read_single(const weights::Source& source) {
  const std::string_view content = text(source.bytes);
  const auto* const format = std::find_if(kFormats.begin(), kFormats.end(),
                                          [&](const Format& each) { return each.recognises(content); });
  if (format == kFormats.end()) {
    throw Error(source.file +
                ": not a weights file: expected safetensors (8 bytes of length, then '{') or a file of "
                "PyTorch, found " +
                std::to_string(content.size()) + " bytes that begin with " + quote(content.substr(0, 16)));
  }
  if (format->read == nullptr) {
    throw Error(source.file + ": expected safetensors or a file of PyTorch, found " +
                std::string(format->found));
  }
  return format->read(source);
}

}  // namespace

WeightsFile read_weights_file(const std::filesystem::path& path, const ReadOptions& options) {
  const weights::Source source = open(path, options);
  if (!is_index(source.bytes)) {
    return read_single(source);
  }
  return weights::read_index(source, [&](const std::string& shard) {
    return read_single(open(path.parent_path() / shard, options));
  });
}

StateDict read_weights(const std::filesystem::path& path, const ReadOptions& options) {
  return read_weights_file(path, options).tensors;
}

void write_weights(const std::filesystem::path& path, const StateDict& tensors,
                   const std::map<std::string, std::string>& metadata, const WriteOptions& options) {
  if (!has_torch_suffix(path)) {
    weights::write_safetensors(path, tensors, metadata, options);
    return;
  }
  if (!metadata.empty()) {
    throw Error(show(path) + ": expected no metadata, for which torch.save has no place, found the key " +
                quote(metadata.begin()->first) + "; write a .safetensors file");
  }
  weights::write_torch_archive(path, tensors, options);
}

}  // namespace mha
