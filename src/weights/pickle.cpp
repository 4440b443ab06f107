#include "weights/pickle.h"

#include <bit>
#include <cstdint>
#include <utility>

#include "support/quote.h"
#include "weights/pickle_machine.h"
#include "weights/pickle_opcodes.h"

namespace mha::weights {
namespace {

using Kind = PickleValue::Kind;

constexpr int kHighestProtocol = 5;

/// What each opcode does.
class Interpreter : private PickleMachine {
 public:
  Interpreter(std::span<const std::byte> bytes, const std::string& where, std::size_t budget)
      : PickleMachine(bytes, where, budget) {}

  Pickle run() && {
    while (step(static_cast<Opcode>(read<std::uint8_t>()))) {
    }
    pickle_.value = pop();
    pickle_.size = position();
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
        push_mark();
        break;
      case Opcode::kPop:
        pop_or_mark();
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
        put(next_memo());
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

  void check_protocol(int protocol) const {
    if (protocol > kHighestProtocol) {
      refuse("expected a pickle of protocol " + std::to_string(kHighestProtocol) + " at most, found " +
             std::to_string(protocol));
    }
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

  Pickle pickle_;
};

}  // namespace

Pickle read_pickle(std::span<const std::byte> bytes, const std::string& where, std::size_t file_size) {
  return Interpreter(bytes, where, kPickleBudget + file_size).run();
}

}  // namespace mha::weights
