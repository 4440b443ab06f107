#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mha/weights.h"
#include "support/quote.h"
#include "weights/attention_block.h"
#include "weights/caveat.h"
#include "weights/layouts.h"
#include "weights/prefix.h"

namespace mha {
namespace {

using weights::Layout;
using weights::Match;
using weights::Names;

constexpr std::size_t kMaxHints = 5;
constexpr std::string_view kAuto = "auto";
constexpr std::array<const char*, 4> kLessonLayers{"W_q", "W_k", "W_v", "W_o"};

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) {
    text += (text.empty() ? "" : ", ") + item;
  }
  return text;
}

std::string in_layout(const Layout& layout) {
  return "layout " + quote(layout.name);
}

/// The rows that `name` asks for.
std::span<const Layout> rows_of(const std::string& name) {
  if (name.empty() || name == kAuto) {
    return weights::layouts();
  }
  const Layout* layout = weights::find_layout(name);
  TORCH_CHECK_VALUE(layout != nullptr, "to_lesson: expected a layout of auto, ", joined(layout_names()),
                    ", found ", quote(name));
  return {layout, 1};
}

Names names_of(const weights::Selection& selection) {
  Names names;
  for (const auto& [name, item] : selection) {
    names.emplace(name, item);
  }
  return names;
}

/// The tensors under a prefix and the layouts that they match. Full names come first, as `select` has it.
struct Found {
  Names names;
  std::vector<Match> matches;
};

Found find(const StateDict& state_dict, const std::string& prefix, std::span<const Layout> rows) {
  Found full{names_of(weights::select_full(state_dict, prefix)), {}};
  full.matches = weights::match(full.names, rows);
  if (!full.matches.empty()) {
    return full;
  }
  const weights::Selection selection = weights::select_stripped(state_dict, prefix);
  Found stripped{names_of(selection), {}};
  stripped.matches = weights::match(stripped.names, rows);
  if (stripped.matches.empty()) {
    return full;
  }
  weights::check_unique(selection, "to_lesson");
  return stripped;
}

/// Where else there is attention.
std::string hint(const StateDict& state_dict) {
  std::vector<std::string> hints;
  const std::vector<AttentionBlock> blocks = find_attention(state_dict);
  for (const AttentionBlock& block : blocks) {
    if (hints.size() < kMaxHints) {
      hints.push_back(quote(block.prefix) + " (" + block.layout + ")");
    }
  }
  if (hints.empty()) {
    return "found none in any layout";
  }
  const std::size_t more = blocks.size() - hints.size();
  return "found attention under the prefixes " + joined(hints) +
         (more == 0 ? "" : " and " + std::to_string(more) + " more");
}

/// The one match; otherwise throws what is wrong with all of them.
const Layout& choose(const StateDict& state_dict, const std::string& prefix, std::span<const Layout> rows,
                     const std::vector<Match>& matches) {
  const std::string where = prefix.empty() ? "" : " under the prefix " + quote(prefix);
  if (matches.empty() && rows.size() == 1) {
    std::vector<std::string> expected;
    for (const std::string_view pattern : weights::patterns(rows.front())) {
      expected.push_back(quote(weights::weight_name(pattern)));
    }
    TORCH_CHECK_VALUE(false, "to_lesson: ", in_layout(rows.front()), ": expected ", joined(expected), where,
                      ", ", hint(state_dict));
  }
  TORCH_CHECK_VALUE(!matches.empty(), "to_lesson: expected the weights of an attention block",
                    where.empty() ? " without a prefix" : where, ", ", hint(state_dict));
  std::vector<std::string> candidates;
  candidates.reserve(matches.size());
  for (const Match& each : matches) {
    candidates.push_back(in_layout(*each.layout) + (each.problem.empty() ? "" : ": " + each.problem));
  }
  if (!matches.front().problem.empty()) {
    std::string problems;
    for (const std::string& candidate : candidates) {
      problems += (problems.empty() ? "" : "; or ") + candidate;
    }
    TORCH_CHECK_VALUE(false, "to_lesson: expected weights that fit the lesson", where, "; ", problems);
  }
  TORCH_CHECK_VALUE(matches.size() == 1, "to_lesson: expected one layout", where, ", found the names of ",
                    joined(candidates), ": choose one");
  return *matches.front().layout;
}

void check_num_heads(const Layout& layout, const LoadOptions& options, int64_t d_model) {
  if (!options.num_heads) {
    TORCH_CHECK_VALUE(
        !weights::needs_num_heads(layout), "to_lesson: ", in_layout(layout),
        ": expected LoadOptions::num_heads, without which its weights cannot be told apart, found "
        "none");
    return;
  }
  TORCH_CHECK_VALUE(*options.num_heads > 0 && d_model % *options.num_heads == 0,
                    "to_lesson: ", in_layout(layout), ": expected num_heads that divides d_model ", d_model,
                    ", found ", *options.num_heads);
}

/// The names that no projection has.
std::vector<std::string> ignored(const Layout& layout, const Names& names) {
  std::set<std::string> used{std::string(layout.stacked_bias)};
  for (const std::string_view pattern : weights::patterns(layout)) {
    used.insert(weights::weight_name(pattern));
    used.insert(weights::bias_name(pattern));
  }
  std::vector<std::string> rest;
  for (const auto& [name, item] : names) {
    if (!used.contains(name)) {
      rest.push_back(item->key());
    }
  }
  return rest;
}

}  // namespace

StateDict to_lesson(const StateDict& state_dict, const LoadOptions& options, LayoutReport* report) {
  const std::span<const Layout> rows = rows_of(options.layout);
  const std::string prefix = weights::without_final_dot(options.prefix);
  const auto [names, matches] = find(state_dict, prefix, rows);
  const Layout& layout = choose(state_dict, prefix, rows, matches);
  check_num_heads(layout, options, weights::d_model(layout, names));

  LayoutReport found{
      .layout = std::string(layout.name),
      .caveat = weights::caveat(layout, names, prefix, weights::names_without_wrappers(state_dict)),
      .zero_biases = {},
      .ignored = ignored(layout, names)};
  const c10::NoGradGuard no_grad;
  StateDict result;
  const auto projections = weights::projections(layout, names, options.num_heads.value_or(1));
  for (std::size_t i = 0; i < projections.size(); ++i) {
    const auto& [weight, bias] = projections[i];
    const std::string layer = kLessonLayers[i];
    result.insert(layer + ".weight", weight);
    result.insert(layer + ".bias", bias.defined() ? bias : at::zeros({weight.size(0)}, weight.options()));
    if (!bias.defined()) {
      found.zero_biases.push_back(layer + ".bias");
    }
  }
  if (report != nullptr) {
    *report = std::move(found);
  }
  return result;
}

}  // namespace mha
