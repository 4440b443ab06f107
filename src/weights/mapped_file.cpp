#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "mha/error.h"
#include "support/quote.h"

namespace mha::weights {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw Error(show(path) + ": " + why);
}

[[noreturn]] void refuse_errno(const std::filesystem::path& path, const std::string& what) {
  refuse(path, what + ": " + std::generic_category().message(errno));
}

struct Descriptor {
  int value;
  ~Descriptor() { ::close(value); }
};

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode)    ? "a directory (name a file in it, or the index of its shards)"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

}  // namespace

std::shared_ptr<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever. It means nothing for regular files.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) {
    refuse_errno(path, "cannot open");
  }
  const Descriptor guard{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    refuse_errno(path, "cannot read its status");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(path, std::string("expected a regular file, found ") + kind_of(status.st_mode));
  }
  if (status.st_size <= 0) {
    refuse(path, "expected a weights file, found an empty file");
  }
  if (static_cast<std::uintmax_t>(status.st_size) > SIZE_MAX) {
    refuse(path,
           "expected a file that fits the address space, found " + std::to_string(status.st_size) + " bytes");
  }
  // Made before the mapping, so that nothing can throw between the mapping and its owner.
  std::shared_ptr<MappedFile> file(new MappedFile);
  const auto size = static_cast<std::size_t>(status.st_size);
  // MAP_NORESERVE: a private writable mapping would otherwise need swap for the whole file, though few write
  // to it.
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (data == MAP_FAILED) {
    refuse_errno(path, "cannot map " + std::to_string(size) + " bytes");
  }
  file->bytes_ = {static_cast<std::byte*>(data), size};
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

void release_pages(const OwnedBytes& bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.bytes.data());
  const std::uintptr_t end = (begin + bytes.bytes.size()) / page * page;
  const std::uintptr_t first = (begin + page - 1) / page * page;
  if (bytes.is_mapped && first < end) {
    // It cannot fail on a mapping, and nothing would be lost if it did.
    ::madvise(bytes.bytes.data() + (first - begin), end - first, MADV_DONTNEED);
  }
}

}  // namespace mha::weights
