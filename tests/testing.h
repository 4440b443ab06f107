// What every test needs.
#pragma once

#include <c10/util/Exception.h>
#include <stdlib.h>  // mkdtemp
#include <torch/types.h>

#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>

#include "mha/error.h"
#include "mha/parity.h"

namespace mha::testing {

/// The one-line message of the error that `action` throws; empty when it throws none.
template <typename Error = std::exception, typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if constexpr (std::is_base_of_v<c10::Error, Error>) {
      return error.what_without_backtrace();
    }
    return error.what();
  }
  return "";
}

/// Shape, dtype and every bit; NaN equals NaN at the same index.
inline bool bit_equal(const torch::Tensor& a, const torch::Tensor& b) {
  return parity::compare("", a, b).verdict == parity::Verdict::bit_exact;
}

/// A folder of its own that is gone afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "mha-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot make the folder " + name);
    }
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace mha::testing
