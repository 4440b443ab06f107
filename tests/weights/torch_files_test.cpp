// Files that Python wrote (make_torch_files.py), against what Python reads from them.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Files of the exported folder with this extension.
std::vector<std::filesystem::path> files(const std::string& extension) {
  const char* const folder = std::getenv("MHA_TORCH_FILES");
  REQUIRE(folder != nullptr);
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == extension) {
      found.push_back(entry.path());
    }
  }
  return found;
}

std::set<std::string> names(const StateDict& tensors) {
  const std::vector<std::string> keys = tensors.keys();
  return {keys.begin(), keys.end()};
}

std::string expected_format(const std::string& name) {
  const bool script = name.starts_with("scripted") || name.starts_with("traced");
  return name.ends_with("-legacy") ? "torch-save-legacy" : script ? "torchscript" : "torch-save";
}

TEST_CASE("Python's files hold what Python reads from them, bit for bit", "[torch-files]") {
  const auto paths = files(".pt");
  CHECK(paths.size() >= 25);
  for (std::filesystem::path path : paths) {
    INFO(path.filename().string());
    StateDict tensors("Tensor");
    const WeightsFile file = read_weights_file(path);
    CHECK(file.format == expected_format(path.stem()));
    for (const auto& item : file.tensors) {
      // safetensors has no complex128: there it stands as its real view.
      const bool complex = item.value().scalar_type() == at::kComplexDouble;
      tensors.insert(item.key() + (complex ? "|complex128" : ""),
                     complex ? at::view_as_real(item.value()) : item.value());
    }
    const StateDict twin = read_weights(path.replace_extension(".safetensors"));
    CHECK(names(tensors) == names(twin));
    for (const auto& item : twin) {
      INFO(item.key());
      const at::Tensor* const tensor = tensors.find(item.key());
      REQUIRE(tensor != nullptr);
      CHECK(tensor->scalar_type() == item.value().scalar_type());
      CHECK(tensor->sizes() == item.value().sizes());
      CHECK(bit_equal(*tensor, item.value()));
    }
  }
}

TEST_CASE("Python's files: strides and sharing are kept", "[torch-files]") {
  for (const std::filesystem::path& path : files(".pt")) {
    if (path.stem() == "views" || path.stem() == "views-legacy") {
      const StateDict tensors = read_weights(path);
      CHECK(tensors["transposed"].strides() == at::IntArrayRef{1, 8});
      CHECK(tensors["expanded"].strides() == at::IntArrayRef{0, 1});
      CHECK(tensors["same"].data_ptr() == tensors["whole"].data_ptr());
      CHECK(tensors["offset"].data_ptr<float>() == tensors["whole"].data_ptr<float>() + 7);
    } else if (path.stem() == "module" || path.stem() == "scripted") {
      const StateDict tensors = read_weights(path);
      CHECK(tensors["tied"].data_ptr() == tensors["W_q.weight"].data_ptr());
    }
  }
}

TEST_CASE("Python's files have right checksums, but those written without", "[torch-files]") {
  for (const std::filesystem::path& path : files(".pt")) {
    INFO(path.filename().string());
    const std::string message = error_of<Error>([&] { read_weights(path, {.verify_checksums = true}); });
    CHECK(message.empty() == (path.stem() != "no-crc"));
  }
}

TEST_CASE("Python's files: what is no dense tensor of a CPU is refused by name", "[torch-files]") {
  const std::map<std::string, std::string> messages{
      {"meta", R"(tensor "m": expected a dense tensor, found one on the meta device)"},
      {"sparse", R"(tensor "sp": expected a dense tensor, found a sparse one)"},
      {"quantized", R"(tensor "qt": expected a dense tensor, found a quantized one)"},
      {"collide", R"(tensor "a.b": expected one tensor of that name, found two)"},
      {"keys", "expected keys that are text or integers, found a tuple of 2"},
      {"frozen", "expected parameters, found none: this TorchScript module was frozen"},
  };
  const auto paths = files(".refused");
  CHECK(paths.size() == messages.size());
  for (const std::filesystem::path& path : paths) {
    INFO(path.filename().string());
    CHECK_THAT(error_of<Error>([&] { read_weights(path); }),
               ContainsSubstring(messages.at(path.stem().string())));
  }
}

}  // namespace
}  // namespace mha::testing
