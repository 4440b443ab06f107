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
  const OwnedBytes content = archive.read(*entry, where);
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

}  // namespace

WeightsFile read_torch_archive(std::span<std::byte> bytes, const std::shared_ptr<void>& owner,
                               const std::string& file) {
  const ZipArchive archive(bytes, owner, file);
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
  const OwnedBytes content = archive.read(entry, where);
  const Pickle pickle = read_pickle(content.bytes, where);
  WeightsFile result{flatten(pickle.value, tensors, file), {}};
  if (result.tensors.is_empty() && has_constants(archive, folder)) {
    throw Error(file +
                ": expected parameters, found none: this TorchScript module was frozen, which turned them "
                "into constants without names; save it before torch.jit.freeze");
  }
  return result;
}

}  // namespace mha::weights
