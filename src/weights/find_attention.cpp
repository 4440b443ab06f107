#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mha/weights.h"
#include "weights/attention_block.h"
#include "weights/caveat.h"
#include "weights/layouts.h"
#include "weights/prefix.h"

namespace mha {
namespace {

using weights::Layout;
using weights::Names;

/// Whether `name` is `ending`, or ends in it as a whole component.
bool ends_in(std::string_view name, std::string_view ending) {
  return name == ending || (name.size() > ending.size() && name.ends_with(ending) &&
                            name[name.size() - ending.size() - 1] == '.');
}

/// Looks for blocks among names, each place once.
class Search {
 public:
  Search(const Names& all, const weights::AllNames& around, std::vector<AttentionBlock>& blocks)
      : all_(all), around_(around), blocks_(blocks) {
    for (const Layout& layout : weights::layouts()) {
      outputs_.push_back(weights::weight_name(layout.output));
    }
  }

  /// Adds the block whose output is called `name`, if there is one and its prefix is not in `seen` yet.
  void look(const std::string& name, std::set<std::string>& seen) {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (!ends_in(name, outputs_[i])) {
        continue;
      }
      const std::string prefix = name.substr(0, name.size() - outputs_[i].size());
      if (has_all(prefix, weights::layouts()[i]) && seen.insert(prefix).second) {
        add(prefix);
      }
    }
  }

 private:
  bool has_all(const std::string& prefix, const Layout& layout) const {
    for (const std::string_view pattern : weights::patterns(layout)) {
      if (!all_.contains(prefix + weights::weight_name(pattern))) {
        return false;
      }
    }
    return true;
  }

  void add(const std::string& prefix) {
    Names names;
    for (auto each = all_.lower_bound(prefix); each != all_.end() && each->first.starts_with(prefix);
         ++each) {
      names.emplace(each->first.substr(prefix.size()), each->second);
    }
    for (const weights::Match& match : weights::match(names, weights::layouts())) {
      blocks_.push_back({.prefix = weights::without_final_dot(prefix),
                         .layout = std::string(match.layout->name),
                         .d_model = weights::d_model(*match.layout, names),
                         .caveat = weights::caveat(*match.layout, names, prefix, around_),
                         .problem = match.problem});
    }
  }

  const Names& all_;
  const weights::AllNames& around_;
  std::vector<AttentionBlock>& blocks_;
  std::vector<std::string> outputs_;  // one a layout
};

}  // namespace

std::vector<AttentionBlock> find_attention(const StateDict& state_dict) {
  Names full;
  Names stripped;
  std::set<std::string> twice;
  bool wrapped = false;
  for (const StateDict::Item& item : state_dict) {
    full.emplace(item.key(), &item);
    const std::string name = weights::strip_wrappers(item.key());
    wrapped = wrapped || name != item.key();
    if (!stripped.emplace(name, &item).second) {
      twice.insert(name);
    }
  }
  for (const std::string& name : twice) {
    stripped.erase(name);
  }
  std::vector<AttentionBlock> blocks;
  std::set<std::string> seen;
  const weights::AllNames around = weights::names_without_wrappers(state_dict);
  Search by_full(full, around, blocks);
  for (const StateDict::Item& item : state_dict) {
    by_full.look(item.key(), seen);
  }
  if (wrapped) {
    // Blocks with wrappers between their own names, e.g. each layer compiled.
    std::set<std::string> seen_stripped;
    for (const std::string& prefix : seen) {
      seen_stripped.insert(weights::strip_wrappers(prefix));
    }
    Search by_stripped(stripped, around, blocks);
    for (const StateDict::Item& item : state_dict) {
      by_stripped.look(weights::strip_wrappers(item.key()), seen_stripped);
    }
  }
  return blocks;
}

}  // namespace mha
