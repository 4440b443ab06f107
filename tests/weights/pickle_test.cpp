// The unpickler: what each opcode makes, and that nothing a pickle says is run or makes it ask for much.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "torch_testing.h"
#include "weights/pickle.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using weights::Pickle;
using Kind = weights::PickleValue::Kind;

/// Keeps the bytes, in which the text of the values lies.
Pickle read(const std::string& bytes) {
  static std::deque<std::string> kept;
  return weights::read_pickle(std::as_bytes(std::span(kept.emplace_back(bytes))), "file");
}

std::string message_of(const std::string& bytes) {
  return error_of<Error>([&] { read(bytes); });
}

TEST_CASE("pickle: numbers and text", "[weights][torch]") {
  const auto value = [](const std::string& bytes) { return read(bytes).value; };
  CHECK(value(pickle("N")).is_none());
  CHECK(value(pickle("\x88")).integer() == 1);
  CHECK(value(pickle("\x89")).is(Kind::kBool));
  CHECK(value(pickle("K\xFF")).integer() == 255);
  CHECK(value(pickle("M\xFF\xFF")).integer() == 65535);
  CHECK(value(pickle("J\xFF\xFF\xFF\xFF")).integer() == -1);
  CHECK(value(pickle(std::string("\x8a\x00", 2))).integer() == 0);
  CHECK(value(pickle("\x8a\x01\x80")).integer() == -128);
  CHECK(value(pickle(std::string("\x8a\x05\x00\x00\x00\x00\x01", 7))).integer() == std::int64_t{1} << 32);
  CHECK(value(pickle("\x8a\x09" + std::string(9, '\1'))).is(Kind::kBigInteger));
  CHECK(value(pickle(std::string("\x8b\x01\x00\x00\x00\x05", 6))).integer() == 5);
  CHECK(value(pickle(std::string("G\xbf\xe0\x00\x00\x00\x00\x00\x00", 9))).real() == -0.5);
  for (const std::string& bytes : {pickle(text("abc")),
                                   pickle("\x8c\x03"
                                          "abc"),
                                   pickle("\x8d" + bytes_of<std::uint64_t>(3) + "abc"),
                                   pickle("U\x03"
                                          "abc"),
                                   pickle("T" + bytes_of<std::uint32_t>(3) + "abc")}) {
    const Pickle read_back = read(bytes);
    CHECK(read_back.value.is(Kind::kText));
    CHECK(read_back.value.text() == "abc");
  }
  for (const std::string& bytes : {pickle("B" + bytes_of<std::uint32_t>(3) + "abc"),
                                   pickle("C\x03"
                                          "abc"),
                                   pickle("\x8e" + bytes_of<std::uint64_t>(3) + "abc"),
                                   pickle("\x96" + bytes_of<std::uint64_t>(3) + "abc")}) {
    CHECK(read(bytes).value.is(Kind::kBytes));
  }
}

TEST_CASE("pickle: containers, the memo and the stack", "[weights][torch]") {
  CHECK(read(pickle("(K\1K\2l")).value.node().items.size() == 2);
  CHECK(read(pickle("K\1K\2K\3\x87")).value.node().items.size() == 3);
  CHECK(read(pickle("K\1\x85")).value.is(Kind::kTuple));
  CHECK(read(pickle("(K\1K\2d")).value.node().pairs);
  CHECK(read(pickle("\x8f(K\1\x90")).value.is(Kind::kSet));
  CHECK(read(pickle("(K\1\x91")).value.is(Kind::kSet));
  CHECK(read(pickle("K\7"
                    "2\x86"))
            .value.node()
            .items[1]
            .integer() == 7);
  CHECK(read(pickle("K\1K\2"
                    "0"))
            .value.integer() == 1);
  CHECK(read(pickle("K\1(K\2K\3"
                    "1"))
            .value.integer() == 1);
  CHECK(read(pickle("K\1(0")).value.integer() == 1);
  // A list that holds itself, and a value that is shared, are what they are.
  const Pickle circle = read(pickle("]q\1h\1a"));
  CHECK(&circle.value.node().items[0].node() == &circle.value.node());
  CHECK(read(pickle("]\x94h" + std::string(1, '\0') + "\x86")).value.node().items.size() == 2);
  CHECK(read(std::string("\x80\x04\x95\x03\0\0\0\0\0\0\0N.", 13)).value.is_none());
  CHECK(read(pickle("N") + "more").size == 4);
}

TEST_CASE("pickle: classes and calls are only recorded", "[weights][torch]") {
  const std::string system = global("os", "system");
  for (const std::string& bytes : {call(system, {text("touch /tmp/never")}),
                                   system + tuple({text("x")}) + "\x81", "(" + system + text("x") + "o",
                                   "(" + text("x") + "ios\nsystem\n", system + tuple({text("x")}) + "}\x92",
                                   text("os") + text("system") + "\x93" + tuple({text("x")}) + "R"}) {
    const Pickle read_back = read(pickle(bytes));
    REQUIRE(read_back.value.is(Kind::kObject));
    CHECK(weights::class_name(read_back.value.node()) == "os.system");
    CHECK(read_back.value.node().arguments.node().items.size() == 1);
  }
  const Pickle built = read(pickle(call(global("a", "B"), {}) + dict({{text("k"), "K\1"}}) + "b"));
  CHECK(weights::find_key(built.value.node().state.node(), "k")->integer() == 1);
  const Pickle filled = read(pickle(call(global("a", "B"), {}) + "(" + text("k") + "K\1u"));
  CHECK(filled.value.node().pairs);
  const Pickle python2 =
      read(pickle(call(global("collections", "OrderedDict"), {list({list({text("k"), "K\1"})})})));
  CHECK(weights::find_key(python2.value.node(), "k")->integer() == 1);
}

TEST_CASE("pickle: every broken rule is refused by name", "[weights][torch]") {
  struct Row {
    std::string rule;
    std::string bytes;
    std::string message;
  };
  const std::string big = bytes_of(~std::uint64_t{0});
  const std::vector<Row> rows{
      {"nothing", "", "file: byte 0 of the pickle: expected 1 more bytes, found 0 (cut short)"},
      {"no end", "\x80\x02N", "cut short"},
      {"an end without a value", pickle(""), "expected 1 values on the stack, found 0"},
      {"protocol 6", "\x80\x06N.", "protocol 5 at most, found 6"},
      {"unknown opcode", pickle("\xFF"), R"(expected an opcode of pickle protocols 2 to 5, found "\xff")"},
      {"text opcode of protocol 0", pickle("I1\n"), R"(found "I")"},
      {"extension", pickle("\x82\x01"), R"(found "\x82")"},
      {"out-of-band buffer", pickle("\x97"), R"(found "\x97")"},
      {"text past the end", pickle("X" + bytes_of<std::uint32_t>(0xFFFFFFFF)),
       "expected 4294967295 more bytes"},
      {"text of 2^64 - 1", pickle("\x8d" + big), "less than 4 GiB"},
      {"bytes of 2^64 - 1", pickle("\x8e" + big), "less than 4 GiB"},
      {"long past the end", pickle("\x8b" + bytes_of<std::uint32_t>(0x7FFFFFFF)), "more bytes"},
      {"a name without an end",
       "\x80\x02"
       "cos",
       "expected the end of a line"},
      {"get of nothing", pickle("h\1"), "expected a memo of number 1, found none"},
      {"get from a hole", pickle("Nq\5h\4"), "expected a memo of number 4"},
      {"put of nothing", pickle("q\1"), "on the stack, found 0"},
      {"memo of 2^32 - 1", pickle("Nr" + bytes_of<std::uint32_t>(0xFFFFFFFF)), "at most 160 MiB"},
      {"no mark", pickle("K\1t"), "expected a mark on the stack, found none"},
      {"pop below a mark", pickle("K\1(\x85"), "expected 1 values on the stack, found 0"},
      {"a key without a value", pickle("}(K\1u"), "a value for each key, found 1"},
      {"dict without a value", pickle("(K\1d"), "a value for each key"},
      {"append to a tuple", pickle(")K\1a"), "expected a list to add to, found a tuple of 0"},
      {"append to a number", pickle("K\1K\1a"), "expected a list to add to, found the integer 1"},
      {"set item of a list", pickle("]K\1K\1s"), "expected a dict to add to, found a list"},
      {"add to a dict", pickle("}(K\1\x90"), "expected a set to add to, found a dict"},
      {"call without a tuple", pickle(global("a", "b") + "]R"), "arguments in a tuple, found a list"},
      {"object of nothing", pickle("(o"), "expected a class after the mark"},
      {"state of a dict", pickle("}}b"), "expected an object to give its state, found a dict"},
      {"state twice", pickle(call(global("a", "B"), {}) + "}b}b"),
       R"(one state for an object of "a.B", found two)"},
      {"names that are numbers", pickle("K\1K\1\x93"), "module and a name as text"},
      {"OrderedDict of a number", pickle(call(global("collections", "OrderedDict"), {"K\1"})),
       "list of pairs"},
      {"OrderedDict of numbers", pickle(call(global("collections", "OrderedDict"), {list({"K\1"})})),
       "of pairs"},
  };
  for (const Row& row : rows) {
    INFO(row.rule);
    CHECK_THAT(message_of(row.bytes), ContainsSubstring(row.message));
  }
}

TEST_CASE("pickle: a small file cannot ask for much", "[weights][torch]") {
  SECTION("a stack, marks, empty containers without end") {
    for (const char opcode : {'N', '(', '}', ']', ')'}) {
      CHECK_THAT(message_of("\x80\x02" + std::string(12'000'000, opcode)),
                 ContainsSubstring("at most 160 MiB"));
    }
  }
  SECTION("an OrderedDict of one list, again and again") {
    std::string bytes = "\x80\x02](";
    for (int i = 0; i < 5000; ++i) {
      bytes += "NN\x86";
    }
    bytes += "eq\1";
    for (int i = 0; i < 5000; ++i) {
      bytes += global("collections", "OrderedDict") + "h\1\x85R";
    }
    CHECK_THAT(message_of(bytes), ContainsSubstring("at most 160 MiB"));
  }
  SECTION("but a large one may ask for as much as it has") {
    const std::string bytes = "\x80\x02" + std::string(6'000'000, 'N') + ".";
    CHECK_THAT(message_of(bytes), ContainsSubstring("at most 160 MiB"));
    const auto pickle_bytes = std::as_bytes(std::span(bytes));
    CHECK(weights::read_pickle(pickle_bytes, "file", std::size_t{64} << 20).value.is_none());
  }
  SECTION("nesting of a million lists is read, and freed, without recursion") {
    std::string bytes = "\x80\x02";
    for (int i = 0; i < 300'000; ++i) {
      bytes += "]";
    }
    bytes += std::string(299'999, 'a') + ".";
    CHECK(read(bytes).value.is(Kind::kList));
  }
}

}  // namespace
}  // namespace mha::testing
