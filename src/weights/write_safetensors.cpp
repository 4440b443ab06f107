#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "mha/error.h"
#include "support/checked_math.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/shape_text.h"
#include "support/tensor_values.h"
#include "weights/output_file.h"
#include "weights/safetensors.h"
#include "weights/safetensors_format.h"

namespace mha::weights {
namespace {

using Item = StateDict::Item;

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump();
}

/// What keeps a tensor out of a safetensors file; empty: nothing.
std::string obstacle(const at::Tensor& tensor) {
  const std::string found = not_dense(tensor);
  return found.empty() && safetensors_name(tensor.scalar_type()).empty()
             ? "dtype " + dtype_text(tensor.scalar_type())
             : found;
}

void check(const StateDict& tensors, const std::map<std::string, std::string>& metadata,
           const std::string& file) {
  for (const Item& item : tensors) {
    const auto refuse = [&](const std::string& why) {
      throw Error(file + ": tensor " + quote(item.key()) + ": " + why);
    };
    if (item.key() == kMetadataKey) {
      refuse("expected another name, this one is reserved by the format");
    }
    if (!is_utf8(item.key())) {
      refuse("expected a name of valid UTF-8");
    }
    const std::string found = obstacle(item.value());
    if (!found.empty()) {
      refuse("expected a dense tensor of a dtype that safetensors has, found " + found);
    }
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      throw Error(file + ": metadata key " + quote(key) + ": expected key and value of valid UTF-8");
    }
  }
}

/// The tensors in the order of their data: larger items first, so that everything is aligned without gaps.
std::vector<const Item*> data_order(const StateDict& tensors) {
  std::vector<const Item*> order;
  for (const Item& item : tensors) {
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return a->value().element_size() > b->value().element_size();
  });
  return order;
}

std::string header_of(const std::vector<const Item*>& order,
                      const std::map<std::string, std::string>& metadata, const std::string& file) {
  std::string json = "{";
  const auto begin_entry = [&json](const std::string& key) {
    json += (json.size() == 1 ? "" : ",") + json_string(key) + ":";
  };
  if (!metadata.empty()) {
    begin_entry(std::string(kMetadataKey));
    std::string entries;
    for (const auto& [key, value] : metadata) {
      entries += (entries.empty() ? "" : ",") + json_string(key) + ":" + json_string(value);
    }
    json += "{" + entries + "}";
  }
  std::int64_t offset = 0;
  for (const Item* item : order) {
    const at::Tensor& tensor = item->value();
    const std::optional<std::int64_t> bytes =
        multiply(tensor.numel(), static_cast<std::int64_t>(tensor.element_size()));
    if (!bytes || *bytes > std::numeric_limits<std::int64_t>::max() - offset) {
      throw Error(file + ": tensor " + quote(item->key()) +
                  ": expected a file of less than 2^63 bytes, found shape " + shape_text(tensor.sizes()));
    }
    std::string shape;
    for (const std::int64_t size : tensor.sizes()) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    begin_entry(item->key());
    json += R"({"dtype":")" + std::string(safetensors_name(tensor.scalar_type())) + R"(","shape":[)" + shape +
            R"(],"data_offsets":[)" + std::to_string(offset) + "," + std::to_string(offset + *bytes) + "]}";
    offset += *bytes;
  }
  json += "}";
  json.resize((json.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw Error(file + ": expected names and metadata of at most " + std::to_string(kMaxHeaderBytes) +
                " bytes, found " + std::to_string(json.size()));
  }
  return json;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata, const WriteOptions& options) {
  const c10::NoGradGuard no_grad;
  const std::string file = show(path);
  check(tensors, metadata, file);
  const std::vector<const Item*> order = data_order(tensors);
  const std::string header = header_of(order, metadata, file);
  const std::uint64_t header_bytes = header.size();

  std::uint64_t total = kLengthBytes + header_bytes;
  for (const Item* item : order) {
    total += static_cast<std::uint64_t>(item->value().numel()) * item->value().element_size();
  }
  OutputFile output(path, total, options);
  output.write(&header_bytes, kLengthBytes);
  output.write(header.data(), header.size());
  for (const Item* item : order) {
    // One at a time: the copies may not fit in memory together.
    const at::Tensor values = row_major(item->value());
    output.write(values.const_data_ptr(), values.nbytes());
  }
  output.commit();
}

}  // namespace mha::weights
