/// Writes pickles of protocol 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mha::weights {

/// Appends opcodes to a pickle; what order of them makes a pickle is for the caller to know.
class PickleWriter {
 public:
  PickleWriter();

  void mark();
  void empty_dict();
  void set_items();  ///< keys and values since the mark into the dict before it
  void tuple();      ///< of what was pushed since the mark
  void integer(std::int64_t value);
  void integers(const std::vector<std::int64_t>& values);  ///< a tuple of them
  void boolean(bool value);
  /// `value` is UTF-8 of less than 4 GiB.
  void text(std::string_view value);
  /// A class or function by module and name.
  void global(const std::string& module, const std::string& name);
  void reduce();      ///< calls the callable below the tuple on top with it
  void persistent();  ///< what the reader finds outside by the id on top

  /// The finished pickle of the one value that is left.
  std::string finish() &&;

 private:
  std::string bytes_;
  std::unordered_map<std::string, std::uint32_t> globals_;  // those written once, by their place in the memo
};

}  // namespace mha::weights
