#include <utility>

#include "mha/error.h"
#include "support/quote.h"
#include "weights/index.h"

namespace mha::weights {

WeightsFile read_index(const Source& source,
                       const std::function<WeightsFile(const std::string& shard)>& read_shard) {
  Index index =
      parse_index({reinterpret_cast<const char*>(source.bytes.data()), source.bytes.size()}, source.file);
  WeightsFile result{StateDict("Tensor"), std::move(index.metadata), "safetensors-index"};
  std::vector<StateDict> shards;
  shards.reserve(index.shards.size());
  for (const std::string& shard : index.shards) {
    WeightsFile file = read_shard(shard);
    if (file.format != "safetensors") {
      result.format = "torch-index";
    }
    shards.push_back(std::move(file.tensors));
  }
  result.tensors.reserve(index.entries.size());
  for (const Index::Entry& entry : index.entries) {
    const at::Tensor* const tensor = shards[entry.shard].find(entry.name);
    if (tensor == nullptr) {
      throw Error(source.file + ": tensor " + quote(entry.name) + ": expected in its shard " +
                  quote(index.shards[entry.shard]) + ", found no tensor of that name there");
    }
    result.tensors.insert(entry.name, *tensor);
  }
  return result;
}

}  // namespace mha::weights
