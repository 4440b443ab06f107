// One broken rule of zip archives per row: each must be refused by name. And what tools may honestly do.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "mha/weights.h"
#include "torch_testing.h"
#include "weights/zip_archive.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using weights::ZipArchive;

/// The archive in `bytes`, which must outlive it.
ZipArchive open(std::string& bytes) {
  return ZipArchive(source_of(bytes));
}

std::string content(const ZipArchive& archive, const std::string& name) {
  const weights::ZipEntry* const entry = archive.find(name);
  if (entry == nullptr) {
    return "no such entry";
  }
  const weights::OwnedBytes read = archive.read(*entry, "file");
  return {reinterpret_cast<const char*>(read.bytes.data()), read.bytes.size()};
}

std::string zip64_field(std::uint64_t size, std::uint64_t packed) {
  return bytes_of<std::uint16_t>(1) + bytes_of<std::uint16_t>(16) + bytes_of(size) + bytes_of(packed);
}

TEST_CASE("zip: entries are found, stored or deflated", "[weights][torch]") {
  const std::string text(5000, 'x');
  std::string bytes = zip({{"a/one", "first"},
                           {"a/", ""},
                           {"a/two", deflated(text), 8, 0, static_cast<std::uint32_t>(text.size())},
                           {"a/größe", "third", 0, 0x808}},
                          {.comment = "a comment"});
  const ZipArchive archive = open(bytes);
  REQUIRE(archive.entries().size() == 4);
  CHECK(content(archive, "a/one") == "first");
  CHECK(content(archive, "a/two") == text);
  CHECK(content(archive, "a/größe") == "third");
  CHECK(archive.find("a/none") == nullptr);
  CHECK(archive.find("a/one")->packed.data() == reinterpret_cast<std::byte*>(bytes.data()) + 35);
}

TEST_CASE("zip: CRCs are compared when that is asked for", "[weights][torch]") {
  const std::string text(5000, 'x');
  // This helper takes the CRC of what lies in the file: of a deflated entry it is wrong.
  std::string bytes =
      zip({{"a/one", "first"}, {"a/two", deflated(text), 8, 0, static_cast<std::uint32_t>(text.size())}});
  const auto read = [&](const char* name, bool verify) {
    const ZipArchive archive(source_of(bytes, {.verify_checksums = verify}));
    archive.read(*archive.find(name), "file");
  };
  read("a/one", true);
  read("a/two", false);
  CHECK_THAT(error_of<Error>([&] { read("a/two", true); }),
             ContainsSubstring(R"(file: entry "a/two": expected the CRC-32 )"));
  bytes[35] = 'F';
  read("a/one", false);
  CHECK_THAT(error_of<Error>([&] { read("a/one", true); }),
             ContainsSubstring("(damaged, or written under torch.serialization.set_crc32_options(False))"));
}

TEST_CASE("zip: sizes that a data descriptor or a zip64 field holds", "[weights][torch]") {
  std::string bytes = zip({{.name = "a/described", .data = "data", .flags = 8, .local_size = 0},
                           {.name = "a/large",
                            .data = "data",
                            .size = 0xFFFFFFFF,
                            .packed = 0xFFFFFFFF,
                            .extra = bytes_of<std::uint16_t>(9) + std::string(2, '\0') + zip64_field(4, 4)}});
  const ZipArchive archive = open(bytes);
  CHECK(content(archive, "a/described") == "data");
  CHECK(content(archive, "a/large") == "data");
}

TEST_CASE("zip: every broken rule is refused by name", "[weights][torch]") {
  struct Row {
    std::string rule;
    std::string bytes;
    std::string message;
  };
  const std::uint32_t all = 0xFFFFFFFF;
  const std::string good = zip({{"a/b", "data"}});
  const std::vector<Row> rows{
      {"nothing", "", "zip directory at the end, found none"},
      {"only a signature", "PK\x05\x06", "zip directory at the end, found none"},
      {"the end cut", good.substr(0, good.size() - 1), "found none (file cut short?)"},
      {"bytes after the end", good + "x", "zip directory at the end, found none"},
      {"a comment cut", zip({{"a/b", ""}}, {.comment = "long"}).substr(0, 95), "found none"},
      {"one entry too many", zip({{"a/b", ""}}, {.count_shift = 1}), "expected a zip directory of 2 entries"},
      {"one entry too few", zip({{"a/b", ""}}, {.count_shift = -1}), "of 0 entries, found 49 bytes more"},
      {"directory past its end", zip({{"a/b", ""}}, {.size_shift = 1}), "zip directory that ends at byte"},
      {"directory with a gap", zip({{"a/b", ""}}, {.size_shift = -1}), "zip directory that ends at byte"},
      {"directory beyond the file", zip({{"a/b", ""}}, {.begin_shift = 1 << 20}), "zip directory that ends"},
      {"bytes after the directory", zip({{"a/b", ""}}, {.before = "x"}), "zip directory that ends at byte"},
      {"several disks", zip({{"a/b", ""}}, {.disk = 1}), "one disk, found a part of several"},
      {"zip64 locator into nowhere",
       zip({{"a/b", ""}}, {.before = "PK\x06\x07" + std::string(4, '\0') + bytes_of<std::uint64_t>(9) +
                                     std::string(4, '\0')}),
       "zip64 end record"},
      {"zip64 locator past the file",
       zip({{"a/b", ""}}, {.before = "PK\x06\x07" + std::string(4, '\0') + bytes_of(~std::uint64_t{0}) +
                                     std::string(4, '\0')}),
       "zip64 end record"},
      {"encrypted", zip({{"a/b", "data", 0, 1}}), R"(entry "a/b": expected plain data, found it encrypted)"},
      {"method", zip({{"a/b", "data", 12}}), "stored (0) or deflated (8), found 12"},
      {"no name", zip({{"", "data"}}), "named in UTF-8"},
      {"NUL in a name", zip({{std::string("a\0b", 3), "data"}}), "named in UTF-8, found \"a\\x00b\""},
      {"a name that is no text", zip({{"a/\xFF", "data"}}), "named in UTF-8"},
      {"a name twice", zip({{"a/b", "1"}, {"a/b", "2"}}), R"("a/b": expected once, found twice)"},
      {"local name", zip({{.name = "a/b", .data = "", .local_name = "a/c"}}),
       R"(same name in its local header)"},
      {"local method", zip({{.name = "a/b", .data = "", .local_method = 8}}),
       "same method in its local header"},
      {"local size", zip({{.name = "a/b", .data = "data", .local_size = 5}}),
       "same sizes in its local header"},
      {"stored size", zip({{.name = "a/b", .data = "data", .size = 5}}),
       "as many bytes in the file as stored, 5"},
      {"data past the directory", zip({{.name = "a/b", .data = "data", .size = 99, .packed = 99}}),
       "expected 99 bytes before the directory, found 4"},
      {"size in zip64 that is not there", zip({{.name = "a/b", .data = "data", .size = all, .packed = all}}),
       "expected a zip64 field"},
      {"zip64 field too short",
       zip({{.name = "a/b",
             .data = "",
             .size = all,
             .packed = all,
             .extra = zip64_field(0, 0).substr(0, 8)}}),
       "extra fields inside the entry"},
      {"zip64 size near 2^64",
       zip({{.name = "a/b",
             .data = "",
             .size = all,
             .packed = all,
             .extra = zip64_field(~std::uint64_t{0}, ~std::uint64_t{0})}}),
       "bytes before the directory, found 0"},
      {"local header past the directory", zip({{.name = "a/b", .data = "", .header_shift = 1 << 20}}),
       "local header before the directory"},
      {"local header elsewhere", zip({{.name = "a/b", .data = "data and more of it", .header_shift = 1}}),
       "local header at byte 1"},
      {"two entries of one place",
       zip({{"a/b", "data"}, {.name = "a/c", .data = "data", .local_name = "a/b", .header_shift = -37}}),
       "same name in its local header"},
      {"overlapping entries",
       zip({{"a/b", zip({{"a/c", "inner"}}).substr(0, 38)},
            {.name = "a/c", .data = "inner", .header_shift = -38}}),
       R"("a/c": expected bytes of its own, found those of "a/b")"},
      {"directory entry past its end",
       good.substr(0, 37) + good.substr(37, 28) + "\xFF\xFF" + good.substr(67), "one past its end"},
  };
  for (Row row : rows) {
    INFO(row.rule);
    CHECK_THAT(error_of<Error>([&] { open(row.bytes); }), ContainsSubstring(row.message));
  }
}

TEST_CASE("zip: a deflated entry is as large as the directory says", "[weights][torch]") {
  const std::string stream = deflated("some text that is deflated");
  const auto entry = [&](const std::string& data, std::uint32_t size) {
    return zip({{"a/b", data, 8, 0, size}});
  };
  struct Row {
    std::string bytes;
    std::string message;
  };
  for (Row row : {Row{entry(stream, 25), "expected 25 bytes once inflated, found more"},
                  Row{entry(stream, 27), "expected 27 bytes once inflated, found 26"},
                  Row{entry(stream + "x", 26), "found bytes after the stream"},
                  Row{entry(stream.substr(0, stream.size() - 2), 26), "whole deflate stream"},
                  Row{entry("\xFF\xFF\xFF", 26), "expected a deflate stream"},
                  Row{entry("", 0), "whole deflate stream"},
                  // Refused before anything is allocated.
                  Row{entry(stream, 1U << 20), "at most 1032 times its compressed size"}}) {
    const ZipArchive archive = open(row.bytes);
    CHECK_THAT(error_of<Error>([&] { content(archive, "a/b"); }), ContainsSubstring(row.message));
  }
}

TEST_CASE("zip: deflated entries that take far more than the file are refused", "[weights][torch]") {
  const std::string message = "expected deflated entries of at most 134217728 bytes together, found more";
  const std::string stream = deflated(std::string(1 << 20, '\0'));
  const auto bomb = [&](std::uint32_t size, int count) {
    std::vector<Entry> entries;
    for (int i = 0; i < count; ++i) {
      entries.push_back({"a/" + std::to_string(i), stream, 8, 0, size});
    }
    return zip(entries);
  };
  for (const auto& [size, count, refused] : {std::tuple{1U << 27, 1, false},
                                             {(1U << 27) + 1, 1, true},
                                             {1U << 20, 128, false},
                                             {1U << 20, 129, true},
                                             {0xFFFFFFFE, 1, true},
                                             {0xFFFFFFFE, 1000, true}}) {
    INFO(count << " of " << size);
    std::string bytes = bomb(size, count);
    CHECK((error_of<Error>([&] { open(bytes); }).find(message) != std::string::npos) == refused);
    CHECK(error_of<Error>([&] { open(bytes); }).empty() != refused);
  }
}

TEST_CASE("zip: an archive of more than 4 GiB", "[weights][torch]") {
  // Sparse: it takes no room on disk. What lies before the second entry is one stored entry of 5 GiB.
  const TemporaryFolder folder;
  const auto path = folder / "large.pt";
  const std::uint64_t large = std::uint64_t{5} << 30;
  const std::string values = bytes_of(1.5f) + bytes_of(2.5f);
  const std::string file =
      torch_archive(pickle(dict({{text("w"), tensor(storage("0", 2), 0, {2}, {1})}})), {values});
  std::string front = zip({{"m/large", ""}}).substr(0, 37);
  const std::uint32_t all = 0xFFFFFFFF;
  front.replace(18, 8, bytes_of(all) + bytes_of(all));
  const std::uint64_t second = front.size() + large;
  const auto directory_begin = static_cast<std::uint64_t>(file.find("PK\x01\x02"));
  const std::string entries = file.substr(0, static_cast<std::size_t>(directory_begin));
  // The directory of the small archive, its offsets moved into zip64 fields, behind the large entry's.
  std::string directory;
  const auto add = [&](const std::string& name, std::uint64_t size, std::uint64_t offset,
                       const std::string& data) {
    const std::string extra = bytes_of<std::uint16_t>(1) + bytes_of<std::uint16_t>(24) + bytes_of(size) +
                              bytes_of(size) + bytes_of(offset);
    directory += "PK\x01\x02" + std::string(12, '\0') + bytes_of(crc_of(data)) + bytes_of(all) +
                 bytes_of(all) + bytes_of(static_cast<std::uint16_t>(name.size())) +
                 bytes_of(static_cast<std::uint16_t>(extra.size())) + std::string(10, '\0') + bytes_of(all) +
                 name + extra;
  };
  std::string copy = file;
  const ZipArchive small = open(copy);
  add("m/large", large, 0, "");
  for (const weights::ZipEntry& entry : small.entries()) {
    add(entry.name, entry.size, second + entry.header, "");
  }
  const std::uint64_t begin = second + entries.size();
  const std::uint64_t count = small.entries().size() + 1;
  const std::string tail = directory + "PK\x06\x06" + bytes_of<std::uint64_t>(44) + std::string(12, '\0') +
                           bytes_of(count) + bytes_of(count) + bytes_of<std::uint64_t>(directory.size()) +
                           bytes_of(begin) + "PK\x06\x07" + std::string(4, '\0') +
                           bytes_of<std::uint64_t>(begin + directory.size()) + bytes_of<std::uint32_t>(1) +
                           "PK\x05\x06" + std::string(4, '\0') + bytes_of<std::uint32_t>(all) +
                           bytes_of(all) + bytes_of(all) + std::string(2, '\0');
  write_bytes(path, front);
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  const std::string rest = entries + tail;
  REQUIRE(::pwrite(descriptor, rest.data(), rest.size(), static_cast<off_t>(second)) ==
          static_cast<ssize_t>(rest.size()));
  ::close(descriptor);
  const auto tensors = read_weights(path);
  REQUIRE(tensors.size() == 1);
  CHECK(tensors["w"][1].item<float>() == 2.5f);
}

}  // namespace
}  // namespace mha::testing
