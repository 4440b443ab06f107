#include "weights/pickle_value.h"

#include "support/quote.h"

namespace mha::weights {

const PickleValue* find_key(const PickleNode& dict, std::string_view key) {
  for (std::size_t i = dict.items.size(); i >= 2; i -= 2) {
    const PickleValue& each = dict.items[i - 2];
    if ((each.is(PickleValue::Kind::kText) || each.is(PickleValue::Kind::kBytes)) && each.text() == key) {
      return &dict.items[i - 1];
    }
  }
  return nullptr;
}

std::string_view class_name(const PickleNode& object) {
  const PickleValue* callable = &object.callable;
  // The legacy format keeps classes of modules outside, with their source: ("module", class, file, source).
  if (callable->is(PickleValue::Kind::kPersistent) &&
      callable->node().arguments.is(PickleValue::Kind::kTuple)) {
    const std::vector<PickleValue>& id = callable->node().arguments.node().items;
    if (id.size() >= 2 && id[0].is(PickleValue::Kind::kText) && id[0].text() == "module") {
      callable = &id[1];
    }
  }
  return callable->is(PickleValue::Kind::kGlobal) ? callable->text() : std::string_view{};
}

std::string describe(const PickleValue& value) {
  using Kind = PickleValue::Kind;
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.integer() != 0 ? "True" : "False";
    case Kind::kInteger:
      return "the integer " + std::to_string(value.integer());
    case Kind::kBigInteger:
      return "an integer of " + std::to_string(value.text().size()) + " bytes";
    case Kind::kReal:
      return "the number " + std::to_string(value.real());
    case Kind::kText:
      return "the text " + quote(value.text());
    case Kind::kBytes:
      return std::to_string(value.text().size()) + " bytes";
    case Kind::kGlobal:
      return "the class or function " + quote(value.text());
    case Kind::kList:
      return "a list";
    case Kind::kTuple:
      return "a tuple of " + std::to_string(value.node().items.size());
    case Kind::kSet:
      return "a set";
    case Kind::kDict:
      return "a dict";
    case Kind::kObject:
      return "an object of " + quote(class_name(value.node()));
    case Kind::kPersistent:
      return "a storage";
  }
  return "a value";
}

}  // namespace mha::weights
