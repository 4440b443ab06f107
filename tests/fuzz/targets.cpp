#include "fuzz/targets.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mha/error.h"
#include "mha/weights.h"
#include "support/quote.h"
#include "weights/flatten.h"
#include "weights/index.h"
#include "weights/pickle.h"
#include "weights/safetensors.h"
#include "weights/script_classes.h"
#include "weights/source.h"
#include "weights/torch_files.h"
#include "weights/torch_tensors.h"
#include "weights/zip_archive.h"

namespace mha::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

/// A copy of its own and of just this size, as AddressSanitizer needs it to see what lies outside.
std::shared_ptr<Bytes> copy(Input input) {
  const auto bytes = std::as_bytes(input);
  return std::make_shared<Bytes>(bytes.begin(), bytes.end());
}

void expect(bool holds, const char* what) {
  if (!holds) {
    throw std::logic_error(what);
  }
}

/// Reads all memory between a tensor's first element and its last. Its elements may be far more than that: an
/// expanded tensor repeats them.
void touch(const at::Tensor& tensor) {
  expect(tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided,
         "expected a dense tensor on the CPU");
  if (tensor.numel() == 0) {
    return;
  }
  std::size_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    expect(tensor.stride(i) >= 0, "expected no negative stride");
    last += static_cast<std::size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  const auto* const begin = static_cast<const unsigned char*>(tensor.const_data_ptr());
  const std::size_t item = tensor.element_size();
  expect(reinterpret_cast<std::uintptr_t>(begin) % std::min<std::size_t>(item, 8) == 0,
         "expected data aligned to its item size");
  unsigned sum = 0;
  for (const unsigned char* byte = begin; byte != begin + (last + 1) * item; ++byte) {
    sum += *byte;
  }
  [[maybe_unused]] static volatile unsigned sink;  // so that the reads stay
  sink = sum;
}

void touch(const StateDict& tensors) {
  for (const auto& item : tensors) {
    touch(item.value());
  }
}

using Reader = WeightsFile (*)(const weights::Source& source);

weights::Source source_of(Input input, ReadOptions options = {}) {
  const std::shared_ptr<Bytes> bytes = copy(input);
  return {*bytes, bytes, "file", std::move(options)};
}

/// Tensors must live on without anything else that the reader was given.
void read(Input input, Reader reader) {
  WeightsFile file;
  try {
    file = reader(source_of(input));
  } catch (const Error& error) {
    expect(std::string_view(error.what()).starts_with("file: "), "expected a message that names the file");
    return;
  }
  touch(file.tensors);
}

/// The pickle of an archive whose storages are given: what would be found behind a well-formed directory.
void pickle(Input input) {
  constexpr std::size_t kStorageBytes = 16;  // as in the corpus
  StateDict tensors("Tensor");
  try {
    const std::shared_ptr<Bytes> bytes = copy(input);
    weights::TensorMaker maker([](const weights::StorageReference& reference, const std::string& where) {
      // Those of a key that begins with u do not lie on a multiple of any item size.
      const bool aligned = !reference.key.starts_with('u');
      if (reference.key.empty() || reference.key.size() > 2) {
        throw Error(where + ": expected its data in an entry, found none");
      }
      const auto memory = std::make_shared<Bytes>(kStorageBytes + (aligned ? 0 : 1), std::byte{1});
      return weights::OwnedBytes{std::span(*memory).last(kStorageBytes), memory};
    });
    const weights::Pickle read_back = weights::read_pickle(*bytes, "file: pickle");
    // The classes of its TorchScript objects are listed in the pickle itself: any bytes are code as good as others.
    weights::ScriptClasses classes([&](const std::string&) {
      return std::optional(std::string(reinterpret_cast<const char*>(input.data()), input.size()));
    });
    tensors = weights::flatten(read_back.value, maker, &classes, "file");
  } catch (const Error& error) {
    expect(std::string_view(error.what()).starts_with("file: "), "expected a message that names the file");
    return;
  }
  touch(tensors);
}

void archive(Input input) {
  read(input, weights::read_torch_archive);
}

void legacy(Input input) {
  read(input, weights::read_legacy);
}

void safetensors(Input input) {
  read(input, weights::read_safetensors);
}

/// An index whose shards are there as far as their names are short, each with the tensors "w" and "a.b".
void index(Input input) {
  read(input, [](const weights::Source& source) {
    return weights::read_index(source, [&](const std::string& shard) {
      expect(shard.find('/') == std::string::npos && shard != "..", "expected a plain file name");
      if (shard.size() > 32) {
        throw Error("file: " + quote(shard) + ": cannot open");
      }
      WeightsFile file{StateDict("Tensor"), {}, shard.size() % 2 == 0 ? "safetensors" : "torch-save"};
      file.tensors.insert("w", at::zeros({2}));
      file.tensors.insert("a.b", at::zeros({}));
      return file;
    });
  });
}

constexpr std::array<Target, 5> kTargets{{
    {"pickle", pickle},
    {"archive", archive},
    {"legacy", legacy},
    {"index", index},
    {"safetensors", safetensors},
}};

}  // namespace

const Target* find_target(std::string_view name) {
  const auto* const found = std::find_if(kTargets.begin(), kTargets.end(),
                                         [name](const Target& each) { return each.name == name; });
  return found == kTargets.end() ? nullptr : found;
}

}  // namespace mha::fuzz
