// SHA-256, by OpenSSL where the tool was built with it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace mha::cli {

/// Whether this build can compute it.
bool has_sha256();

/// One digest. Throws `mha::Error` where `has_sha256()` is false.
class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();

  void update(const void* data, size_t size);

  /// The digest of all that was given, in lower-case hexadecimal; the next one begins anew.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mha::cli
