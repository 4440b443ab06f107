// Sharded files through their index.
#include <ATen/Functions.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "torch_testing.h"
#include "weights_testing.h"
#include "written_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

struct Sharded {
  TemporaryFolder folder;
  StateDict tensors =
      dict({{"a", at::rand({2})}, {"b", at::rand({3})}, {"c", at::rand({4})}, {"x", at::rand({1})}});

  explicit Sharded(const std::string& suffix) {
    write_weights(folder / ("one" + suffix), dict({{"a", tensors["a"]}, {"c", tensors["c"]}}));
    write_weights(folder / ("two" + suffix), dict({{"x", tensors["x"]}, {"b", tensors["b"]}}));
  }

  WeightsFile read(const std::string& index) const {
    write_bytes(folder / "index.json", index);
    return read_weights_file(folder / "index.json");
  }
};

TEST_CASE("index: the tensors of its shards, in its order", "[weights]") {
  for (const std::string suffix : {".safetensors", ".bin"}) {
    INFO(suffix);
    const Sharded files(suffix);
    const WeightsFile read = files.read(
        R"({"metadata": {"total_size": 36, "format": "pt", "ratio": 0.5, "tied": true, "none": null,
            "more": {"a": {"b": [1, {"c": 2}]}}}, "version": [1, {"weight_map": {"y": "z"}}],
            "weight_map": {"b": "two)" +
        suffix + R"(", "a": "one)" + suffix + R"(", "c": "one)" + suffix + "\"}}\n");
    CHECK(read.format == (suffix == ".bin" ? "torch-index" : "safetensors-index"));
    CHECK(read.tensors.keys() == std::vector<std::string>{"b", "a", "c"});  // x is in no map: ignored
    CHECK(read.metadata == std::map<std::string, std::string>{
                               {"total_size", "36"}, {"format", "pt"}, {"ratio", "0.5"}, {"tied", "true"}});
    for (const auto& item : read.tensors) {
      CHECK(bit_equal(item.value(), files.tensors[item.key()]));
    }
  }
}

TEST_CASE("index: shards are found beside it, also through a link", "[weights]") {
  const Sharded files(".safetensors");
  std::filesystem::create_directory(files.folder / "blobs");
  std::filesystem::rename(files.folder / "one.safetensors", files.folder / "blobs/1");
  write_bytes(files.folder / "blobs/2", R"({"weight_map": {"a": "one.safetensors"}})");
  std::filesystem::create_symlink("blobs/1", files.folder / "one.safetensors");
  std::filesystem::create_symlink("blobs/2", files.folder / "model.safetensors.index.json");
  CHECK(bit_equal(read_weights(files.folder / "model.safetensors.index.json")["a"], files.tensors["a"]));
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(files.folder / "");
  CHECK(read_weights("model.safetensors.index.json").size() == 1);
  std::filesystem::current_path(here);
}

TEST_CASE("index: every rule broken is refused by name", "[weights]") {
  const Sharded files(".safetensors");
  write_bytes(files.folder / "nested.json", R"({"weight_map": {"a": "one.safetensors"}})");
  write_bytes(files.folder / "broken.safetensors", "no weights");
  struct Row {
    std::string index;
    std::string message;
  };
  const auto map = [](const std::string& content) { return R"({"weight_map": {)" + content + "}}"; };
  const auto shard = [&](const std::string& name) { return map(R"("a": ")" + name + "\""); };
  std::vector<Row> rows{
      {"{}", R"(expected the index of a sharded file, with a "weight_map", found other JSON)"},
      {R"({"model_type": "bert", "layers": [1, 2]})", "found other JSON"},
      {"{", "expected an index of valid JSON"},
      {map("") + "x", "expected an index of valid JSON"},
      {map("") + std::string(1, '\0'), "found at its byte 18: NUL"},
      {R"({"weight_map": {"a": "one.safetensors")", "expected an index of valid JSON"},
      {"{\"weight_map\": {\"a\xFF\": \"one.safetensors\"}}", "expected an index of valid JSON"},
      {"{" + std::string(1'000'000, '['), "expected an index of valid JSON"},
      {R"({"x": )" + std::string(1'000'000, '['), "expected an index of valid JSON"},
      {R"({"weight_map": 1})", "weight_map: expected an object of file names, found 1"},
      {R"({"weight_map": null})", "weight_map: expected an object of file names, found null"},
      {R"({"weight_map": "x"})", "weight_map: expected an object of file names"},
      {R"({"weight_map": ["one.safetensors"]})",
       "weight_map: expected an object of file names, found an array"},
      {map(R"("a": 1)"), R"(tensor "a": expected the name of its shard, found 1)"},
      {map(R"("a": true)"), "found true"},
      {map(R"("a": -1.5)"), "found -1.5"},
      {map(R"("a": {"b": "one.safetensors"})"),
       R"(tensor "a": expected the name of its shard, found an object)"},
      {map(R"("a": ["one.safetensors"])"), "found an array"},
      {map(R"("a": "one.safetensors", "a": "one.safetensors")"), R"(tensor "a": expected once, found twice)"},
      {R"({"weight_map": {}, "weight_map": {}})", R"(key "weight_map": expected once, found twice)"},
      {R"({"weight_map": {}, "metadata": {"k": 1, "k": 1}})",
       R"(metadata key "k": expected once, found twice)"},
      {shard("none.safetensors"), "none.safetensors: cannot open: No such file or directory"},
      {shard("nested.json"), "nested.json: not a weights file"},
      {shard("index.json"), "index.json: not a weights file"},
      {shard("broken.safetensors"), R"(broken.safetensors: not a weights file)"},
      {shard("two.safetensors"),
       R"(tensor "a": expected in its shard "two.safetensors", found no tensor of that name there)"},
      {map(R"("d": "one.safetensors")"), R"(tensor "d": expected in its shard "one.safetensors")"},
  };
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../one.safetensors"),
        std::string("./one.safetensors"), (files.folder / "one.safetensors").string(),
        std::string("a\\\\one.safetensors"), std::string("c:one.safetensors"),
        std::string("one.safetensors\\u0000")}) {
    rows.push_back({shard(name), R"(tensor "a": expected a shard that is a plain file name, found ")"});
  }
  for (const Row& row : rows) {
    INFO(row.index.substr(0, 200));
    const std::string message = error_of<Error>([&] { files.read(row.index); });
    CHECK_THAT(message, ContainsSubstring(row.message));
    CHECK(message.starts_with((files.folder / "").string()));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 1000);
  }
}

TEST_CASE("index: a million keys are enough", "[weights]") {
  const Sharded files(".safetensors");
  std::string index = R"({"weight_map": {)";
  for (int i = 0; i < 1'000'001; ++i) {
    index += "\"" + std::to_string(i) + R"(":"s",)";
  }
  CHECK_THAT(error_of<Error>([&] { files.read(index); }), ContainsSubstring("at most 1000000 keys"));
}

}  // namespace
}  // namespace mha::testing
