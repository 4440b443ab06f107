#include "cli/inspection_json.h"

#include <nlohmann/json.hpp>

namespace mha::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// On one line. Names from files may hold anything: ASCII is harmless on every terminal, and what is not UTF-8
/// is replaced.
template <typename Json>
std::string dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

ordered_json tensor_json(const TensorFacts& tensor) {
  ordered_json line;
  line["name"] = tensor.name;
  line["dtype"] = tensor.dtype;
  line["shape"] = tensor.shape;
  line["bytes"] = tensor.bytes;
  if (tensor.shares) {
    line["shares_memory_with"] = *tensor.shares;
  }
  if (!tensor.sha256.empty()) {
    line["sha256"] = tensor.sha256;
  }
  return line;
}

ordered_json block_json(const BlockFacts& facts) {
  ordered_json line;
  line["prefix"] = facts.block.prefix;
  line["layout"] = facts.block.layout;
  line["d_model"] = facts.block.d_model > 0 ? ordered_json(facts.block.d_model) : ordered_json();
  line["num_heads"] = facts.num_heads ? ordered_json(*facts.num_heads) : ordered_json();
  line["caveat"] = facts.block.caveat;
  line["problem"] = facts.block.problem;
  return line;
}

template <typename Items, typename ToJson>
std::string lines(const Items& items, const ToJson& to_json) {
  std::string text = "[";
  for (const auto& item : items) {
    text += (text.size() == 1 ? "\n    " : ",\n    ") + dump(to_json(item));
  }
  return text + (items.empty() ? "]" : "\n  ]");
}

}  // namespace

std::string inspection_json(const Inspection& inspection) {
  return "{\n  \"file\": " + dump(json(inspection.path)) +
         ",\n  \"format\": " + dump(json(inspection.format)) +
         ",\n  \"metadata\": " + dump(json(inspection.metadata)) +
         ",\n  \"tensors\": " + lines(inspection.tensors, tensor_json) +
         ",\n  \"attention\": " + lines(inspection.blocks, block_json) + "\n}\n";
}

}  // namespace mha::cli
