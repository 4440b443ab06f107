// One broken rule of the format per row: each must be refused by name.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "mha/weights.h"
#include "weights_testing.h"

namespace mha::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

struct BrokenFile {
  std::string rule;
  std::string bytes;
  std::string message;  // part of it
};

/// A file of one tensor "a" with this object as its value.
std::string one(const std::string& value, std::size_t data_size = 0) {
  return safetensors("{\"a\":" + value + "}", data_size);
}

std::string f32(const std::string& shape, const std::string& offsets) {
  return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string repeat(const std::string& text, std::size_t times) {
  std::string result;
  while (times-- > 0) {
    result += text;
  }
  return result;
}

std::vector<BrokenFile> broken_headers() {
  const std::string a = f32("[1]", "[0,4]");
  const std::string nul(1, '\0');
  return {
      {"shorter than its length field", "\x02" + std::string(4, '\0'), "not a weights file"},
      {"only the length field", length_bytes(2), "not a weights file"},
      {"no header", safetensors(""), "not a weights file"},
      {"header longer than the file", length_bytes(100) + "{}",
       "header of 100 bytes, found 2 (file cut short)"},
      {"header one byte longer than the file", length_bytes(3) + "{}", "header of 3 bytes, found 2"},
      {"header over the cap", length_bytes(100'000'001) + "{}", "at most 100000000 bytes, found 100000001"},
      {"header length near 2^56", length_bytes((std::uint64_t{1} << 56) - 1) + "{}", "at most 100000000"},
      {"header length 2^64 - 1", length_bytes(~std::uint64_t{0}) + "{}", "not a weights file"},
      {"empty header before '{'", length_bytes(0) + "{}", "begins with '{'"},
      {"header is an array", safetensors("[]"), "not a weights file"},
      {"header begins with a space", safetensors(" {}"), "not a weights file"},
      {"header begins with a byte order mark", safetensors("\xEF\xBB\xBF{}"), "not a weights file"},
      {"JSON cut", safetensors(R"({"a")"), "ends with '}' and spaces"},
      {"JSON ends in a line feed", safetensors("{}\n"), R"(ends with '}' and spaces, found "{}\x0a")"},
      {"two objects", safetensors("{}{}"), "valid JSON"},
      {"text after the object", safetensors("{} x}"), "valid JSON"},
      {"NUL after the object", safetensors("{}" + nul + "}"), "valid JSON, found at its byte 2: NUL"},
      {"NUL in a name", safetensors("{\"" + nul + "\":" + a + "}", 4), "NUL"},
      {"comment", safetensors("{/* */}"), "valid JSON"},
      {"trailing comma", one(a + ",", 4), "valid JSON"},
      {"unquoted name", safetensors("{a:" + a + "}", 4), "valid JSON"},
      {"NaN", one(f32("[NaN]", "[0,4]"), 4), "valid JSON"},
      {"number out of range", one(f32("[1e999]", "[0,4]"), 4), "valid JSON"},
      {"leading zero", one(f32("[01]", "[0,4]"), 4), "valid JSON"},
      {"UTF-8: stray byte", safetensors("{\"\xFF\":" + a + "}", 4), "valid JSON"},
      {"UTF-8: overlong", safetensors("{\"\xC0\xAF\":" + a + "}", 4), "valid JSON"},
      {"UTF-8: surrogate", safetensors("{\"\xED\xA0\x80\":" + a + "}", 4), "valid JSON"},
      {"escaped lone surrogate", safetensors(R"({"\ud800":)" + a + "}", 4), "valid JSON"},
      {"control character in a name", safetensors("{\"a\nb\":" + a + "}", 4), "valid JSON"},
      {"the same tensor twice", safetensors("{\"a\":" + a + ",\"a\":" + a + "}", 4), R"("a": expected once)"},
      {"the same tensor twice, escaped", safetensors("{\"a\":" + a + ",\"\\u0061\":" + a + "}", 4),
       "expected once"},
      {"metadata twice", safetensors(R"({"__metadata__":{},"__metadata__":{}})"), "expected once"},
      {"metadata key twice", safetensors(R"({"__metadata__":{"k":"1","k":"2"}})"),
       R"(metadata key "k": expected once)"},
      {"metadata is null", safetensors(R"({"__metadata__":null})"), "object of strings, found null"},
      {"metadata is text", safetensors(R"({"__metadata__":"x"})"), R"(object of strings, found "x")"},
      {"metadata holds a number", safetensors(R"({"__metadata__":{"k":1}})"),
       R"("k": expected a string, found 1)"},
      {"metadata holds an object", safetensors(R"({"__metadata__":{"k":{}}})"),
       "expected a string, found an object"},
      {"metadata holds an array", safetensors(R"({"__metadata__":{"k":[]}})"),
       "expected a string, found an array"},
      {"deep nesting", one(repeat("[", 100'000) + repeat("]", 100'000)), "found an array"},
  };
}

std::vector<BrokenFile> broken_fields() {
  const std::string shape = R"("shape":[1])";
  const std::string offsets = R"("data_offsets":[0,4])";
  const std::string dtype = R"("dtype":"F32")";
  const auto fields = [](const std::string& x, const std::string& y, const std::string& z) {
    return one("{" + x + "," + y + "," + z + "}", 4);
  };
  return {
      {"tensor is a number", one("1"), "expected an object with dtype, shape and data_offsets, found 1"},
      {"tensor is true", one("true"), "found true"},
      {"tensor is an array", one("[]"), "found an array"},
      {"no field", one("{}"), R"(expected a field "dtype")"},
      {"no dtype", one("{" + shape + "," + offsets + "}", 4), R"(expected a field "dtype", found none)"},
      {"no shape", one("{" + dtype + "," + offsets + "}", 4), R"(expected a field "shape", found none)"},
      {"no offsets", one("{" + dtype + "," + shape + "}"), R"(expected a field "data_offsets", found none)"},
      {"unknown field", one("{\"strides\":[1]," + dtype + "}"), R"(found "strides")"},
      {"dtype twice", one("{" + dtype + "," + dtype + "}"), R"("dtype" once)"},
      {"shape twice", one("{" + shape + "," + shape + "}"), R"("shape" once)"},
      {"offsets twice", one("{" + offsets + "," + offsets + "}"), R"("data_offsets" once)"},
      {"dtype is a number", fields(R"("dtype":1)", shape, offsets), "dtype: expected a string, found 1"},
      {"dtype is null", fields(R"("dtype":null)", shape, offsets), "dtype: expected a string, found null"},
      {"dtype is unknown", fields(R"("dtype":"F33")", shape, offsets), R"(found "F33")"},
      {"dtype in small letters", fields(R"("dtype":"f32")", shape, offsets), R"(found "f32")"},
      {"dtype of less than a byte", fields(R"("dtype":"F4")", shape, offsets), R"(found "F4")"},
      {"dtype is empty", fields(R"("dtype":"")", shape, offsets), R"(found "")"},
      {"shape is a number", fields(dtype, R"("shape":1)", offsets),
       "shape: expected an array of integers, found 1"},
      {"shape is an object", fields(dtype, R"("shape":{})", offsets), "found an object"},
      {"shape is nested", fields(dtype, R"("shape":[[1]])", offsets), "shape: expected integers"},
      {"shape holds text", fields(dtype, R"("shape":["1"])", offsets), R"(found "1")"},
      {"shape holds null", fields(dtype, R"("shape":[null])", offsets), "found null"},
      {"shape is negative", fields(dtype, R"("shape":[-1])", offsets), "found -1"},
      {"shape is minus zero", fields(dtype, R"("shape":[-0])", offsets), "found -0"},
      {"shape is a fraction", fields(dtype, R"("shape":[1.0])", offsets), "found 1.0"},
      {"shape has an exponent", fields(dtype, R"("shape":[1e0])", offsets), "found 1e0"},
      {"shape is 2^63", one(f32("[9223372036854775808]", "[0,4]"), 4), "found 9223372036854775808"},
      {"shape is 2^64", one(f32("[18446744073709551616]", "[0,4]"), 4), "found 18446744073709551616"},
      {"rank 65", one(f32("[" + repeat("1,", 64) + "1]", "[0,4]"), 4), "at most 64 dimensions"},
      {"offsets are text", fields(dtype, shape, R"("data_offsets":"0,4")"),
       "data_offsets: expected an array"},
      {"offsets are negative", fields(dtype, shape, R"("data_offsets":[-4,0])"), "found -4"},
      {"offset is a fraction", fields(dtype, shape, R"("data_offsets":[0,4.5])"), "found 4.5"},
      {"no offset", fields(dtype, shape, R"("data_offsets":[])"), "two data_offsets, found 0"},
      {"one offset", fields(dtype, shape, R"("data_offsets":[4])"), "two data_offsets, found 1"},
      {"three offsets", fields(dtype, shape, R"("data_offsets":[0,4,8])"), "two data_offsets, found more"},
  };
}

std::vector<BrokenFile> broken_layouts() {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data_size) {
    return safetensors(R"({"a":)" + a + R"(,"b":)" + b + "}", data_size);
  };
  const std::string big = std::to_string(std::int64_t{1} << 62);
  const std::string max = std::to_string(std::numeric_limits<std::uint64_t>::max());
  return {
      {"offsets reversed", one(f32("[1]", "[4,0]"), 4), "do not decrease, found [4, 0]"},
      {"offsets reversed and wrapping", one(f32("[1]", "[" + max + ",3]"), 4), "do not decrease"},
      {"too few bytes", one(f32("[2]", "[0,4]"), 4),
       "expected 8 bytes for F32 (2,), found data_offsets [0, 4]"},
      {"too many bytes", one(f32("[]", "[0,8]"), 8), "expected 4 bytes for F32 ()"},
      {"bytes for an empty tensor", one(f32("[0]", "[0,4]"), 4), "expected 0 bytes"},
      {"no bytes for a tensor", one(f32("[1]", "[0,0]")), "expected 4 bytes"},
      {"product of dimensions wraps to 0", one(f32("[" + big + ",4]", "[0,0]")), "less than 2^63 bytes"},
      {"product of dimensions wraps to 4", one(f32("[" + big + "," + big + ",4]", "[0,0]")),
       "less than 2^63"},
      {"product with the item size wraps", one(f32("[" + big + "]", "[0,0]")), "less than 2^63 bytes"},
      {"strides wrap, zero first", one(f32("[0," + big + "," + big + "]", "[0,0]")), "less than 2^63"},
      {"strides wrap, zero last", one(f32("[" + big + "," + big + ",0]", "[0,0]")), "less than 2^63"},
      {"data missing", one(f32("[1]", "[0,4]")),
       "expected 4 bytes of data after the header, found 0 (file cut short)"},
      {"data cut by one byte", one(f32("[1]", "[0,4]"), 3), "found 3 (file cut short)"},
      {"offsets far beyond the file",
       one(f32("[1]", "[" + big + "," + std::to_string((1LL << 62) + 4) + "]"), 4), "(a gap)"},
      {"trailing byte", one(f32("[1]", "[0,4]"), 5),
       "expected 4 bytes of data after the header, found 5 (trailing"},
      {"data without tensors", safetensors("{}", 1), "expected 0 bytes of data"},
      {"first offset not 0", one(f32("[1]", "[4,8]"), 8), "begins at 0, where"},
      {"gap", two(f32("[1]", "[0,4]"), f32("[1]", "[8,12]"), 12),
       R"(tensor "b": expected data that begins at 4)"},
      {"overlap", two(f32("[2]", "[0,8]"), f32("[1]", "[4,8]"), 8), "(an overlap)"},
      {"the same bytes twice", two(f32("[1]", "[0,4]"), f32("[1]", "[0,4]"), 4), "(an overlap)"},
      {"empty tensor inside another", two(f32("[1]", "[0,4]"), f32("[0]", "[2,2]"), 4), "(an overlap)"},
      {"empty tensor after the end", two(f32("[1]", "[0,4]"), f32("[0]", "[5,5]"), 4), "(a gap)"},
      {"bool of 2", one(R"({"dtype":"BOOL","shape":[3],"data_offsets":[0,3]})", 3),
       "expected bytes 0 and 1 in a BOOL tensor, found 2 at element 2"},
  };
}

void check_all(const std::vector<BrokenFile>& files) {
  const TemporaryFolder folder;
  for (const BrokenFile& file : files) {
    INFO(file.rule);
    const auto path = folder / "broken.safetensors";
    write_bytes(path, file.bytes);
    const std::string message = error_of<Error>([&] { read_weights(path); });
    INFO(message);
    CHECK_THAT(message, ContainsSubstring(file.message));
    CHECK(message.starts_with(path.string() + ": "));
    CHECK(message.size() < path.string().size() + 500);
    CHECK(std::all_of(message.begin(), message.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0x20; }));
  }
}

TEST_CASE("safetensors: a broken header is refused", "[weights]") {
  check_all(broken_headers());
}

TEST_CASE("safetensors: a broken field is refused", "[weights]") {
  check_all(broken_fields());
}

TEST_CASE("safetensors: a broken layout of the data is refused", "[weights]") {
  check_all(broken_layouts());
}

TEST_CASE("safetensors: names in messages are escaped and cut", "[weights]") {
  const TemporaryFolder folder;
  const auto path = folder / "names.safetensors";
  const auto message = [&](const std::string& name) {
    write_bytes(path, safetensors("{\"" + name + "\":1}"));
    return error_of<Error>([&] { read_weights(path); });
  };
  CHECK_THAT(message(R"(a\n\u001b[31m\u202eb)"),
             ContainsSubstring(R"(tensor "a\x0a\x1b[31m\xe2\x80\xaeb": )"));
  CHECK_THAT(message(R"(a\"\\b)"), ContainsSubstring(R"(tensor "a\"\\b": )"));
  CHECK_THAT(message(R"(\u0000)"), ContainsSubstring(R"(tensor "\x00": )"));
  CHECK_THAT(message("größe 注意 🙂"), ContainsSubstring("tensor \"größe 注意 🙂\": "));
  CHECK_THAT(message(std::string(5000, 'x')), ContainsSubstring(std::string(200, 'x') + "...\": "));
}

/// Reads a changed file: it must load or be refused, and what loads must be readable in full.
void must_not_crash(const std::filesystem::path& path, const std::string& bytes) {
  write_bytes(path, bytes);
  try {
    for (const auto& item : read_weights(path)) {
      if (item.value().numel() != 0) {
        (void)item.value().clone();
      }
    }
  } catch (const Error&) {
    // refused: fine
  }
}

TEST_CASE("safetensors: no change of a byte crashes the reader", "[weights]") {
  const TemporaryFolder folder;
  const std::string good = safetensors(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],)"
                                       R"("data_offsets":[0,8]},"b":{"dtype":"BOOL","shape":[2],)"
                                       R"("data_offsets":[8,10]}}  )",
                                       8) +
                           std::string("\0\1", 2);
  const auto path = folder / "fuzz.safetensors";
  write_bytes(path, good);
  REQUIRE(read_weights(path).size() == 2);
  const std::string replacements("\0\x01\x7F\x80\xFF\n \"\\{}[]:,-.e0179u", 23);
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ (1u << bit));
      must_not_crash(path, bytes);
    }
    for (const char replacement : replacements) {
      std::string bytes = good;
      bytes[i] = replacement;
      must_not_crash(path, bytes);
    }
    must_not_crash(path, good.substr(0, i));                         // cut
    must_not_crash(path, good.substr(0, i) + good.substr(i + 1));    // one byte less
    must_not_crash(path, good.substr(0, i) + "0" + good.substr(i));  // one byte more
  }
  SUCCEED();
}

}  // namespace
}  // namespace mha::testing
