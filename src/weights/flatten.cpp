#include "weights/flatten.h"

#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "mha/error.h"
#include "support/quote.h"

namespace mha::weights {
namespace {

using Kind = PickleValue::Kind;

/// A value that is reached on several ways has a name for each: these bound a file in which the ways, or the
/// text of their names, multiply.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION  // a fuzzer has no time to come that far
constexpr std::size_t kMaxVisits = 40'000;
#else
constexpr std::size_t kMaxVisits = 4'000'000;
#endif
constexpr std::size_t kMaxNameBytes = std::size_t{64} << 20;
/// More than a checkpoint of 100 000 parameters has with its optimizer. A name costs some 200 bytes.
constexpr std::size_t kMaxTensors = 400'000;
/// Deeper than any model, and no danger to the stack.
constexpr std::size_t kMaxDepth = 256;

const PickleValue* first_of(const PickleValue& tuple) {
  return tuple.is(Kind::kTuple) && !tuple.node().items.empty() ? tuple.node().items.data() : nullptr;
}

std::size_t items_of(const PickleValue& value) {
  return value.has_node() ? value.node().items.size() : 0;
}

/// The dict in which an unknown class keeps what `torch.nn.Module` does; nullptr when it keeps none.
const PickleNode* module_state(const PickleNode& object) {
  const auto is_module = [](const PickleValue& value) {
    return value.is(Kind::kDict) && find_key(value.node(), "_parameters") != nullptr &&
           find_key(value.node(), "_modules") != nullptr;
  };
  if (is_module(object.state)) {
    return &object.state.node();
  }
  // Classes with slots have a tuple of two dicts for a state; torch.fx rebuilds a module from its dict.
  for (const PickleValue* const tuple : {&object.state, &object.arguments}) {
    if (const PickleValue* const first = first_of(*tuple); first != nullptr && is_module(*first)) {
      return &first->node();
    }
  }
  return nullptr;
}

/// The elements of a set, in any of the forms that a pickle can give it; nullptr when it is none.
const std::vector<PickleValue>* items_of_set(const PickleValue* value) {
  if (value != nullptr && value->is(Kind::kSet)) {
    return &value->node().items;
  }
  if (value != nullptr && value->is(Kind::kObject)) {  // set([...])
    const std::vector<PickleValue>& arguments = value->node().arguments.node().items;
    if (!arguments.empty() && arguments[0].is(Kind::kList)) {
      return &arguments[0].node().items;
    }
  }
  return nullptr;
}

class Flattener {
 public:
  Flattener(TensorMaker& tensors, ScriptClasses* classes, const std::string& file)
      : tensors_(tensors), classes_(classes), file_(file) {}

  StateDict run(const PickleValue& value) && {
    visit(value);
    return std::move(result_);
  }

 private:
  void visit(const PickleValue& wrapped) {
    count_visits(1);
    visit_unwrapped(unwrap(wrapped));
  }

  void visit_unwrapped(PickleValue value) {
    if (!value.has_node()) {
      return;
    }
    if (++depth_ > kMaxDepth) {
      refuse("expected at most " + std::to_string(kMaxDepth) + " levels, found more (a circle?)");
    }
    if (is_tensor(value)) {
      add(value);
    } else if (value.is(Kind::kObject)) {
      visit_object(value.node());
    } else if (value.is(Kind::kDict) || value.is(Kind::kList) || value.is(Kind::kTuple)) {
      visit_items(value.node());
    }
    --depth_;
  }

  /// Counts all that is looked at, not only what is looked into: a large dict may be reached often.
  void count_visits(std::size_t more) {
    visits_ += more;
    if (visits_ > kMaxVisits) {
      throw Error(file_ + ": expected at most " + std::to_string(kMaxVisits) +
                  " values in dicts, lists and modules, found more");
    }
  }

  void visit_object(const PickleNode& object) {
    count_visits(items_of(object.state) + items_of(object.arguments));
    for (const PickleValue* const tuple : {&object.state, &object.arguments}) {
      const PickleValue* const first = first_of(*tuple);
      count_visits(first == nullptr ? 0 : items_of(*first));
    }
    if (class_name(object).starts_with("__torch__.")) {
      visit_script_object(object);
    } else if (const PickleNode* const state = module_state(object)) {
      visit_module(*state);
    } else {
      visit_items(object);
    }
  }

  void visit_items(const PickleNode& container) {
    const std::vector<PickleValue>& items = container.items;
    count_visits(items.size());
    if (container.pairs) {
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        visit_key(items[i], items[i + 1]);
      }
      return;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      visit_key(PickleValue::integer(static_cast<std::int64_t>(i)), items[i]);
    }
  }

  void visit_key(const PickleValue& key, const PickleValue& value) {
    if (!value.has_node()) {
      return;
    }
    if (key.is(Kind::kText) || key.is(Kind::kBytes)) {
      visit_named(key.text(), value);
    } else if (key.is(Kind::kInteger)) {
      visit_named(std::to_string(key.integer()), value);
    } else {
      visit_unnamed("keys that are text or integers, found " + describe(key), value);
    }
  }

  void visit_named(std::string_view key, const PickleValue& value) {
    const std::size_t outer = name_.size();
    const bool first = first_;
    count_name_bytes(key.size());
    name_ += first ? "" : ".";
    name_ += key;
    first_ = false;
    visit(value);
    first_ = first;
    name_.resize(outer);
  }

  /// Looks into what cannot be named: only a tensor in there is an error, which tells what was expected.
  void visit_unnamed(std::string expected, const PickleValue& value) {
    const bool outermost = unnamed_.empty();
    if (outermost) {
      unnamed_ = std::move(expected);
    }
    visit(value);
    if (outermost) {
      unnamed_.clear();
    }
  }

  /// As `Module.state_dict()`: parameters, buffers, then sub-modules; each may be None.
  void visit_module(const PickleNode& state) {
    visit_tensors(find_key(state, "_parameters"), {});
    visit_tensors(find_key(state, "_buffers"), texts_of_set(find_key(state, "_non_persistent_buffers_set")));
    const PickleValue* const modules = find_key(state, "_modules");
    if (has_pairs(modules)) {
      visit_items(modules->node());
    }
  }

  std::unordered_set<std::string_view> texts_of_set(const PickleValue* value) {
    std::unordered_set<std::string_view> texts;
    if (const std::vector<PickleValue>* const items = items_of_set(value)) {
      count_visits(items->size());
      for (const PickleValue& item : *items) {
        if (item.is(Kind::kText)) {
          texts.insert(item.text());
        }
      }
    }
    return texts;
  }

  static bool has_pairs(const PickleValue* value) {
    return value != nullptr && (value->is(Kind::kDict) || value->is(Kind::kObject)) && value->node().pairs;
  }

  void visit_tensors(const PickleValue* dict, const std::unordered_set<std::string_view>& but) {
    if (!has_pairs(dict)) {
      return;
    }
    const std::vector<PickleValue>& items = dict->node().items;
    count_visits(items.size());
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i].is(Kind::kText) && but.count(items[i].text()) != 0) {
        continue;
      }
      if (!items[i + 1].is_none() && !is_tensor(items[i + 1])) {
        refuse("expected tensors among parameters and buffers, found " + describe(items[i + 1]) + " at " +
               describe(items[i]));
      }
      visit_key(items[i], items[i + 1]);
    }
  }

  void visit_script_object(const PickleNode& object) {
    if (object.state.is(Kind::kDict)) {
      visit_attributes(class_name(object), object.state.node());
    } else if (object.state.has_node()) {
      visit_unnamed("attributes, found what the __getstate__ of " + quote(class_name(object)) +
                        " made of them (only running its code tells their names)",
                    object.state);
    } else {
      visit_items(object.arguments.node());  // a named tuple
    }
  }

  void visit_attributes(std::string_view owner, const PickleNode& attributes) {
    const std::vector<PickleValue>& items = attributes.items;
    count_visits(items.size());
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const bool is_plain = classes_ != nullptr && items[i].is(Kind::kText) && is_tensor(items[i + 1]) &&
                            !classes_->may_list(owner, items[i].text());
      if (!is_plain) {
        visit_key(items[i], items[i + 1]);
      }
    }
  }

  void add(const PickleValue& record) {
    if (!unnamed_.empty()) {
      refuse("expected " + unnamed_);
    }
    const std::string where = file_ + ": tensor " + quote(name_);
    if (result_.contains(name_)) {
      throw Error(where + ": expected one tensor of that name, found two");
    }
    if (result_.size() == kMaxTensors) {
      throw Error(file_ + ": expected at most " + std::to_string(kMaxTensors) + " tensors, found more");
    }
    count_name_bytes(name_.size());
    result_.insert(name_, tensors_.make(record, where));
  }

  void count_name_bytes(std::size_t more) {
    name_bytes_ += more;
    if (name_bytes_ > kMaxNameBytes) {
      throw Error(file_ + ": expected names of at most " + std::to_string(kMaxNameBytes >> 20) +
                  " MiB together, found more");
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(file_ + ": " + (name_.empty() ? "" : "under " + quote(name_) + ": ") + why);
  }

  TensorMaker& tensors_;
  ScriptClasses* classes_;
  const std::string& file_;
  StateDict result_{"Tensor"};
  std::string name_;     // of the value being visited
  bool first_ = true;    // whether no key has been joined yet
  std::string unnamed_;  // what was expected of its keys; empty when it has a name
  std::size_t depth_ = 0;
  std::size_t visits_ = 0;
  std::size_t name_bytes_ = 0;
};

}  // namespace

StateDict flatten(const PickleValue& value, TensorMaker& tensors, ScriptClasses* classes,
                  const std::string& file) {
  return Flattener(tensors, classes, file).run(value);
}

}  // namespace mha::weights
