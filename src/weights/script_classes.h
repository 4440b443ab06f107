/// What TorchScript's code tells of its classes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace mha::weights {

/// Tells parameters and buffers from other tensors that are attributes of a module. Code is searched for the
/// lines that list them, never run.
class ScriptClasses {
 public:
  /// The text of a file of code by its path, such as "__torch__/my/models.py"; nothing when there is none.
  using Code = std::function<std::optional<std::string>(const std::string& path)>;

  explicit ScriptClasses(Code code) : code_(std::move(code)) {}

  /// Whether this attribute of a class, by its full name such as "__torch__.my.models.Encoder", is a parameter
  /// or a buffer. True when its code does not tell.
  bool may_list(std::string_view class_name, std::string_view attribute);

 private:
  using Names = std::unordered_set<std::string>;
  using Classes = std::unordered_map<std::string, Names>;  // parameters and buffers of each, by its own name

  static Classes parse(std::string_view code);

  Code code_;
  std::unordered_map<std::string, Classes> files_;  // read so far, by path without suffix
};

}  // namespace mha::weights
