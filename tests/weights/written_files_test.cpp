// Files for check_written_files.py, which compares what Python reads from them with safetensors twins.
#include <ATen/Functions.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "mha/weights.h"
#include "written_testing.h"

namespace mha::testing {
namespace {

std::filesystem::path folder() {
  const char* const name = std::getenv("MHA_WRITTEN_FILES");
  REQUIRE(name != nullptr);
  std::filesystem::create_directories(name);
  return name;
}

/// `tensors` as a .pt file, and as safetensors where complex tensors stand as their bytes.
void write(const std::string& name, const StateDict& tensors) {
  write_weights(folder() / (name + ".pt"), tensors);
  StateDict twin;
  for (const auto& item : tensors) {
    const auto dtype = item.value().scalar_type();
    const bool lacking = dtype == at::kComplexDouble || dtype == at::kComplexHalf;
    const at::Tensor plain = item.value().resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
    twin.insert(item.key(), lacking ? plain.view({-1}).view(at::kByte) : plain);
  }
  write_weights(folder() / (name + ".safetensors"), twin);
}

TEST_CASE("Written files for Python", "[written-files]") {
  at::manual_seed(3);
  write("all-kinds", tensors_of_all_kinds());
  write("nothing", StateDict());
  const at::Tensor weight = at::rand({1000, 10});
  const std::vector<at::Tensor> chunks = at::rand({100, 30}).chunk(3, 1);
  write("shared", dict({{"a", weight},
                        {"tied", weight},
                        {"transposed", weight.t()},
                        {"part", weight.narrow(0, 500, 100)},
                        {"k", chunks[1]},
                        {"q", chunks[0]},
                        {"v", chunks[2]},
                        {"holes", at::rand({100, 100}).select(1, 3)}}));
  StateDict names;
  for (const std::string name : {"", ".", "a.b", "a/b", "größe", "\xF0\x9F\xA7\xA0", "a\nb\"\\"}) {
    names.insert(name, at::rand({2}));
  }
  names.insert(std::string("nul\0nul", 7), at::rand({2}));
  write("names", names);
  // More entries than the old directory of a zip archive can count.
  StateDict many;
  for (int i = 0; i < 70'000; ++i) {
    many.insert("layer." + std::to_string(i), at::full({1}, i, at::kInt));
  }
  write("many", many);
  CHECK(std::filesystem::exists(folder() / "many.safetensors"));
}

}  // namespace
}  // namespace mha::testing
