#include "weights/prefix.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "support/quote.h"

namespace mha::weights {
namespace {

constexpr std::string_view kDataParallel = "module.";
constexpr std::string_view kCompiled = "_orig_mod.";
constexpr std::size_t kMaxHints = 5;

/// `name` below `prefix` (no final dot), matched on whole components; nothing when it is elsewhere.
std::optional<std::string> below(const std::string& prefix, const std::string& name) {
  if (prefix.empty()) {
    return name;
  }
  if (name.size() <= prefix.size() || name[prefix.size()] != '.' || !name.starts_with(prefix)) {
    return std::nullopt;
  }
  return name.substr(prefix.size() + 1);
}

/// The prefix itself without wrappers; nothing when it consists of wrappers only.
std::optional<std::string> strip_prefix(const std::string& prefix) {
  if (prefix.empty()) {
    return prefix;
  }
  std::string stripped = strip_wrappers(prefix + ".");
  if (stripped.empty()) {
    return std::nullopt;
  }
  stripped.pop_back();
  return stripped;
}

/// How many of the wanted names a selection has.
std::size_t found(const Selection& selection, const StateDict& wanted) {
  return static_cast<std::size_t>(std::count_if(
      selection.begin(), selection.end(), [&](const auto& each) { return wanted.contains(each.first); }));
}

}  // namespace

Selection select_full(const StateDict& from, const std::string& prefix) {
  Selection selection;
  for (const StateDict::Item& item : from) {
    if (std::optional<std::string> name = below(prefix, item.key())) {
      selection.emplace_back(std::move(*name), &item);
    }
  }
  return selection;
}

Selection select_stripped(const StateDict& from, const std::string& prefix) {
  Selection selection;
  const std::optional<std::string> stripped = strip_prefix(prefix);
  if (!stripped) {
    return selection;
  }
  for (const StateDict::Item& item : from) {
    if (const std::optional<std::string> name = below(*stripped, strip_wrappers(item.key()))) {
      selection.emplace_back(strip_wrappers(*name), &item);  // a wrapper may stand right after the prefix
    }
  }
  return selection;
}

void check_unique(const Selection& selection, const char* caller) {
  std::unordered_map<std::string_view, const StateDict::Item*> seen;
  for (const auto& [name, item] : selection) {
    const auto [before, inserted] = seen.emplace(name, item);
    TORCH_CHECK_VALUE(inserted, caller, ": expected names that differ without their wrappers, found ",
                      quote(before->second->key()), " and ", quote(item->key()));
  }
}

std::string without_final_dot(const std::string& prefix) {
  return prefix.ends_with('.') ? prefix.substr(0, prefix.size() - 1) : prefix;
}

std::string strip_wrappers(const std::string& name) {
  std::string result;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t dot = std::min(name.find('.', begin), name.size() - 1);
    const std::string_view component = std::string_view(name).substr(begin, dot + 1 - begin);
    const bool wrapper = component == kCompiled || (result.empty() && component == kDataParallel);
    if (!wrapper) {
      result += component;
    }
    begin = dot + 1;
  }
  return result;
}

Selection select(const StateDict& from, const std::string& prefix, const StateDict& wanted) {
  const std::string trimmed = without_final_dot(prefix);
  Selection full = select_full(from, trimmed);
  const std::size_t found_full = found(full, wanted);
  if (found_full == wanted.size() && !full.empty()) {
    return full;
  }
  Selection stripped = select_stripped(from, trimmed);
  if (!stripped.empty() && (full.empty() || found(stripped, wanted) > found_full)) {
    check_unique(stripped, "load_state_dict");
    return stripped;
  }
  if (full.empty() && !trimmed.empty()) {
    std::string hints;
    for (const std::string& hint : some_prefixes(from, wanted)) {
      hints += (hints.empty() ? "" : ", ") + quote(hint);
    }
    TORCH_CHECK_VALUE(false, "load_state_dict: expected names under the prefix ", quote(trimmed), ", found ",
                      hints.empty() ? "only names without a prefix" : "the prefixes " + hints);
  }
  return full;
}

std::vector<std::string> some_prefixes(const StateDict& from, const StateDict& wanted) {
  std::vector<std::string> hints;
  const auto add = [&hints](std::string_view hint) {
    if (!hint.empty() && hints.size() < kMaxHints &&
        std::find(hints.begin(), hints.end(), hint) == hints.end()) {
      hints.emplace_back(hint);
    }
  };
  // One name stands for the module: if it is there, so are the others.
  const std::string ending = wanted.is_empty() ? "" : "." + wanted.front().key();
  for (const StateDict::Item& item : from) {
    if (!ending.empty() && item.key().ends_with(ending)) {
      add(std::string_view(item.key()).substr(0, item.key().size() - ending.size()));
    }
  }
  const bool any = hints.empty();
  for (const StateDict::Item& item : from) {
    const std::size_t dot = item.key().rfind('.');
    if (any && dot != std::string::npos) {
      add(std::string_view(item.key()).substr(0, dot));
    }
  }
  return hints;
}

}  // namespace mha::weights
