#include "weights/script_classes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace mha::weights {
namespace {

bool remove_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

/// Adds the names of `"weight", "bias", ]`; false when anything else stands there.
bool add_names(std::string_view list, std::unordered_set<std::string>& names) {
  while (remove_prefix(list, "\"")) {
    const std::size_t end = list.find('"');
    if (end == std::string_view::npos) {
      return false;
    }
    names.emplace(list.substr(0, end));
    list.remove_prefix(end);
    if (!remove_prefix(list, "\", ")) {
      return false;
    }
  }
  return list == "]";
}

}  // namespace

bool ScriptClasses::may_list(std::string_view class_name, std::string_view attribute) {
  const std::size_t dot = class_name.rfind('.');
  if (dot == std::string_view::npos) {
    return true;
  }
  // Kept by path: dots and slashes in a name can lead to one file in more ways than there is time for.
  std::string path(class_name.substr(0, dot));
  std::replace(path.begin(), path.end(), '.', '/');
  auto known = files_.find(path);
  if (known == files_.end()) {
    const std::optional<std::string> code = code_(path + ".py");
    known = files_.emplace(path, code ? parse(*code) : Classes{}).first;
  }
  const auto found = known->second.find(std::string(class_name.substr(dot + 1)));
  return found == known->second.end() || found->second.count(std::string(attribute)) != 0;
}

/// The classes of a file that list both their parameters and their buffers, as all of today's do:
///
///     class Encoder(Module):
///       __parameters__ = ["weight", "bias", ]
///       __buffers__ = []
ScriptClasses::Classes ScriptClasses::parse(std::string_view code) {
  Classes classes;
  std::string name;  // of the class whose lines these are; empty: of none
  Names names;
  int lists = 0;
  while (!code.empty()) {
    const std::size_t end = std::min(code.find('\n'), code.size());
    std::string_view line = code.substr(0, end);
    code.remove_prefix(std::min(end + 1, code.size()));
    if (remove_prefix(line, "class ")) {
      const std::size_t base = line.find("(Module):");
      name = base == std::string_view::npos ? "" : std::string(line.substr(0, base));
      names.clear();
      lists = 0;
    } else if (!name.empty() &&
               (remove_prefix(line, "  __parameters__ = [") || remove_prefix(line, "  __buffers__ = ["))) {
      lists += add_names(line, names) ? 1 : 0;
      if (lists == 2) {
        classes.emplace(std::exchange(name, ""), std::move(names));
      }
    }
  }
  return classes;
}

}  // namespace mha::weights
