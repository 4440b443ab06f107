/// Tensors out of the records that PyTorch's pickles describe them with.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weights/pickle_value.h"
#include "weights/zip_archive.h"

namespace mha::weights {

/// A storage as a pickle refers to it: ("storage", class, key, location, elements).
struct StorageReference {
  std::string_view key;
  c10::ScalarType dtype;
  std::int64_t elements;
};

/// What a persistent id refers to; an `mha::Error` that begins with `where` when it is no storage.
StorageReference storage_reference(const PickleNode& persistent, const std::string& where);

/// Whether a value stands for a tensor of any kind.
bool is_tensor(const PickleValue& value);

/// The value itself, without the wrappers that TorchScript puts around lists and dicts.
PickleValue unwrap(PickleValue value);

/// Makes tensors and keeps them: a record or storage that occurs twice is made once.
class TensorMaker {
 public:
  /// The bytes of a storage; an `mha::Error` that begins with `where` when there is none of that key.
  using Storages = std::function<OwnedBytes(const StorageReference& reference, const std::string& where)>;

  explicit TensorMaker(Storages storages) : storages_(std::move(storages)) {}

  /// The tensor of a record for which `is_tensor` holds, on the CPU wherever it was saved. Shape, strides and
  /// offset are checked against the bytes of the storage. `where` begins the message of an `mha::Error`.
  at::Tensor make(const PickleValue& record, const std::string& where);

 private:
  /// All elements of a storage, conjugated or negated: what Python does only when it looks at them.
  struct Resolved {
    c10::ScalarType dtype;
    bool conjugated;
    bool negated;
    at::Tensor elements;
  };

  struct KeptStorage {
    OwnedBytes bytes;
    c10::Storage in_place;
    c10::Storage copy;  // aligned; made when the bytes in place are not
    std::vector<Resolved> resolved;
  };

  at::Tensor make_view(const std::vector<PickleValue>& arguments, bool has_dtype, const std::string& where);
  KeptStorage& keep(const StorageReference& reference, const std::string& where);
  static c10::Storage aligned(KeptStorage& kept, std::size_t item_size);
  static const at::Tensor& resolve(KeptStorage& kept, Resolved wanted, const std::string& where);

  Storages storages_;
  std::unordered_map<std::string, KeptStorage> kept_;
  std::unordered_map<const PickleNode*, at::Tensor> made_;
};

}  // namespace mha::weights
