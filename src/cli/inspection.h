// What `mha inspect` finds out about a file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mha/weights.h"

namespace mha::cli {

struct TensorFacts {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t bytes = 0;
  std::optional<std::string> shares;  ///< the first tensor in the same memory, if that is another one
  std::string sha256;                 ///< of its row-major little-endian bytes; empty when not asked for
};

struct BlockFacts {
  AttentionBlock block;
  std::optional<int64_t> num_heads;        ///< as config.json tells
  std::vector<std::string> other_layouts;  ///< that fit the same prefix
};

struct Inspection {
  std::string path;
  std::string format;
  std::map<std::string, std::string> metadata;
  int64_t file_bytes = 0;
  std::vector<TensorFacts> tensors;
  std::vector<BlockFacts> blocks;
  std::string config_problem;  ///< why config.json beside the file is of no use; often empty
};

struct InspectionOptions {
  bool hash = false;  ///< reads every byte of the tensors
  bool verify_checksums = false;
};

/// Reads the file. Throws `mha::Error`.
Inspection inspect(const std::string& path, const InspectionOptions& options);

}  // namespace mha::cli
