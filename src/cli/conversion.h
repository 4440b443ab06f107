// What `mha convert` does between reading and writing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "mha/weights.h"

namespace mha::cli {

/// What is asked for.
struct ConversionOptions {
  std::string path;                   ///< the file that was read: for messages, and for config.json beside it
  std::optional<std::string> prefix;  ///< absent: the one block there is
  std::string layout;                 ///< a name or auto
  std::optional<int64_t> num_heads;   ///< absent: as config.json tells
};

struct Conversion {
  StateDict tensors;
  std::map<std::string, std::string> metadata;  ///< for the file that is written
  std::string text;                             ///< what was done, for people: lines of a title and a text
};

/// One attention block by the lesson's names. Throws `mha::Error` that names the file.
Conversion convert_block(const WeightsFile& file, const ConversionOptions& options);

/// The tensors under the prefix by their own names. Throws `mha::Error` when there are none.
Conversion keep_names(const WeightsFile& file, const ConversionOptions& options);

}  // namespace mha::cli
