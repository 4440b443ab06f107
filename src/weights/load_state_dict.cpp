#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mha/weights.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/shape_text.h"
#include "weights/prefix.h"
#include "weights/unreadable.h"

namespace mha {
namespace {

constexpr std::size_t kMaxListed = 20;

/// What keeps values from being copied into `target`, a tensor of the module; empty: nothing.
std::string unwritable(const torch::Tensor& target) {
  if (target.is_inference() && !c10::InferenceMode::is_enabled()) {
    return "an inference tensor outside InferenceMode";
  }
  if (target.layout() != torch::kStrided || target.is_nested()) {
    return "a tensor that is not dense";
  }
  if (target.is_quantized() || target.is_meta()) {
    return target.is_meta() ? "a meta tensor" : "a quantized tensor";
  }
  return at::has_internal_overlap(target) == at::MemOverlap::Yes ? "an expanded tensor" : "";
}

/// Why `source` does not fit `target`; empty: it does.
std::string misfit(const torch::Tensor& target, const torch::Tensor& source) {
  if (const std::string what = unwritable(target); !what.empty()) {
    return "expected a module that can be written, found " + what;
  }
  if (const std::string what = weights::unreadable(source); !what.empty()) {
    return "expected a dense tensor, found " + what;
  }
  if (target.sizes() != source.sizes()) {
    return "expected " + shape_text(target.sizes()) + ", found " + shape_text(source.sizes());
  }
  if (source.is_complex() && !target.is_complex()) {
    return std::string("expected real values, found ") + dtype_text(source.scalar_type());
  }
  return "";
}

/// Adds `; title item, item and N more` to `message`, or nothing if there are no items.
void list(std::string& message, const char* title, const std::vector<std::string>& items) {
  for (std::size_t i = 0; i < items.size() && i < kMaxListed; ++i) {
    message += (i == 0 ? (message.empty() ? "" : "; ") + std::string(title) + " " : ", ") + items[i];
  }
  if (items.size() > kMaxListed) {
    message += " and " + std::to_string(items.size() - kMaxListed) + " more";
  }
}

void load_selected(torch::nn::Module& module, const StateDict& state_dict, const std::string& prefix) {
  const StateDict targets = mha::state_dict(module);
  const weights::Selection selection = weights::select(state_dict, prefix, targets);

  std::unordered_map<std::string, const torch::Tensor*> sources;
  std::vector<std::string> unexpected;
  for (const auto& [name, item] : selection) {
    if (targets.contains(name)) {
      sources.emplace(name, &item->value());
    } else {
      unexpected.push_back(quote(item->key()));
    }
  }
  std::vector<std::string> missing;
  std::vector<std::string> misfits;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // into, from
  for (const StateDict::Item& target : targets) {
    const auto source = sources.find(target.key());
    if (source == sources.end()) {
      missing.push_back(quote(target.key()));
      continue;
    }
    const std::string why = misfit(target.value(), *source->second);
    if (!why.empty()) {
      misfits.push_back(quote(target.key()) + " (" + why + ")");
    }
    copies.emplace_back(target.value(), *source->second);
  }
  std::string message;
  list(message, "missing", missing);
  list(message, "unexpected", unexpected);
  list(message, "not fitting", misfits);
  if (sources.empty() && !missing.empty()) {
    std::vector<std::string> hints;
    for (const std::string& prefix : weights::some_prefixes(state_dict, targets)) {
      hints.push_back(quote(prefix));
    }
    list(message, "the names have the prefixes", hints);
  }
  TORCH_CHECK_VALUE(message.empty(), "load_state_dict: ", message);

  // Detached, the targets still share memory and version counter with the module: autograd notices the
  // writes.
  const c10::NoGradGuard no_grad;
  for (auto& [into, from] : copies) {
    into.copy_(from);
  }
}

}  // namespace

void load_state_dict(torch::nn::Module& module, const StateDict& state_dict, const LoadOptions& options,
                     LayoutReport* report) {
  if (options.layout.empty()) {
    load_selected(module, state_dict, options.prefix);
    return;
  }
  LayoutReport found;
  load_selected(module, to_lesson(state_dict, options, &found), /*prefix=*/"");
  if (report != nullptr) {
    *report = std::move(found);
  } else if (!found.caveat.empty()) {
    TORCH_WARN("load_state_dict: layout ", found.layout, ": ", found.caveat);
  }
}

}  // namespace mha
