#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mha/error.h"
#include "support/quote.h"
#include "weights/flatten.h"
#include "weights/pickle.h"
#include "weights/torch_files.h"
#include "weights/torch_tensors.h"
#include "weights/zip_archive.h"

namespace mha::weights {
namespace {

constexpr std::string_view kPickle = "/data.pkl";
/// What is searched of an archive's code, which mostly has some hundred kilobytes: names found in it take about
/// ten times their bytes in memory.
constexpr std::uint64_t kMaxCode = std::uint64_t{8} << 20;

/// The folder that holds everything, from the one entry `<folder>/data.pkl`. Other folders may lie beside it:
/// some tools add their own.
std::string find_folder(const ZipArchive& archive, const std::string& file) {
  std::string folder;
  for (const ZipEntry& entry : archive.entries()) {
    if (!entry.name.ends_with(kPickle) || entry.name.find('/') != entry.name.size() - kPickle.size()) {
      continue;
    }
    if (!folder.empty()) {
      throw Error(file + ": expected one entry <folder>/data.pkl, found it in " + quote(folder) + " and in " +
                  quote(entry.name));
    }
    folder = entry.name.substr(0, entry.name.size() - kPickle.size());
  }
  if (folder.empty()) {
    const std::vector<ZipEntry>& entries = archive.entries();
    throw Error(file + ": expected a zip archive of PyTorch, with an entry <folder>/data.pkl, found " +
                std::to_string(entries.size()) + " entries" +
                (entries.empty() ? "" : ", the first " + quote(entries.front().name)));
  }
  return folder;
}

void check_byte_order(const ZipArchive& archive, const std::string& folder, const std::string& file) {
  const ZipEntry* const entry = archive.find(folder + "/byteorder");
  if (entry == nullptr) {  // written before PyTorch 2.1
    return;
  }
  const std::string where = file + ": entry " + quote(entry->name);
  const OwnedBytes content = archive.read(*entry, file);
  const std::string_view order(reinterpret_cast<const char*>(content.bytes.data()), content.bytes.size());
  if (order != "little") {
    throw Error(where + ": expected little-endian data (\"little\"), found " + quote(order) +
                "; save it again on a little-endian machine");
  }
}

/// TorchScript keeps beside its attributes the constants of its code, which have no names.
bool has_constants(const ZipArchive& archive, const std::string& folder) {
  for (const ZipEntry& entry : archive.entries()) {
    if (entry.name.starts_with(folder + "/constants/")) {
      return true;
    }
  }
  return false;
}

/// Which writer made the archive. TorchScript's writes constants, even when there are none; C++'s `torch::save`
/// goes through it with objects of a class of its own, which lack what every scripted or traced module has.
std::string format_of(const ZipArchive& archive, const std::string& folder, const PickleValue& value) {
  if (archive.find(folder + "/constants.pkl") == nullptr) {
    return "torch-save";
  }
  const bool is_object = value.is(PickleValue::Kind::kObject);
  const bool from_cpp = is_object && class_name(value.node()) == "__torch__.Module" &&
                        value.node().state.is(PickleValue::Kind::kDict) &&
                        find_key(value.node().state.node(), "training") == nullptr;
  return from_cpp ? "torch-save-cpp" : "torchscript";
}

/// Reads files of TorchScript's code, until there have been `kMaxCode` bytes of them.
ScriptClasses::Code code_reader(const ZipArchive& archive, const std::string& folder,
                                const std::string& file) {
  return [&archive, &file, folder = folder + "/code/",
          left = kMaxCode](const std::string& path) mutable -> std::optional<std::string> {
    const ZipEntry* const entry = archive.find(folder + path);
    if (entry == nullptr || entry->size > left) {
      return std::nullopt;
    }
    left -= entry->size;
    const OwnedBytes content = archive.read(*entry, file);
    return std::string(reinterpret_cast<const char*>(content.bytes.data()), content.bytes.size());
  };
}

}  // namespace

WeightsFile read_torch_archive(const Source& source) {
  const std::string& file = source.file;
  const ZipArchive archive(source);
  const std::string folder = find_folder(archive, file);
  check_byte_order(archive, folder, file);

  TensorMaker tensors([&](const StorageReference& reference, const std::string& where) {
    const std::string name = folder + "/data/" + std::string(reference.key);
    const ZipEntry* const entry = archive.find(name);
    if (entry == nullptr) {
      throw Error(where + ": expected its data in an entry " + quote(name) + ", found none");
    }
    return archive.read(*entry, where);
  });

  const ZipEntry& entry = *archive.find(folder + std::string(kPickle));
  const std::string where = file + ": entry " + quote(entry.name);
  const OwnedBytes content = archive.read(entry, file);
  const Pickle pickle = read_pickle(content.bytes, where, source.bytes.size());
  WeightsFile result;
  result.format = format_of(archive, folder, pickle.value);
  ScriptClasses classes(code_reader(archive, folder, file));
  result.tensors = flatten(pickle.value, tensors, result.format == "torchscript" ? &classes : nullptr, file);
  if (result.tensors.is_empty() && has_constants(archive, folder)) {
    throw Error(file +
                ": expected parameters, found none: this TorchScript module was frozen, which turned them "
                "into constants without names; save it before torch.jit.freeze");
  }
  return result;
}

}  // namespace mha::weights
