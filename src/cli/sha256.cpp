#include "cli/sha256.h"

#include "mha/error.h"

#ifdef MHA_HAVE_OPENSSL

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

namespace mha::cli {
namespace {

void check(int result) {
  if (result != 1) {
    throw Error("OpenSSL cannot compute SHA-256 here");
  }
}

}  // namespace

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

bool has_sha256() {
  return true;
}

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::update(const void* data, size_t size) {
  check(EVP_DigestUpdate(state_->context.get(), data, size));
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  check(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size));
  check(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += fmt::format("{:02x}", digest.at(i));
  }
  return text;
}

}  // namespace mha::cli

#else

namespace mha::cli {

struct Sha256::State {};

bool has_sha256() {
  return false;
}

Sha256::Sha256() {
  throw Error("expected a build with OpenSSL to compute SHA-256, found one without");
}

Sha256::~Sha256() = default;

void Sha256::update(const void* /*data*/, size_t /*size*/) {}

std::string Sha256::finish() {
  return "";
}

}  // namespace mha::cli

#endif
