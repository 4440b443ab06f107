// What the format allows, however odd, and what is promised about the memory behind the tensors.
#include <ATen/Functions.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>

#include "mha/weights.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

WeightsFile read(const TemporaryFolder& folder, const std::string& bytes) {
  write_bytes(folder / "read.bin", bytes);
  return read_weights_file(folder / "read.bin");
}

std::uintptr_t address(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
}

TEST_CASE("safetensors: odd but legal files are read", "[weights]") {
  const TemporaryFolder folder;
  SECTION("nothing in it") {
    CHECK(read(folder, safetensors("{}")).tensors.is_empty());
    CHECK(read(folder, safetensors("{}        ")).tensors.is_empty());
    CHECK(read(folder, safetensors(R"({"__metadata__":{}})")).metadata.empty());
  }
  SECTION("white space inside the header, fields in any order") {
    const auto file = read(
        folder,
        safetensors("{\n\t\"a\" : { \"data_offsets\":[0,\r\n1], \"shape\":[ ], \"dtype\":\"U8\" } } ", 1));
    CHECK(file.tensors["a"].dim() == 0);
    CHECK(file.tensors["a"].item<int>() == 0);
  }
  SECTION("metadata last, names of any kind") {
    const auto file = read(folder, safetensors("{" + entry("", "U8", "[1]", "[0,1]") + "," +
                                                   entry("größe 🙂", "U8", "[1]", "[1,2]") + "," +
                                                   entry(R"(\u0000\ud83d\ude42\/)", "U8", "[1]", "[2,3]") +
                                                   R"(,"__metadata__":{"":"","größe":"é"}})",
                                               3));
    CHECK(file.tensors[""].item<int>() == 0);
    CHECK(file.tensors["größe 🙂"].item<int>() == 1);
    CHECK(file.tensors[std::string(1, '\0') + "🙂/"].item<int>() == 2);
    CHECK(file.metadata == std::map<std::string, std::string>{{"", ""}, {"größe", "é"}});
  }
  SECTION("order is that of the data; empty tensors between the others") {
    const auto file = read(
        folder, safetensors("{" + entry("c", "U8", "[0]", "[2,2]") + "," + entry("b", "U8", "[1]", "[1,2]") +
                                "," + entry("d", "F64", "[3,0]", "[2,2]") + "," +
                                entry("z", "F32", "[0,4611686018427387904]", "[0,0]") + "," +
                                entry("a", "U8", "[1]", "[0,1]") + "}",
                            2));
    CHECK(file.tensors.keys() == std::vector<std::string>{"z", "a", "b", "c", "d"});
    CHECK(file.tensors["d"].sizes() == c10::IntArrayRef{3, 0});
    CHECK(file.tensors["z"].numel() == 0);
  }
  SECTION("64 dimensions") {
    std::string shape = "[1";
    for (int i = 1; i < 64; ++i) {
      shape += ",1";
    }
    CHECK(
        read(folder, safetensors("{" + entry("a", "U8", shape + "]", "[0,1]") + "}", 1)).tensors["a"].dim() ==
        64);
  }
}

TEST_CASE("safetensors: data off its alignment is copied, other data is not", "[weights]") {
  const TemporaryFolder folder;
  // The data begin at 8 + header size: pad the header for each remainder.
  for (std::size_t remainder = 0; remainder < 8; ++remainder) {
    std::string header = "{" + entry("a", "F64", "[2]", "[0,16]") + "," +
                         entry("b", "F32", "[1]", "[16,20]") + "," + entry("c", "U8", "[1]", "[20,21]") +
                         "," + entry("d", "F16", "[1]", "[21,23]") + "}";
    while (header.size() % 8 != remainder) {
      header += ' ';
    }
    const auto tensors = read(folder, safetensors(header, 23)).tensors;
    INFO("remainder " << remainder);
    for (const auto& item : tensors) {
      CHECK(address(item.value()) % item.value().element_size() == 0);
      const auto bytes = item.value().view(at::kByte);
      CHECK(bytes[0].item<int>() == (item.key() == "a"   ? 0
                                     : item.key() == "b" ? 16
                                     : item.key() == "c" ? 20
                                                         : 21));
    }
    // Views of one mapping keep their distance; copies do not (but for chance).
    CHECK((address(tensors["c"]) - address(tensors["a"]) == 20) == (remainder == 0));
  }
}

TEST_CASE("safetensors: tensors keep the mapping, writing to them keeps the file", "[weights]") {
  const TemporaryFolder folder;
  const auto path = folder / "mapped";
  const std::string bytes =
      safetensors("{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[4,8]") + "}", 8);
  write_bytes(path, bytes);
  at::Tensor a;
  at::Tensor other;
  {
    const StateDict first = read_weights(path);
    a = first["a"];
    other = read_weights(path)["a"];
  }
  a.fill_(7);
  CHECK(other.sum().item<int>() == 6);
  CHECK(read_bytes(path) == bytes);
  std::filesystem::remove(path);
  CHECK(a.sum().item<int>() == 28);
  CHECK(other.sum().item<int>() == 6);
  const at::Tensor view = a.slice(0, 1, 3);
  a.reset();
  CHECK(view.sum().item<int>() == 14);
}

}  // namespace
}  // namespace mha::testing
