/// What a pickle holds: values that are read, never run.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace mha::weights {

struct PickleNode;

/// One value. Small ones are held here, text lies in the pickle's own bytes, the others are nodes that any
/// number of values may share, also in a circle.
class PickleValue {
 public:
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInteger,
    kBigInteger,  ///< more than 64 bits: text() is its little-endian two's complement
    kReal,
    kText,
    kBytes,
    kGlobal,  ///< a class or function: text() is its full name, such as "torch.FloatStorage"
    kList,
    kTuple,
    kSet,
    kDict,
    kObject,      ///< whatever calling a global would have made
    kPersistent,  ///< what the writer kept outside: node().arguments is its id
  };

  PickleValue() = default;
  static PickleValue boolean(bool value) { return {Kind::kBool, static_cast<std::int64_t>(value)}; }
  static PickleValue integer(std::int64_t value) { return {Kind::kInteger, value}; }
  static PickleValue real(double value) {
    PickleValue result(Kind::kReal, std::int64_t{0});
    result.payload_.real = value;
    return result;
  }
  /// Of kText, kBytes, kGlobal or kBigInteger; `value` must outlive the result and take less than 4 GiB.
  static PickleValue text(Kind kind, std::string_view value) {
    PickleValue result(kind, std::int64_t{0});
    result.size_ = static_cast<std::uint32_t>(value.size());
    result.payload_.text = value.data();
    return result;
  }
  static PickleValue node(Kind kind, PickleNode& value) {
    PickleValue result(kind, std::int64_t{0});
    result.payload_.node = &value;
    return result;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool has_node() const { return kind_ >= Kind::kList; }

  std::int64_t integer() const { return payload_.integer; }  ///< of kBool and kInteger
  double real() const { return payload_.real; }              ///< of kReal
  /// Of kText, kBytes, kGlobal and kBigInteger.
  std::string_view text() const { return {payload_.text, size_}; }
  PickleNode& node() const { return *payload_.node; }  ///< where has_node()

 private:
  PickleValue(Kind kind, std::int64_t integer) : kind_(kind) { payload_.integer = integer; }

  Kind kind_ = Kind::kNone;
  std::uint32_t size_ = 0;
  union {
    std::int64_t integer;
    double real;
    const char* text;
    PickleNode* node;
  } payload_{0};
};

struct PickleNode {
  /// Elements of a list, tuple or set; keys and values in turn of a dict. An object has those that were put
  /// into it: a subclass of dict its pairs, one of list its elements.
  std::vector<PickleValue> items;
  bool pairs = false;  ///< whether `items` are keys and values

  // Of an object, and of what is persistent only the arguments.
  PickleValue callable;   ///< the class or function: a kGlobal, or odder things in odd files
  PickleValue arguments;  ///< what it would have been called with: a tuple
  PickleValue state;      ///< what it would have been given then: mostly its dict; none when there is none
};

/// A pickle that has been read. It owns all nodes, so that neither circles nor depth matter to their end.
struct Pickle {
  PickleValue value;
  std::size_t size = 0;                       ///< bytes read, to the end of the pickle
  std::vector<const PickleNode*> persistent;  ///< in the order of the file
  std::deque<PickleNode> nodes;
  std::unordered_set<std::string> names;  ///< of globals
};

/// The last value under a text key of a dict's items; nullptr when there is none.
const PickleValue* find_key(const PickleNode& dict, std::string_view key);

/// The full name of what made an object, empty when that is not a global.
std::string_view class_name(const PickleNode& object);

/// What a value is, for messages: `a list`, `the integer 5`, `an object of "argparse.Namespace"`.
std::string describe(const PickleValue& value);

}  // namespace mha::weights
