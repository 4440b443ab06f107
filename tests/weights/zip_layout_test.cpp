// Zip archives that are written, up to sizes that no test can write out: files with holes stand for them.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <string>

#include "mha/weights.h"
#include "torch_testing.h"
#include "weights/zip_archive.h"
#include "weights/zip_layout.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

/// A file that bytes are put into at any place.
class SparseFile {
 public:
  explicit SparseFile(const std::filesystem::path& path)
      : descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT, 0600)) {
    REQUIRE(descriptor_ >= 0);
  }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;
  ~SparseFile() { ::close(descriptor_); }

  void put(const std::string& bytes) {
    REQUIRE(::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(end_)) ==
            static_cast<ssize_t>(bytes.size()));
    end_ += bytes.size();
  }
  void skip(std::uint64_t size) { end_ += size; }
  std::uint64_t end() const { return end_; }

 private:
  int descriptor_;
  std::uint64_t end_ = 0;
};

TEST_CASE("zip layout: entries and archives of more than 4 GiB", "[weights][torch]") {
  constexpr std::uint64_t kHuge = (std::uint64_t{1} << 32) + 12;
  const std::string object =
      pickle(dict({{text("a"), tensor(storage("0", kHuge, "ByteStorage"), kHuge - 1, {1}, {1})},
                   {text("b"), tensor(storage("1", 2), 0, {2}, {1})},
                   {text("c"), tensor(storage("2", 0xFFFFFFFF, "ByteStorage"), 0, {1}, {1})}}));
  weights::ZipLayout layout;
  layout.add("m/data.pkl", object.size());
  layout.add("m/data/0", kHuge);
  layout.add("m/data/1", 8);
  layout.add("m/data/2", 0xFFFFFFFF);

  const TemporaryFolder folder;
  {
    SparseFile file(folder / "m.pt");
    const auto header = [&](std::size_t number) {
      file.put(layout.header(number, 0));
      CHECK(file.end() % 64 == 0);
    };
    header(0);
    file.put(object);
    header(1);
    file.skip(kHuge - 1);
    file.put("\x2a");
    header(2);
    file.put(bytes_of(1.5f) + bytes_of(2.5f));
    header(3);
    file.skip(0xFFFFFFFF);
    file.put(layout.directory());
    CHECK(file.end() == layout.total());
  }
  const StateDict read = read_weights(folder / "m.pt");
  CHECK(read["a"].item<std::uint8_t>() == 0x2a);
  CHECK(read["b"][1].item<float>() == 2.5f);
  CHECK(read["c"].item<std::uint8_t>() == 0);
}

TEST_CASE("zip layout: more entries than the old directory counts", "[weights][torch]") {
  weights::ZipLayout layout;
  const std::size_t count = 65'536;
  for (std::size_t i = 0; i < count; ++i) {
    layout.add("m/" + std::to_string(i), i % 3);
  }
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += layout.header(i, 0) + std::string(i % 3, 'x');
  }
  bytes += layout.directory();
  CHECK(bytes.size() == layout.total());
  const weights::ZipArchive archive(source_of(bytes));
  CHECK(archive.entries().size() == count);
  CHECK(archive.find("m/65534")->size == 2);
}

}  // namespace
}  // namespace mha::testing
