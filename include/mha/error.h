/// Errors about files: everything else a caller can get wrong is a `c10::Error` (ValueError kind).
#pragma once

#include <stdexcept>
#include <string>

#include "mha/export.h"

namespace mha {

/// A file that cannot be read, written or used: one line that names the file, what was expected and what was
/// found.
class MHA_EXPORT Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace mha
