#include "cli/inspection_text.h"

#include <fmt/ranges.h>

#include <set>

#include "cli/table.h"
#include "cli/text.h"
#include "support/quote.h"
#include "support/shape_text.h"

namespace mha::cli {
namespace {

constexpr size_t longest_value = 80;

/// `(root)` for names without a prefix.
std::string prefix_text(const std::string& prefix) {
  return prefix.empty() ? "(root)" : escape(prefix, std::string::npos);
}

std::string head_text(const Inspection& inspection) {
  int64_t elements = 0;
  int64_t bytes = 0;
  for (const auto& tensor : inspection.tensors) {
    elements += tensor.elements;
    bytes += tensor.bytes;
  }
  auto text = fmt::format("file      {}\nformat    {}\nsize      {}\ntensors   {}, {}, {}\n",
                          escape(inspection.path, std::string::npos), inspection.format,
                          exact_size_text(inspection.file_bytes) +
                              (inspection.format.ends_with("-index") ? ", the index alone" : ""),
                          counted(inspection.tensors.size(), "tensor"),
                          counted(static_cast<size_t>(elements), "element"), exact_size_text(bytes));
  const char* title = "metadata";
  for (const auto& [key, value] : inspection.metadata) {
    text += fmt::format("{:<8}  {} = {}\n", title, escape(key, longest_value), escape(value, longest_value));
    title = "";
  }
  return text;
}

std::string tensors_text(const Inspection& inspection) {
  const bool hashed = !inspection.tensors.empty() && !inspection.tensors.front().sha256.empty();
  std::vector<Table::Column> columns = {
      {"tensor"}, {"shape"}, {"dtype"}, {"bytes", Align::right}, {"size", Align::right}};
  if (hashed) {
    columns.push_back({"sha256"});
  }
  Table table(columns);
  for (const auto& tensor : inspection.tensors) {
    std::vector<std::string> cells = {escape(tensor.name, std::string::npos), shape_text(tensor.shape),
                                      tensor.dtype, grouped(tensor.bytes), size_text(tensor.bytes)};
    if (hashed) {
      cells.push_back(tensor.sha256);
    }
    table.add(std::move(cells), tensor.shares ? "shares memory with " + quote(*tensor.shares) : "");
  }
  return table.text();
}

std::string block_remark(const BlockFacts& facts) {
  std::vector<std::string> remarks;
  if (!facts.block.problem.empty()) {
    remarks.push_back("cannot be the lesson's: " + facts.block.problem);
  } else if (!facts.other_layouts.empty()) {
    remarks.push_back(fmt::format("fits {} too: choose with --layout", fmt::join(facts.other_layouts, ", ")));
  }
  if (facts.block.problem.empty() && !facts.num_heads && needs_num_heads(facts.block.layout)) {
    remarks.emplace_back("needs --num-heads");
  }
  if (!facts.block.caveat.empty()) {
    remarks.push_back(facts.block.caveat);
  }
  return one_line(fmt::format("{}", fmt::join(remarks, "; ")));
}

/// The command that goes on from here, for the first block that can be converted.
std::string next_step(const Inspection& inspection) {
  for (const auto& facts : inspection.blocks) {
    if (!facts.block.problem.empty()) {
      continue;
    }
    auto command = fmt::format("mha convert {} attention.safetensors", shell_text(inspection.path));
    command += " --prefix " + shell_text(facts.block.prefix);
    if (!facts.other_layouts.empty()) {
      command += " --layout " + facts.block.layout;
    }
    if (!facts.num_heads && needs_num_heads(facts.block.layout)) {
      command += " --num-heads N";
    }
    return "\nto write a block by the lesson's names:\n  " + command + "\n";
  }
  return "";
}

std::string attention_text(const Inspection& inspection) {
  if (inspection.blocks.empty()) {
    return "no attention blocks found\n";
  }
  std::set<std::string> prefixes;
  Table table({{"prefix"}, {"layout"}, {"d_model", Align::right}, {"num_heads", Align::right}});
  for (const auto& facts : inspection.blocks) {
    prefixes.insert(facts.block.prefix);
    table.add({prefix_text(facts.block.prefix), facts.block.layout,
               facts.block.d_model > 0 ? std::to_string(facts.block.d_model) : "",
               facts.num_heads ? std::to_string(*facts.num_heads) : ""},
              block_remark(facts));
  }
  auto text = fmt::format("{} found\n\n{}", counted(prefixes.size(), "attention block"), table.text());
  if (!inspection.config_problem.empty()) {
    text += "\nnum_heads is not known: " + one_line(inspection.config_problem) + "\n";
  }
  return text + next_step(inspection);
}

}  // namespace

std::string inspection_text(const Inspection& inspection) {
  return head_text(inspection) + "\n" + (inspection.tensors.empty() ? "" : tensors_text(inspection) + "\n") +
         attention_text(inspection);
}

}  // namespace mha::cli
