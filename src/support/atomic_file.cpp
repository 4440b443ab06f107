#include "support/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>
#include <system_error>

#include "mha/error.h"
#include "support/quote.h"

namespace mha {
namespace {

namespace fs = std::filesystem;

/// Some systems refuse to write 2 GiB or more at once.
constexpr std::size_t kMaxWrite = std::size_t{1} << 30;
constexpr int kMaxTries = 100;
/// Read and write for everybody, less what the umask takes: as any new file.
constexpr mode_t kMode = 0666;

fs::path random_name(const fs::path& directory) {
  std::random_device random;
  std::string digits;
  for (int i = 0; i < 16; ++i) {
    digits += "0123456789abcdef"[random() % 16];
  }
  return directory / (".mha-" + digits + ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path), target_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) {
      throw Error(show(path) + ": expected a file to write, found " +
                  (fs::is_directory(status) ? "a directory" : "something that is not a regular file"));
    }
    const fs::path resolved = fs::canonical(path, error);
    target_ = error ? path : resolved;
  }
  for (int tries = 0; descriptor_ < 0; ++tries) {
    temporary_ = random_name(target_.parent_path());
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    if (descriptor_ < 0 && (errno != EEXIST || tries == kMaxTries)) {
      fail("cannot create", errno);
    }
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, std::size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(size, kMaxWrite));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      fail("cannot write", written < 0 ? errno : ENOSPC);
    }
    next += written;
    size -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  // Some file systems report a full disk only here.
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) {
    fail("cannot write", errno);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail("cannot rename the finished temporary file", errno);
  }
  temporary_.clear();
}

void AtomicFile::fail(const char* what, int error) const {
  throw Error(show(path_) + ": " + what + ": " + std::generic_category().message(error));
}

}  // namespace mha
