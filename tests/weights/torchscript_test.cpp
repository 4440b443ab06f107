// Which attributes of TorchScript's modules are listed: archives made by hand.
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "torch_testing.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

const std::string kListed =
    "class M(Module):\n  __parameters__ = [\"w\", ]\n  __buffers__ = [\"b\", ]\n  w : Tensor\n";

/// The names in an archive of a module __torch__.net.M with parameter w, buffer b, tensor p, list l.
std::vector<std::string> names(const std::string& code, const std::string& path = "m/code/__torch__/net.py",
                               bool deflate = false) {
  const std::string data = tensor(storage("0", 4), 0, {4}, {1});
  const std::string module = call(global("__torch__.net", "M"), {}) +
                             dict({{text("training"), "\x88"},
                                   {text("w"), data},
                                   {text("b"), data},
                                   {text("p"), data},
                                   {text("l"), list({data})}}) +
                             "b";
  Entry source{path, deflate ? deflated(code) : code};
  source.method = source.local_method = deflate ? 8 : 0;
  source.size = source.local_size = static_cast<std::uint32_t>(code.size());
  const TemporaryFolder folder;
  write_bytes(folder / "m.pt", zip({{"m/data.pkl", pickle(module)},
                                    {"m/data/0", std::string(16, '\1')},
                                    {"m/constants.pkl", pickle(")")},
                                    source}));
  const WeightsFile file = read_weights_file(folder / "m.pt");
  CHECK(file.format == "torchscript");
  return file.tensors.keys();
}

TEST_CASE("TorchScript: a tensor that is neither parameter nor buffer is not listed", "[weights][torch]") {
  const std::vector<std::string> listed{"w", "b", "l.0"};
  CHECK(names(kListed) == listed);
  CHECK(names(kListed, "m/code/__torch__/net.py", /*deflate=*/true) == listed);
  CHECK(names("class A(Module):\n  __parameters__ = []\n  __buffers__ = []\n" + kListed +
              "class B(Module):\n") == listed);
  CHECK(names("op_version_set = 1\n" + kListed + "  def forward(self) -> Tensor:\n    return self.w\n") ==
        listed);
  CHECK(names("class M(Module):\n  __parameters__ = []\n  __buffers__ = []\n") ==
        std::vector<std::string>{"l.0"});
}

TEST_CASE("TorchScript: where code does not tell, everything is listed", "[weights][torch]") {
  const std::vector<std::string> all{"w", "b", "p", "l.0"};
  for (const std::string code : {
           "",
           "class M(Module):",
           "class M(Module):\n  __parameters__ = [\"w\", ]\n",
           "class M(Module):\n  __buffers__ = [\"b\", ]\n",
           "class M(Module):\n  __parameters__ = [\"w\", ]\n  __buffers__ = [b]\n",
           "class M(Module):\n  __parameters__ = [\"w\", ]\n  __buffers__ = [\"b\n",
           "class M(Module):\n  __parameters__ = [\"w\", ]\n  __buffers__ = [\"b\", ] + x\n",
           "class M(Module):\n  __parameters__ = [\"w\", ]\nclass N(Module):\n  __buffers__ = [\"b\", ]\n",
           "class MM(Module):\n  __parameters__ = []\n  __buffers__ = []\n",
           "class M(NamedTuple):\n  __parameters__ = []\n  __buffers__ = []\n",
           "  __parameters__ = []\n  __buffers__ = []\n",
       }) {
    INFO(code);
    CHECK(names(code) == all);
  }
  CHECK(names(kListed, "m/code/__torch__/other.py") == all);
  CHECK(names(kListed, "m/__torch__/net.py") == all);
}

}  // namespace
}  // namespace mha::testing
