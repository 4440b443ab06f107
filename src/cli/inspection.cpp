#include "cli/inspection.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "cli/progress.h"
#include "cli/sha256.h"
#include "support/dtype_text.h"
#include "support/tensor_values.h"

namespace mha::cli {
namespace {

using at::Tensor;

std::vector<TensorFacts> tensor_facts(const StateDict& tensors) {
  std::vector<TensorFacts> facts;
  facts.reserve(tensors.size());
  std::unordered_map<const void*, size_t> first_of_storage;
  for (const auto& item : tensors) {
    const Tensor& tensor = item.value();
    facts.push_back({.name = item.key(),
                     .dtype = dtype_text(tensor.scalar_type()),
                     .shape = tensor.sizes().vec(),
                     .elements = tensor.numel(),
                     .bytes = static_cast<int64_t>(tensor.nbytes()),
                     .shares = std::nullopt,
                     .sha256 = {}});
    if (tensor.nbytes() == 0) {
      continue;
    }
    const auto [first, is_first] = first_of_storage.emplace(tensor.storage().data(), facts.size() - 1);
    if (!is_first) {
      facts.back().shares = facts[first->second].name;
    }
  }
  return facts;
}

/// Row-major bytes, a piece at a time.
void add_hashes(const StateDict& tensors, std::vector<TensorFacts>& facts) {
  uint64_t total = 0;
  for (const auto& each : facts) {
    total += static_cast<uint64_t>(each.bytes);
  }
  Progress progress("hashing");
  Sha256 sha256;
  uint64_t done = 0;
  size_t index = 0;
  for (const auto& item : tensors) {
    const auto plain = row_major(item.value());
    const auto* data = static_cast<const char*>(plain.const_data_ptr());
    constexpr size_t piece = size_t{16} << 20;
    for (size_t begin = 0; begin < plain.nbytes(); begin += piece) {
      const auto size = std::min(piece, plain.nbytes() - begin);
      sha256.update(data + begin, size);
      done += size;
      progress.show(done, total);
    }
    facts[index++].sha256 = sha256.finish();
  }
}

std::vector<BlockFacts> block_facts(const StateDict& tensors) {
  std::vector<BlockFacts> facts;
  std::map<std::string, std::vector<std::string>> layouts;
  for (auto& block : find_attention(tensors)) {
    layouts[block.prefix].push_back(block.layout);
    facts.push_back({.block = std::move(block), .num_heads = std::nullopt, .other_layouts = {}});
  }
  for (auto& each : facts) {
    for (const auto& layout : layouts[each.block.prefix]) {
      if (layout != each.block.layout) {
        each.other_layouts.push_back(layout);
      }
    }
  }
  return facts;
}

/// What config.json tells for blocks of each width, read once a width.
void add_num_heads(Inspection& inspection) {
  std::map<int64_t, std::optional<int64_t>> by_width;
  for (auto& each : inspection.blocks) {
    const auto d_model = each.block.d_model;
    if (d_model == 0) {
      continue;
    }
    const auto [known, is_new] = by_width.emplace(d_model, std::nullopt);
    if (is_new) {
      try {
        known->second = num_heads_beside(inspection.path, d_model);
      } catch (const Error& error) {
        inspection.config_problem =
            inspection.config_problem.empty() ? error.what() : inspection.config_problem;
      }
    }
    each.num_heads = known->second;
  }
}

}  // namespace

Inspection inspect(const std::string& path, const InspectionOptions& options) {
  const c10::NoGradGuard no_grad;
  auto file = read_weights_file(path, {.verify_checksums = options.verify_checksums});
  Inspection inspection;
  inspection.path = path;
  inspection.format = file.format;
  inspection.metadata = std::move(file.metadata);
  std::error_code ignored;
  const auto size = std::filesystem::file_size(path, ignored);
  inspection.file_bytes = ignored ? 0 : static_cast<int64_t>(size);
  inspection.tensors = tensor_facts(file.tensors);
  if (options.hash) {
    add_hashes(file.tensors, inspection.tensors);
  }
  inspection.blocks = block_facts(file.tensors);
  add_num_heads(inspection);
  return inspection;
}

}  // namespace mha::cli
