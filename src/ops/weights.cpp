// State dicts in, out and from files.
#include "mha/weights.h"

#include "mha/error.h"
#include "ops/classes.h"
#include "support/quote.h"

namespace mha::ops {

StateDict to_state_dict(const Weights& weights) {
  StateDict result;
  for (const auto& item : weights) {
    result.insert(item.key(), item.value());
  }
  return result;
}

Weights to_dict(const StateDict& weights) {
  Weights result;
  for (const auto& item : weights) {
    result.insert(item.key(), item.value());
  }
  return result;
}

FileWeights read_block(const std::string& path, std::optional<int64_t> num_heads, const std::string& prefix,
                       const std::string& layout) {
  const auto tensors = read_weights(path);
  const auto map = [&](int64_t heads) {
    return to_lesson(tensors,
                     {.prefix = prefix, .layout = layout.empty() ? "lesson" : layout, .num_heads = heads});
  };
  if (!num_heads) {
    // Any number of heads shows the width, and that which number it is.
    num_heads = num_heads_beside(path, map(1)["W_o.weight"].size(0));
  }
  if (!num_heads) {
    throw Error(quote(path) +
                ": expected num_heads, as an argument or in a config.json beside the file, found neither");
  }
  return {map(*num_heads), *num_heads};
}

}  // namespace mha::ops
