#include "cli/conversion.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/text.h"
#include "support/quote.h"

namespace mha::cli {
namespace {

constexpr size_t most_hints = 5;

[[noreturn]] void fail(const ConversionOptions& options, const std::string& problem) {
  throw Error(show(options.path) + ": " + problem);
}

/// The first few, each as `text` puts it: `a, b and 7 more`.
template <typename Text>
std::string some(const std::vector<std::string>& items, const Text& text) {
  std::string result;
  const auto shown = std::min(items.size(), most_hints);
  for (size_t i = 0; i < shown; ++i) {
    result += (i == 0 ? "" : ", ") + text(items[i]);
  }
  return result + (items.size() == shown
                       ? ""
                       : fmt::format(" and {} more", grouped(static_cast<int64_t>(items.size() - shown))));
}

/// The prefix of the one block in the file, of that layout if there are several.
std::string only_prefix(const StateDict& tensors, const ConversionOptions& options) {
  const auto blocks = find_attention(tensors);
  std::vector<std::string> prefixes;
  std::vector<std::string> candidates;
  const auto collect = [&](bool of_layout) {
    for (const auto& block : blocks) {
      const bool known = !prefixes.empty() && prefixes.back() == block.prefix;
      if (!known && (!of_layout || block.layout == options.layout)) {
        prefixes.push_back(block.prefix);
        candidates.push_back(quote(block.prefix) + " (" + block.layout + ")");
      }
    }
  };
  collect(/*of_layout=*/true);
  if (prefixes.empty()) {
    collect(/*of_layout=*/false);
  }
  if (prefixes.empty()) {
    fail(options,
         "expected an attention block, found none in any layout; mha inspect shows what is there, "
         "--keep-names converts it as it is");
  }
  if (prefixes.size() > 1) {
    fail(options, fmt::format("expected one attention block, found {}: {}; choose with --prefix",
                              grouped(static_cast<int64_t>(prefixes.size())),
                              some(candidates, [](const auto& each) { return each; })));
  }
  return prefixes.front();
}

/// `to_lesson`, its errors about the file.
StateDict map(const StateDict& tensors, const ConversionOptions& options, const LoadOptions& load,
              LayoutReport& report) {
  try {
    return to_lesson(tensors, load, &report);
  } catch (const c10::Error& error) {
    std::string problem = error.what_without_backtrace();
    constexpr std::string_view caller = "to_lesson: ";
    problem.erase(0, problem.starts_with(caller) ? caller.size() : 0);
    fail(options, problem + (problem.ends_with("choose one") ? " with --layout" : ""));
  }
}

/// The number of heads, if it is known, and where from.
struct Heads {
  std::optional<int64_t> number;
  std::string origin;
};

Heads heads_of(const ConversionOptions& options, const std::string& layout, int64_t d_model) {
  if (options.num_heads) {
    return {options.num_heads, ""};
  }
  const bool needed = needs_num_heads(layout);
  std::optional<int64_t> told;
  try {
    told = num_heads_beside(options.path, d_model);
  } catch (const Error& error) {
    if (needed) {
      throw Error(error.what() + std::string("; give --num-heads"));
    }
    return {std::nullopt, std::string(" (") + error.what() + ")"};
  }
  if (!told && needed) {
    fail(options, "layout " + quote(layout) +
                      ": expected the number of heads, by --num-heads or in a config.json beside the file, "
                      "found neither");
  }
  return {told, told ? " (config.json)" : ""};
}

std::string line(const std::string& title, const std::string& text) {
  return fmt::format("{:<8} {}\n", title, one_line(text));
}

}  // namespace

Conversion convert_block(const WeightsFile& file, const ConversionOptions& options) {
  const auto prefix = options.prefix ? *options.prefix : only_prefix(file.tensors, options);
  LoadOptions load{.prefix = prefix, .layout = options.layout, .num_heads = 1};
  LayoutReport report;
  // Any number of heads shows layout and width, and these which number it is.
  const auto d_model = map(file.tensors, options, load, report)["W_o.weight"].size(0);
  const auto heads = heads_of(options, report.layout, d_model);
  load.num_heads = heads.number;

  Conversion result;
  result.tensors = map(file.tensors, options, load, report);
  result.metadata = {
      {"format", "pt"}, {"source_layout", report.layout}, {"d_model", std::to_string(d_model)}};
  if (is_utf8(prefix)) {
    result.metadata["source_prefix"] = prefix;
  }
  if (heads.number) {
    result.metadata["num_heads"] = std::to_string(*heads.number);
  }
  if (!report.caveat.empty()) {
    result.metadata["caveat"] = report.caveat;
  }
  result.text =
      line("found", fmt::format("layout {} under {}, d_model {}, num_heads {}{}", report.layout,
                                prefix.empty() ? "no prefix" : quote(prefix), d_model,
                                heads.number ? std::to_string(*heads.number) : "unknown", heads.origin));
  if (!report.zero_biases.empty()) {
    result.text += line("zero", fmt::format("{} (not in the file)", fmt::join(report.zero_biases, ", ")));
  }
  if (!report.ignored.empty()) {
    result.text += line("ignored", counted(report.ignored.size(), "other name") + ": " +
                                       some(report.ignored, [](const auto& name) { return quote(name); }));
  }
  if (!report.caveat.empty()) {
    result.text += line("caveat", report.caveat);
  }
  return result;
}

Conversion keep_names(const WeightsFile& file, const ConversionOptions& options) {
  auto prefix = options.prefix.value_or("");
  if (!prefix.empty() && !prefix.ends_with('.')) {
    prefix += '.';
  }
  Conversion result;
  for (const auto& item : file.tensors) {
    if (item.key().starts_with(prefix)) {
      result.tensors.insert(item.key(), item.value());
    }
  }
  if (result.tensors.is_empty() && !prefix.empty()) {
    fail(options, "expected names under the prefix " + quote(*options.prefix) + ", found none among " +
                      counted(file.tensors.size(), "tensor"));
  }
  result.metadata = file.metadata;
  result.metadata.emplace("format", "pt");
  result.text = line(
      "kept", fmt::format("{} of {}, names unchanged", grouped(static_cast<int64_t>(result.tensors.size())),
                          counted(file.tensors.size(), "tensor")));
  return result;
}

}  // namespace mha::cli
