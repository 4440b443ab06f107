#include "weights/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "mha/error.h"
#include "support/quote.h"
#include "weights/pickle_opcodes.h"

namespace mha::weights {
namespace {

using Kind = PickleValue::Kind;

/// Memory that one pickle may take beyond its own bytes. A checkpoint of 100 000 tensors with its optimizer
/// needs less than half.
constexpr std::size_t kBudget = std::size_t{160} << 20;

// What things take at most, with the room that growing vectors hold.
constexpr std::size_t kSlotBytes = 2 * sizeof(PickleValue);
constexpr std::size_t kNodeBytes = sizeof(PickleNode) + 32;
constexpr std::size_t kMemoBytes = 2 * sizeof(std::optional<PickleValue>);

constexpr int kHighestProtocol = 5;

/// The machine that pickle opcodes program: a stack with marks, and a memo.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& where)
      : text_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where_(where) {}

  Pickle run() && {
    while (step(static_cast<Opcode>(read<std::uint8_t>()))) {
    }
    pickle_.value = pop();
    pickle_.size = at_;
    return std::move(pickle_);
  }

 private:
  /// Whether the pickle goes on after this opcode.
  bool step(Opcode opcode) {
    switch (opcode) {
      case Opcode::kStop:
        return false;
      case Opcode::kProtocol:
        check_protocol(read<std::uint8_t>());
        break;
      case Opcode::kFrame:
        read<std::uint64_t>();  // a hint for readers from pipes
        break;
      case Opcode::kNone:
        push({});
        break;
      case Opcode::kTrue:
      case Opcode::kFalse:
        push(PickleValue::boolean(opcode == Opcode::kTrue));
        break;
      case Opcode::kInt:
        push(PickleValue::integer(read<std::int32_t>()));
        break;
      case Opcode::kInt1:
        push(PickleValue::integer(read<std::uint8_t>()));
        break;
      case Opcode::kInt2:
        push(PickleValue::integer(read<std::uint16_t>()));
        break;
      case Opcode::kLong1:
        push(long_integer(take(read<std::uint8_t>())));
        break;
      case Opcode::kLong4:
        push(long_integer(take(read<std::uint32_t>())));
        break;
      case Opcode::kReal:
        push(PickleValue::real(std::bit_cast<double>(__builtin_bswap64(read<std::uint64_t>()))));
        break;
      case Opcode::kText:
      case Opcode::kString:  // Python 2's str
        push(text(Kind::kText, read<std::uint32_t>()));
        break;
      case Opcode::kShortText:
      case Opcode::kShortString:
        push(text(Kind::kText, read<std::uint8_t>()));
        break;
      case Opcode::kText8:
        push(text(Kind::kText, read<std::uint64_t>()));
        break;
      case Opcode::kBytes:
        push(text(Kind::kBytes, read<std::uint32_t>()));
        break;
      case Opcode::kShortBytes:
        push(text(Kind::kBytes, read<std::uint8_t>()));
        break;
      case Opcode::kBytes8:
      case Opcode::kByteArray8:
        push(text(Kind::kBytes, read<std::uint64_t>()));
        break;
      default:
        step_with_stack(opcode);
    }
    return true;
  }

  void step_with_stack(Opcode opcode) {
    switch (opcode) {
      case Opcode::kMark:
        charge(kSlotBytes);
        marks_.push_back(stack_.size());
        break;
      case Opcode::kPop:
        // Python pops a mark that lies on top.
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          pop();
        }
        break;
      case Opcode::kPopMark:
        pop_to_mark();
        break;
      case Opcode::kDuplicate:
        push(top());
        break;
      case Opcode::kPut:
        put(read<std::uint8_t>());
        break;
      case Opcode::kLongPut:
        put(read<std::uint32_t>());
        break;
      case Opcode::kMemoize:
        put(memo_.size());
        break;
      case Opcode::kGet:
        get(read<std::uint8_t>());
        break;
      case Opcode::kLongGet:
        get(read<std::uint32_t>());
        break;
      case Opcode::kEmptyList:
        push(container(Kind::kList, {}));
        break;
      case Opcode::kEmptyDict:
        push(container(Kind::kDict, {}));
        break;
      case Opcode::kEmptySet:
        push(container(Kind::kSet, {}));
        break;
      case Opcode::kEmptyTuple:
        push(container(Kind::kTuple, {}));
        break;
      case Opcode::kTuple1:
      case Opcode::kTuple2:
      case Opcode::kTuple3:
        push_tuple(1 + static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::kTuple1));
        break;
      case Opcode::kTuple:
        push(container(Kind::kTuple, pop_to_mark()));
        break;
      case Opcode::kList:
        push(container(Kind::kList, pop_to_mark()));
        break;
      case Opcode::kFrozenSet:
        push(container(Kind::kSet, pop_to_mark()));
        break;
      case Opcode::kDict:
        push(container(Kind::kDict, check_pairs(pop_to_mark())));
        break;
      case Opcode::kAppend:
      case Opcode::kAppends:
        append(Kind::kList, opcode == Opcode::kAppend ? pop_many(1) : pop_to_mark(), /*pairs=*/false);
        break;
      case Opcode::kAddItems:
        append(Kind::kSet, pop_to_mark(), /*pairs=*/false);
        break;
      case Opcode::kSetItem:
      case Opcode::kSetItems:
        append(Kind::kDict, check_pairs(opcode == Opcode::kSetItem ? pop_many(2) : pop_to_mark()),
               /*pairs=*/true);
        break;
      default:
        step_with_objects(opcode);
    }
  }

  void step_with_objects(Opcode opcode) {
    switch (opcode) {
      case Opcode::kGlobal: {
        const std::string_view module = line();
        push(global(module, line()));
        break;
      }
      case Opcode::kStackGlobal: {
        const std::vector<PickleValue> names = pop_many(2);
        if (!names[0].is(Kind::kText) || !names[1].is(Kind::kText)) {
          refuse("expected a module and a name as text, found " + describe(names[0]) + " and " +
                 describe(names[1]));
        }
        push(global(names[0].text(), names[1].text()));
        break;
      }
      case Opcode::kReduce:
      case Opcode::kNew: {
        const std::vector<PickleValue> call = pop_many(2);
        push_object(call[0], call[1]);
        break;
      }
      case Opcode::kNewWithKeywords: {
        const std::vector<PickleValue> call = pop_many(3);
        push_object(call[0], call[1]);
        break;
      }
      case Opcode::kInstance: {
        const std::string_view module = line();
        const PickleValue callable = global(module, line());
        push_object(callable, container(Kind::kTuple, pop_to_mark()));
        break;
      }
      case Opcode::kObject: {
        std::vector<PickleValue> call = pop_to_mark();
        if (call.empty()) {
          refuse("expected a class after the mark, found nothing");
        }
        const PickleValue callable = call.front();
        call.erase(call.begin());
        push_object(callable, container(Kind::kTuple, std::move(call)));
        break;
      }
      case Opcode::kBuild:
        build();
        break;
      case Opcode::kPersistent: {
        PickleNode& node = make_node();
        node.arguments = pop();
        charge(kSlotBytes);
        pickle_.persistent.push_back(&node);
        push(PickleValue::node(Kind::kPersistent, node));
        break;
      }
      default: {
        const auto found = static_cast<char>(opcode);
        refuse("expected an opcode of pickle protocols 2 to 5, found " + quote({&found, 1}));
      }
    }
  }

  // Reading.

  std::string_view take(std::uint64_t size) {
    if (size > text_.size() - at_) {
      refuse("expected " + std::to_string(size) + " more bytes, found " + std::to_string(text_.size() - at_) +
             " (cut short)");
    }
    const std::string_view taken = text_.substr(at_, static_cast<std::size_t>(size));
    at_ += taken.size();
    return taken;
  }

  template <typename Number>
  Number read() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  /// The text up to the end of the line.
  std::string_view line() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) {
      refuse("expected the end of a line, found none (cut short)");
    }
    const std::string_view found = take(end - at_);
    take(1);
    return found;
  }

  PickleValue text(Kind kind, std::uint64_t size) {
    if (size > std::numeric_limits<std::uint32_t>::max()) {
      refuse("expected text of less than 4 GiB, found " + std::to_string(size) + " bytes");
    }
    return PickleValue::text(kind, take(size));
  }

  static PickleValue long_integer(std::string_view bytes) {
    if (bytes.size() > sizeof(std::int64_t)) {
      return PickleValue::text(Kind::kBigInteger, bytes);
    }
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80u) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return PickleValue::integer(value);
  }

  void check_protocol(int protocol) const {
    if (protocol > kHighestProtocol) {
      refuse("expected a pickle of protocol " + std::to_string(kHighestProtocol) + " at most, found " +
             std::to_string(protocol));
    }
  }

  // The stack and the memo.

  void push(PickleValue value) {
    if (stack_.size() == stack_charged_) {
      charge(kSlotBytes);
      ++stack_charged_;
    }
    stack_.push_back(value);
  }

  std::size_t above_mark() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  void check_above_mark(std::size_t count) const {
    if (above_mark() < count) {
      refuse("expected " + std::to_string(count) + " values on the stack, found " +
             std::to_string(above_mark()));
    }
  }

  PickleValue top() const {
    check_above_mark(1);
    return stack_.back();
  }

  PickleValue pop() {
    const PickleValue value = top();
    stack_.pop_back();
    return value;
  }

  std::vector<PickleValue> pop_many(std::size_t count) {
    check_above_mark(count);
    std::vector<PickleValue> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }

  std::vector<PickleValue> pop_to_mark() {
    if (marks_.empty()) {
      refuse("expected a mark on the stack, found none");
    }
    std::vector<PickleValue> values = pop_many(above_mark());
    marks_.pop_back();
    return values;
  }

  void put(std::size_t index) {
    const PickleValue value = top();
    if (index >= memo_.size()) {
      const std::size_t more = index + 1 - memo_.size();
      charge(more > kBudget / kMemoBytes ? kBudget : more * kMemoBytes);
      memo_.resize(index + 1);
    }
    memo_[index] = value;
  }

  void get(std::size_t index) {
    if (index >= memo_.size() || !memo_[index]) {
      refuse("expected a memo of number " + std::to_string(index) + ", found none");
    }
    push(*memo_[index]);
  }

  // Values.

  PickleNode& make_node() {
    charge(kNodeBytes);
    return pickle_.nodes.emplace_back();
  }

  PickleValue container(Kind kind, std::vector<PickleValue> items) {
    charge(items.size() * kSlotBytes);
    PickleNode& node = make_node();
    node.items = std::move(items);
    node.pairs = kind == Kind::kDict;
    return PickleValue::node(kind, node);
  }

  void push_tuple(std::size_t size) { push(container(Kind::kTuple, pop_many(size))); }

  std::vector<PickleValue> check_pairs(std::vector<PickleValue> items) const {
    if (items.size() % 2 != 0) {
      refuse("expected a value for each key, found " + std::to_string(items.size()) + " keys and values");
    }
    return items;
  }

  /// Adds to the container on top of the stack: of this kind, or an object (of a subclass).
  void append(Kind kind, const std::vector<PickleValue>& items, bool pairs) {
    const PickleValue target = top();
    const bool fits = target.is(kind) || (target.is(Kind::kObject) &&
                                          (target.node().items.empty() || target.node().pairs == pairs));
    if (!fits) {
      refuse("expected " +
             std::string(kind == Kind::kList  ? "a list"
                         : kind == Kind::kSet ? "a set"
                                              : "a dict") +
             " to add to, found " + describe(target));
    }
    charge(items.size() * kSlotBytes);
    PickleNode& node = target.node();
    node.items.insert(node.items.end(), items.begin(), items.end());
    node.pairs = pairs;
  }

  PickleValue global(std::string_view module, std::string_view name) {
    std::string full = std::string(module) + "." + std::string(name);
    charge(full.size() + kNodeBytes);
    return PickleValue::text(Kind::kGlobal, *pickle_.names.insert(std::move(full)).first);
  }

  void push_object(PickleValue callable, PickleValue arguments) {
    if (!arguments.is(Kind::kTuple)) {
      refuse("expected arguments in a tuple, found " + describe(arguments));
    }
    PickleNode& node = make_node();
    node.callable = callable;
    node.arguments = arguments;
    if (class_name(node) == "collections.OrderedDict") {
      fill_ordered_dict(node);
    }
    push(PickleValue::node(Kind::kObject, node));
  }

  /// Python 2 gave an OrderedDict its pairs as an argument, later ones set them one by one.
  void fill_ordered_dict(PickleNode& node) {
    node.pairs = true;
    for (const PickleValue& list : node.arguments.node().items) {
      if (!list.is(Kind::kList)) {
        refuse("expected an OrderedDict of a list of pairs, found " + describe(list));
      }
      for (const PickleValue& pair : list.node().items) {
        const bool is_pair = (pair.is(Kind::kList) || pair.is(Kind::kTuple)) && pair.node().items.size() == 2;
        if (!is_pair) {
          refuse("expected an OrderedDict of pairs, found " + describe(pair));
        }
        charge(2 * kSlotBytes);
        node.items.insert(node.items.end(), pair.node().items.begin(), pair.node().items.end());
      }
    }
  }

  void build() {
    const PickleValue state = pop();
    const PickleValue target = top();
    if (!target.is(Kind::kObject)) {
      refuse("expected an object to give its state, found " + describe(target));
    }
    if (!target.node().state.is_none()) {
      refuse("expected one state for " + describe(target) + ", found two");
    }
    target.node().state = state;
  }

  void charge(std::size_t bytes) {
    if (bytes > kBudget - spent_) {
      refuse("expected values of at most " + std::to_string(kBudget >> 20) + " MiB, found more");
    }
    spent_ += bytes;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(where_ + ": byte " + std::to_string(at_) + " of the pickle: " + why);
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
  Pickle pickle_;
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::vector<std::optional<PickleValue>> memo_;
  std::size_t stack_charged_ = 0;
  std::size_t spent_ = 0;
};

}  // namespace

Pickle read_pickle(std::span<const std::byte> bytes, const std::string& where) {
  return Machine(bytes, where).run();
}

}  // namespace mha::weights
