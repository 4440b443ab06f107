#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "mha/error.h"
#include "support/checked_math.h"
#include "support/quote.h"
#include "weights/flatten.h"
#include "weights/pickle.h"
#include "weights/torch_files.h"
#include "weights/torch_tensors.h"

namespace mha::weights {
namespace {

using Kind = PickleValue::Kind;

// The stream: four pickles (a magic number, a version, facts on the machine, the object), one of the keys of
// its storages, then for each key the number of elements in 8 bytes and the elements.
constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::int64_t kVersion = 1001;

class LegacyReader {
 public:
  explicit LegacyReader(const Source& source)
      : file_size_(source.bytes.size()),
        rest_(source.bytes),
        owner_(source.owner),
        is_mapped_(source.is_mapped),
        file_(source.file) {}

  StateDict read() && {
    const Pickle magic = next("the magic number");
    if (!magic.value.is(Kind::kBigInteger) || magic.value.text() != kMagic) {
      refuse("expected the magic number of torch.save, found " + describe(magic.value));
    }
    const Pickle version = next("the version");
    if (!version.value.is(Kind::kInteger) || version.value.integer() != kVersion) {
      refuse("expected version " + std::to_string(kVersion) + ", found " + describe(version.value));
    }
    check_byte_order(next("the facts on the machine"));
    const Pickle object = next("the object");
    const Pickle keys = next("the keys");
    read_storages(object, keys.value);

    TensorMaker tensors([this](const StorageReference& reference, const std::string& where) {
      const auto found = storages_.find(reference.key);
      if (found == storages_.end() || !found->second.read) {
        throw Error(where + ": expected a storage " + quote(reference.key) + ", found none");
      }
      return OwnedBytes{found->second.bytes, owner_, is_mapped_};
    });
    return flatten(object.value, tensors, /*classes=*/nullptr, file_);
  }

 private:
  struct Storage {
    StorageReference reference;
    std::span<std::byte> bytes;
    bool read = false;
  };

  Pickle next(const std::string& what) {
    Pickle pickle = read_pickle(rest_, file_ + ": " + what, file_size_);
    rest_ = rest_.subspan(pickle.size);
    return pickle;
  }

  void check_byte_order(const Pickle& facts) const {
    const PickleValue* const little =
        facts.value.is(Kind::kDict) ? find_key(facts.value.node(), "little_endian") : nullptr;
    if (little == nullptr || !little->is(Kind::kBool) || little->integer() == 0) {
      refuse("expected a file of a little-endian machine, found " +
             (little == nullptr ? describe(facts.value) : "little_endian " + describe(*little)));
    }
  }

  /// Finds each storage's bytes: only the object tells how large the elements are.
  void read_storages(const Pickle& object, const PickleValue& keys) {
    for (const PickleNode* persistent : object.persistent) {
      if (is_class(*persistent)) {
        continue;
      }
      const StorageReference reference = storage_reference(*persistent, file_);
      const auto [found, added] = storages_.try_emplace(reference.key, Storage{reference, {}});
      if (!added && found->second.reference.dtype != reference.dtype) {
        refuse("storage " + quote(reference.key) + ": expected elements of one dtype, found two");
      }
    }
    if (!keys.is(Kind::kList)) {
      refuse("expected a list of the keys of storages, found " + describe(keys));
    }
    for (const PickleValue& key : keys.node().items) {
      const auto found = key.is(Kind::kText) ? storages_.find(key.text()) : storages_.end();
      if (found == storages_.end() || found->second.read) {
        refuse("expected the key of a storage that the object refers to, once, found " + describe(key));
      }
      read_storage(found->second);
    }
  }

  static bool is_class(const PickleNode& persistent) {
    const PickleValue& id = persistent.arguments;
    return id.is(Kind::kTuple) && !id.node().items.empty() && id.node().items[0].is(Kind::kText) &&
           id.node().items[0].text() == "module";
  }

  void read_storage(Storage& storage) {
    const StorageReference& reference = storage.reference;
    const std::string where = "storage " + quote(reference.key) + ": expected ";
    std::int64_t elements = 0;
    if (rest_.size() < sizeof elements) {
      refuse(where + "its number of elements, found the end of the file (cut short)");
    }
    std::memcpy(&elements, rest_.data(), sizeof elements);
    rest_ = rest_.subspan(sizeof elements);
    if (elements != reference.elements) {
      refuse(where + std::to_string(reference.elements) + " elements, found " + std::to_string(elements));
    }
    const auto bytes = multiply(elements, static_cast<std::int64_t>(c10::elementSize(reference.dtype)));
    if (!bytes || static_cast<std::uint64_t>(*bytes) > rest_.size()) {
      refuse(where + std::to_string(elements) + " elements of " +
             std::to_string(c10::elementSize(reference.dtype)) + " bytes, found " +
             std::to_string(rest_.size()) + " bytes (cut short)");
    }
    storage.bytes = rest_.first(static_cast<std::size_t>(*bytes));
    storage.read = true;
    rest_ = rest_.subspan(storage.bytes.size());
  }

  [[noreturn]] void refuse(const std::string& why) const { throw Error(file_ + ": " + why); }

  std::size_t file_size_;
  std::span<std::byte> rest_;
  std::shared_ptr<void> owner_;
  bool is_mapped_;
  const std::string& file_;
  std::unordered_map<std::string_view, Storage> storages_;
};

}  // namespace

WeightsFile read_legacy(const Source& source) {
  return {LegacyReader(source).read(), {}, "torch-save-legacy"};
}

bool is_legacy(std::string_view content) {
  constexpr std::size_t kWithin = 32;  // the protocol, perhaps a frame, and the opcode come first
  return content.size() > 2 && content[0] == '\x80' && content[1] >= 1 && content[1] <= 5 &&
         content.substr(0, kWithin).find(kMagic) != std::string_view::npos;
}

}  // namespace mha::weights
