/// The index of a sharded file: which file holds which tensor.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weights/source.h"

namespace mha::weights {

struct Index {
  struct Entry {
    std::string name;   ///< of a tensor
    std::size_t shard;  ///< which of `shards` holds it
  };

  std::vector<Entry> entries;       ///< in the order of the file; names are unique
  std::vector<std::string> shards;  ///< plain file names, each once
  std::map<std::string, std::string> metadata;
};

/// Reads `{"metadata": {...}, "weight_map": {"name": "shard", ...}}`; other keys are allowed and ignored. An
/// `mha::Error` that begins with `file` tells what is broken.
Index parse_index(std::string_view json, const std::string& file);

/// The tensors that an index lists, in its order, from the shards that `read_shard` reads: one by one, each
/// once, by their names in the index.
WeightsFile read_index(const Source& source,
                       const std::function<WeightsFile(const std::string& shard)>& read_shard);

}  // namespace mha::weights
