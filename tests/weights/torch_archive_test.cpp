// PyTorch's files made by hand: what must be refused, and what is promised about memory. And those that C++ writes.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "mha/attention.h"
#include "mha/weights.h"
#include "torch_testing.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

StateDict read(const TemporaryFolder& folder, const std::string& bytes) {
  write_bytes(folder / "m.pt", bytes);
  return read_weights(folder / "m.pt");
}

/// An archive of one tensor "w".
std::string one(const std::string& value,
                const std::vector<std::string>& storages = {std::string(16, '\1')}) {
  return torch_archive(pickle(dict({{text("w"), value}})), storages);
}

const std::string kView = global("torch._utils", "_rebuild_tensor_v2");

std::string legacy(const std::string& object, const std::string& keys, const std::string& data,
                   const std::string& facts = dict({{text("little_endian"), "\x88"}})) {
  return "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + pickle("M\xe9\x03") + pickle(facts) +
         pickle(object) + pickle(keys) + data;
}

struct Row {
  std::string rule;
  std::string bytes;
  std::string message;
};

void check_refused(const std::vector<Row>& rows) {
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    INFO(row.rule);
    const std::string message = error_of<Error>([&] { read(folder, row.bytes); });
    CHECK_THAT(message, ContainsSubstring(row.message));
    CHECK(message.starts_with((folder / "m.pt").string() + ": "));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("torch: a tensor that its storage does not hold is refused by name", "[weights][torch]") {
  const std::int64_t huge = std::int64_t{1} << 62;
  const auto view = [](std::int64_t offset, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& strides) {
    return one(tensor(storage("0", 4), offset, shape, strides));
  };
  check_refused({
      {"one element too many", view(0, {5}, {1}),
       R"(tensor "w": expected elements inside its storage of 4 float32)"},
      {"offset", view(1, {4}, {1}), "offset 1"},
      {"offset past the end", view(5, {1}, {1}), "offset 5"},
      {"offset near 2^63", view(INT64_MAX, {2}, {1}), "elements inside its storage"},
      {"strides", view(0, {2, 2}, {3, 1}), "strides (3, 1)"},
      {"shape wraps", view(0, {huge, 4}, {1, 1}), "less than 2^63 bytes"},
      {"expanded beyond counting", view(0, {huge, 4}, {0, 0}), "less than 2^63 bytes"},
      {"reach wraps", view(0, {3}, {huge}), "less than 2^63 bytes"},
      {"an empty tensor of uncountable strides", view(0, {0, huge, 4}, {1, 1, 1}), "less than 2^63 bytes"},
      {"negative shape", view(0, {-1}, {1}), "a shape that is an integer from 0"},
      {"negative stride", view(3, {2}, {-1}), "strides that is an integer from 0"},
      {"negative offset", view(-1, {1}, {1}), "an offset that is an integer from 0"},
      {"fewer strides", view(0, {1, 1}, {1}), "as many strides as dimensions"},
      {"65 dimensions", view(0, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1)),
       "at most 64 dimensions, found 65"},
      {"shape that is text", one(call(kView, {storage("0", 4), "K\1", text("x"), ")"})),
       R"(a shape in a tuple, found the text "x")"},
      {"no arguments", one(call(kView, {})), "expected a storage, an offset, a shape and strides, found 0"},
      {"no storage", one(call(kView, {"N", "K\1", ")", ")"})), "the first None"},
      {"record shorter than the pickle says",
       one(tensor(storage("0", 4), 0, {1}, {1}), {std::string(15, '\1')}),
       R"(storage "0": expected 4 elements of 4 bytes, found 15 bytes)"},
      {"record longer than the pickle says",
       one(tensor(storage("0", 4), 0, {1}, {1}), {std::string(20, '\1')}), "found 20 bytes"},
      {"elements near 2^63", one(tensor(storage("0", INT64_MAX), 0, {1}, {1})),
       "expected 9223372036854775807 elements"},
      {"record missing", one(tensor(storage("7", 4), 0, {1}, {1})), R"(in an entry "m/data/7", found none)"},
      {"record outside", one(tensor(storage("../../etc/passwd", 4), 0, {1}, {1})), "found none"},
      {"storage of no class", one(tensor(storage("0", 4, "EvilStorage"), 0, {1}, {1})),
       "such as torch.FloatStorage"},
      {"storage of no id", one(call(kView, {"NQ", "K\1", ")", ")"})), "expected a storage of"},
      {"storage that is none",
       one(call(kView, {tuple({text("x"), "N", "N", "N", "N"}) + "Q", "K\1", ")", ")"})),
       R"(expected a storage, found the text "x")"},
      {"meta", one(tensor(storage("0", 4, "FloatStorage", "meta"), 0, {1}, {1})), "on the meta device"},
      {"quantized", one(tensor(storage("0", 16, "QInt8Storage"), 0, {1}, {1})), "a quantized one"},
      {"sparse", one(call(global("torch._utils", "_rebuild_sparse_tensor"), {})), "a sparse one"},
      {"no dtype",
       one(call(global("torch._utils", "_rebuild_tensor_v3"),
                {storage("0", 4), integer(0), integers({1}), integers({1}), "\x89", "N", "N"})),
       "a dtype such as torch.float32, found None"},
      {"parameter of nothing", one(call(global("torch._utils", "_rebuild_parameter"), {"N"})),
       "the arguments of"},
      {"parameter of itself",
       one("(" + std::string("]q\1K\1a0") + global("torch._utils", "_rebuild_parameter") + tuple({"h\1"}) +
           "R" + "t"),
       "the arguments of"},
      {"parameters around parameters",
       [] {
         std::string value = tensor(storage("0", 4), 0, {1}, {1});
         for (int i = 0; i < 20; ++i) {
           value = call(global("torch._utils", "_rebuild_parameter"), {value, "\x88", ordered_dict()});
         }
         return one(value);
       }(),
       "more than 16 wrappers"},
  });
}

TEST_CASE("torch: archives that are no weights, and names that clash", "[weights][torch]") {
  const std::string w = tensor(storage("0", 4), 0, {4}, {1});
  const std::string data(16, '\1');
  const auto with = [&](const std::string& value) { return torch_archive(pickle(value), {data}); };
  check_refused({
      {"no pickle", zip({{"m/version", "3"}}),
       R"(with an entry <folder>/data.pkl, found 1 entries, the first "m/version")"},
      {"no entries", zip({}), "found"},
      {"pickle without a folder", zip({{"data.pkl", pickle("}")}}), "with an entry <folder>/data.pkl"},
      {"pickle too deep", zip({{"a/b/data.pkl", pickle("}")}}), "with an entry <folder>/data.pkl"},
      {"two pickles", zip({{"a/data.pkl", pickle("}")}, {"b/data.pkl", pickle("}")}}), "found it in"},
      {"big-endian", zip({{"m/data.pkl", pickle("}")}, {"m/byteorder", "big"}}),
       R"(("little"), found "big")"},
      {"broken pickle", zip({{"m/data.pkl", "\x80\x02"}}), R"(entry "m/data.pkl": byte 2 of the pickle)"},
      {"one name twice", with(dict({{text("a.b"), w}, {text("a"), dict({{text("b"), w}})}})),
       R"(tensor "a.b": expected one tensor of that name, found two)"},
      {"one key as text and as a number", with(dict({{text("0"), w}, {integer(0), w}})),
       R"(tensor "0": expected one)"},
      {"a tuple for a key", with(dict({{tuple({"K\1"}), w}})), "expected keys that are text or integers"},
      {"a circle with a tensor", with("]q\1(h\1" + w + "e"), "at most 256 levels, found more (a circle?)"},
      {"a parameter that is none",
       with(call(global("a", "B"), {}) +
            dict({{text("_parameters"), dict({{text("p"), "]"}})}, {text("_modules"), "}"}}) + "b"),
       R"(tensors among parameters and buffers, found a list at the text "p")"},
      {"ways that multiply",
       [&] {
         std::string value = "]q\1";
         for (int i = 2; i < 60; ++i) {
           const std::string number(1, static_cast<char>(i));
           const std::string before(1, static_cast<char>(i - 1));
           value += "](h" + before + "h" + before + "eq" + number;
         }
         return with(value);
       }(),
       "at most 4000000 values"},
      {"long names that multiply",
       [&] {
         std::string value = "]q\1" + text(std::string(1 << 20, 'x')) + "q\2}(";
         for (int i = 0; i < 100; ++i) {
           value += "h\2h\1";
         }
         return with(value + "u");
       }(),
       "names of at most 64 MiB"},
      {"TorchScript state that only code can name",
       with(global("__torch__", "M") + ")\x81" + tuple({w}) + "b"), "__getstate__"},
      {"legacy: big-endian", legacy("}", "]", "", dict({{text("little_endian"), "\x89"}})),
       "little-endian machine"},
      {"legacy: no facts", legacy("}", "]", "", "N"), "little-endian machine"},
      {"legacy: keys that are none", legacy("}", "N", ""), "list of the keys"},
      {"legacy: unknown key", legacy("}", list({text("k")}), ""), R"(found the text "k")"},
      {"legacy: key twice",
       legacy(dict({{text("w"), w}}), list({text("0"), text("0")}), length_bytes(4) + data), "once, found"},
      {"legacy: count", legacy(dict({{text("w"), w}}), list({text("0")}), length_bytes(3) + data),
       R"(storage "0": expected 4 elements, found 3)"},
      {"legacy: no count", legacy(dict({{text("w"), w}}), list({text("0")}), "1234567"),
       "number of elements"},
      {"legacy: cut short",
       legacy(dict({{text("w"), w}}), list({text("0")}), length_bytes(4) + data.substr(1)),
       "4 elements of 4 bytes, found 15 bytes (cut short)"},
      {"legacy: 2^61 elements",
       legacy(dict({{text("w"), tensor(storage("0", std::int64_t{1} << 61), 0, {1}, {1})}}),
              list({text("0")}), length_bytes(std::uint64_t{1} << 61) + data),
       "(cut short)"},
      {"legacy: data left out", legacy(dict({{text("w"), w}}), "]", ""),
       R"(tensor "w": expected a storage "0")"},
      {"legacy: two dtypes",
       legacy(dict({{text("w"), w}, {text("v"), tensor(storage("0", 4, "IntStorage"), 0, {4}, {1})}}),
              list({text("0")}), length_bytes(4) + data),
       "elements of one dtype, found two"},
  });
}

TEST_CASE("torch: odd but honest files are read", "[weights][torch]") {
  const TemporaryFolder folder;
  const std::string data = bytes_of(1.0f) + bytes_of(2.0f) + bytes_of(3.0f) + bytes_of(4.0f);
  const std::string w = tensor(storage("0", 4), 1, {3}, {1});
  SECTION("saved on a GPU") {
    const auto tensors =
        read(folder, one(tensor(storage("0", 4, "FloatStorage", "cuda:0"), 0, {4}, {1}), {data}));
    CHECK(tensors["w"].device().is_cpu());
    CHECK(tensors["w"][3].item<float>() == 4.0f);
    CHECK(read(folder, one(call(kView, {tuple({text("storage"), global("torch.cuda", "FloatStorage"),
                                               text("0"), text("cuda:1"), integer(4)}) +
                                            "Q",
                                        integer(0), integers({1}), integers({1})}),
                           {data}))
              .size() == 1);
  }
  SECTION("another folder beside it, no byteorder") {
    const std::string bytes = zip({{"__MACOSX/x", "?"},
                                   {"m/data.pkl", pickle(dict({{text("w"), w}}))},
                                   {"m/data/0", data},
                                   {"m/extra/data.pkl", "?"}});
    CHECK(read(folder, bytes)["w"][0].item<float>() == 2.0f);
  }
  SECTION("what is no tensor is left out, what is unknown is not looked into") {
    const std::string value = dict({{text("n"), "N"},
                                    {text("i"), "K\1"},
                                    {text("o"), call(global("a", "B"), {w})},
                                    {text("w"), w},
                                    {text("s"), call(global("builtins", "set"), {list({"K\1"})})},
                                    {tuple({"K\1"}), "]"}});
    CHECK(read(folder, torch_archive(pickle(value), {data})).keys() == std::vector<std::string>{"w"});
  }
  SECTION("dicts and lists of unknown classes are still dicts and lists") {
    const std::string value =
        call(global("my", "Dict"), {}) + "(" + text("a") + call(global("my", "List"), {}) + "(" + w + "eu";
    CHECK(read(folder, torch_archive(pickle(value), {data})).keys() == std::vector<std::string>{"a.0"});
  }
  SECTION("tensors of one storage share it, also when it is copied") {
    const std::string value = dict({{text("a"), w}, {text("b"), tensor(storage("0", 4), 0, {2, 2}, {1, 2})}});
    for (const std::string& bytes :
         {torch_archive(pickle(value), {data}), legacy(value, list({text("0")}), length_bytes(4) + data)}) {
      const auto tensors = read(folder, bytes);
      CHECK(tensors["a"].storage().data() == tensors["b"].storage().data());
      tensors["a"][0] = 9.0f;
      CHECK(tensors["b"][1][0].item<float>() == 9.0f);
      CHECK(read_weights(folder / "m.pt")["a"][0].item<float>() == 2.0f);
    }
  }
  SECTION("tensors outlive the file's name and are aligned") {
    for (std::size_t padding = 0; padding < 4; ++padding) {
      auto tensors = read(folder, zip({{"m/pad", std::string(padding, 'x')},
                                       {"m/data.pkl", pickle(dict({{text("w"), w}}))},
                                       {"m/data/0", data}}));
      std::filesystem::remove(folder / "m.pt");
      const at::Tensor tensor = tensors["w"];
      tensors.clear();
      CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % sizeof(float) == 0);
      CHECK(tensor[2].item<float>() == 4.0f);
    }
  }
}

TEST_CASE("torch: what torch::save writes in C++", "[weights][torch]") {
  const TemporaryFolder folder;
  const auto path = (folder / "m.pt").string();
  SECTION("modules") {
    torch::nn::Sequential inner(torch::nn::Linear(3, 4),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    torch::nn::ModuleList module;
    module->push_back(inner);
    module->push_back(torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
    torch::save(module, path);
    const WeightsFile file = read_weights_file(path);
    CHECK(file.format == "torch-save-cpp");
    const StateDict& read_back = file.tensors;
    const auto expected = state_dict(*module);
    CHECK(read_back.size() == expected.size());
    for (const auto& item : expected) {
      INFO(item.key());
      REQUIRE(read_back.contains(item.key()));
      CHECK(bit_equal(read_back[item.key()], item.value()));
    }
  }
  SECTION("the attention module, loaded into another") {
    MultiHeadAttention saved(8, 2, 0.1);
    torch::save(saved, path);
    MultiHeadAttention loaded(8, 2, 0.1);
    load_state_dict(*loaded, read_weights(path));
    CHECK(bit_equal(loaded->W_o->weight, saved->W_o->weight));
  }
  SECTION("the state of an optimizer, whose tensors are neither parameters nor buffers") {
    torch::nn::Linear linear(2, 1);
    torch::optim::Adam optimizer(linear->parameters());
    linear->forward(torch::ones({3, 2})).sum().backward();
    optimizer.step();
    torch::save(optimizer, path);
    int found = 0;
    for (const auto& item : read_weights(path)) {
      found += item.key().ends_with(".exp_avg") ? 1 : 0;
    }
    CHECK(found == 2);
  }
  SECTION("tensors") {
    const auto tensor = torch::randn({2, 3});
    torch::save(tensor, path);
    CHECK(bit_equal(read_weights(path)["0"], tensor));
    torch::save(std::vector<torch::Tensor>{tensor, tensor.t()}, path);
    const auto list = read_weights(path);
    CHECK(list.size() >= 2);
    CHECK(bit_equal(list["1"], tensor.t()));
  }
}

TEST_CASE("torch: damage is found when checksums are asked for", "[weights][torch]") {
  const TemporaryFolder folder;
  const auto path = folder / "m.pt";
  std::string bytes = one(tensor(storage("0", 4), 0, {4}, {1}));
  write_bytes(path, bytes);
  CHECK(read_weights(path, {.verify_checksums = true}).size() == 1);
  bytes[bytes.find(std::string(16, '\1')) + 3] = '\2';
  write_bytes(path, bytes);
  CHECK(read_weights(path).size() == 1);
  CHECK_THAT(error_of<Error>([&] { read_weights(path, {.verify_checksums = true}); }),
             ContainsSubstring(R"(tensor "w": entry "m/data/0": expected the CRC-32 )"));
}

TEST_CASE("torch: no byte of a file makes a reader crash", "[weights][torch]") {
  const TemporaryFolder folder;
  const std::string w = tensor(storage("0", 4), 1, {3}, {1});
  const std::string value = dict({{text("a"), w}, {text("l"), list({w, "h\1"})}});
  const std::string object =
      "Nq\1"
      "0" +
      value;
  const std::string data(16, '\1');
  for (const std::string& good :
       {torch_archive(pickle(object), {data}), legacy(object, list({text("0")}), length_bytes(4) + data),
        zip({{"m/data.pkl", deflated(pickle(object)), 8, 0,
              static_cast<std::uint32_t>(pickle(object).size())},
             {"m/data/0", data}})}) {
    CHECK(read(folder, good).size() == 2);
    int read_whole = 0;
    const auto attempt = [&](const std::string& bytes) {
      try {
        read(folder, bytes);
        ++read_whole;
      } catch (const Error&) {  // anything else fails the test
      }
    };
    for (std::size_t i = 0; i < good.size(); ++i) {
      attempt(good.substr(0, i));
      for (const int flip : {0x01, 0x80, 0xFF}) {
        std::string bytes = good;
        bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ static_cast<unsigned>(flip));
        attempt(bytes);
      }
    }
    CHECK(read_whole > 0);
    CHECK(read_whole < static_cast<int>(3 * good.size()));
  }
}

}  // namespace
}  // namespace mha::testing
