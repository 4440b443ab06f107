#include "parity/reference_case.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>

#include "attention/parameter_names.h"
#include "mha/error.h"
#include "mha/parity.h"
#include "mha/weights.h"
#include "parity/environment.h"
#include "support/quote.h"

namespace mha::parity {
namespace {

/// Typed access to a case's metadata; an empty text counts as absent.
class Metadata {
 public:
  Metadata(const std::filesystem::path& path, const std::map<std::string, std::string>& entries)
      : path_(path), entries_(entries) {}

  std::string text(const std::string& key) const {
    const auto entry = entries_.find(key);
    return entry == entries_.end() ? "" : entry->second;
  }

  std::string required(const std::string& key) const {
    auto value = text(key);
    if (value.empty()) {
      fail(key, "a value", "none");
    }
    return value;
  }

  /// A whole number within [low, high].
  template <typename Integer>
  Integer integer(const std::string& key, const std::string& value, Integer low, Integer high) const {
    Integer number{};
    const auto* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || stop != end || number < low || number > high) {
      fail(key, "a whole number within [" + std::to_string(low) + ", " + std::to_string(high) + "]",
           quote(value));
    }
    return number;
  }

  double number(const std::string& key, const std::string& value) const {
    std::istringstream stream(value);
    stream.imbue(std::locale::classic());
    double result = 0;
    stream >> std::noskipws >> result;
    if (stream.fail() || !stream.eof()) {
      fail(key, "a number", quote(value));
    }
    return result;
  }

  std::optional<uint64_t> seed(const std::string& key) const {
    const auto value = text(key);
    if (value.empty()) {
      return std::nullopt;
    }
    return integer<uint64_t>(key, value, 0, std::numeric_limits<uint64_t>::max());
  }

  [[noreturn]] void fail(const std::string& key, const std::string& expected,
                         const std::string& found) const {
    throw Error(show(path_) + ": metadata " + quote(key) + ": expected " + expected + ", found " + found);
  }

 private:
  const std::filesystem::path& path_;
  const std::map<std::string, std::string>& entries_;
};

std::optional<torch::ScalarType> module_dtype(std::string_view name) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    if (c10::getDtypeNames(dtype).first == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::vector<int64_t> parse_strides(const Metadata& metadata, const std::string& key,
                                   const std::string& value) {
  std::vector<int64_t> strides;
  for (size_t start = 0; start <= value.size();) {
    const auto end = std::min(value.find(',', start), value.size());
    strides.push_back(metadata.integer<int64_t>(key, value.substr(start, end - start), 0,
                                                std::numeric_limits<int64_t>::max()));
    start = end + 1;
  }
  return strides;
}

void check_format(const Metadata& metadata) {
  constexpr std::string_view format = "mha.reference/1";
  const auto found = metadata.text("format");
  if (found != format) {
    metadata.fail("format", quote(format),
                  (found.empty() ? "none: this is no reference case" : quote(found)) +
                      "; export the case again with scripts/export_reference.py");
  }
  const auto module = metadata.required("module");
  if (module != "MultiHeadAttention") {
    metadata.fail("module", quote("MultiHeadAttention"), quote(module));
  }
}

/// Strips `prefix` from the front of `name` when it is there.
bool consume(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return false;
  }
  name.remove_prefix(prefix.size());
  return true;
}

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_gradient_name(std::string_view name) {
  return name == "query" || name == "key" || name == "value" || contains(parameter_names, name);
}

bool is_known(std::string_view name) {
  const bool is_step = std::any_of(named_steps.begin(), named_steps.end(),
                                   [&](const auto& step) { return step.name == name; });
  if (is_step || consume(name, "weights/")) {
    return true;  // the names of weights are checked against the module's when they are loaded
  }
  if (consume(name, "inputs/")) {
    return contains(input_names, name);
  }
  if (consume(name, "outputs/")) {
    return name == "output" || name == "attention_weights";
  }
  if (consume(name, "float64/")) {
    return name == "output" || name == "attention_weights" ||
           (consume(name, "grads/") && is_gradient_name(name));
  }
  return name == "grad_outputs/output" || (consume(name, "grads/") && is_gradient_name(name));
}

void check_tensors(const ReferenceCase& reference) {
  const auto path = show(reference.path);
  for (const auto& item : reference.tensors) {
    if (!is_known(item.key())) {
      throw Error(path + ": tensor " + quote(item.key()) +
                  ": expected a name of a reference case, found an unknown one");
    }
  }
  for (const char* name : {"inputs/query", "outputs/output"}) {
    if (!reference.tensors.contains(name)) {
      throw Error(path + ": expected a tensor " + quote(name) + ", found none");
    }
  }
  for (const auto& item : reference.tensors) {
    std::string_view name = item.key();
    if (consume(name, "grads/")) {
      if (!reference.tensors.contains("grad_outputs/output")) {
        throw Error(path + ": tensor " + quote(item.key()) +
                    ": expected a tensor \"grad_outputs/output\" beside it, found none");
      }
      if (!contains(parameter_names, name) && !reference.tensors.contains("inputs/" + std::string(name))) {
        throw Error(path + ": tensor " + quote(item.key()) + ": expected a tensor " +
                    quote("inputs/" + std::string(name)) + " beside it, found none");
      }
    }
  }
  if (reference.train && reference.dropout > 0 && !reference.seed) {
    throw Error(path + ": metadata \"seed\": expected a value, since mode is train with dropout, found none");
  }
  for (const auto& [name, strides] : reference.strides) {
    const auto* input = reference.tensors.find("inputs/" + name);
    if (input == nullptr || input->dim() != static_cast<int64_t>(strides.size())) {
      throw Error(
          path + ": metadata " + quote("strides/inputs/" + name) + ": expected one stride for each of the " +
          (input == nullptr ? "dimensions of a tensor that is not there" : std::to_string(input->dim())) +
          " dimensions of " + quote("inputs/" + name) + ", found " + std::to_string(strides.size()));
    }
  }
}

/// Empty, auto or a layout that is known.
void check_layout(const Metadata& metadata, const std::string& layout) {
  const auto names = layout_names();
  if (layout.empty() || layout == "auto" || std::find(names.begin(), names.end(), layout) != names.end()) {
    return;
  }
  std::string expected = "auto";
  for (const auto& name : names) {
    expected += ", " + name;
  }
  metadata.fail("layout", expected, quote(layout));
}

}  // namespace

ReferenceCase read_case(const std::filesystem::path& path) {
  auto file = read_weights_file(path);
  const Metadata metadata(path, file.metadata);
  check_format(metadata);

  ReferenceCase reference;
  reference.path = path;
  constexpr int64_t widest = int64_t{1} << 24;
  reference.d_model = metadata.integer<int64_t>("d_model", metadata.required("d_model"), 1, widest);
  reference.num_heads = metadata.integer<int64_t>("num_heads", metadata.required("num_heads"), 1, widest);
  reference.dropout = metadata.number("dropout", metadata.required("dropout"));
  if (!(reference.dropout >= 0 && reference.dropout <= 1)) {
    metadata.fail("dropout", "a number within [0, 1]", quote(metadata.text("dropout")));
  }
  const auto mode = metadata.required("mode");
  if (mode != "eval" && mode != "train") {
    metadata.fail("mode", "\"eval\" or \"train\"", quote(mode));
  }
  reference.train = mode == "train";
  const auto dtype = module_dtype(metadata.required("dtype"));
  if (!dtype) {
    metadata.fail("dtype", "float32, float64, bfloat16 or float16", quote(metadata.text("dtype")));
  }
  reference.dtype = *dtype;

  reference.environment.torch_version = metadata.text("torch_version");
  reference.environment.build = metadata.text("build");
  reference.environment.cpu_model = metadata.text("cpu_model");
  const auto threads = metadata.text("num_threads");
  constexpr int most_threads = 1024;
  reference.environment.num_threads =
      threads.empty() ? 0 : metadata.integer<int>("num_threads", threads, 1, most_threads);
  const auto device = metadata.text("device");
  if (!device.empty() && device != "cpu" && device != "cuda") {
    metadata.fail("device", "\"cpu\" or \"cuda\"", quote(device));
  }
  reference.environment.device = device.empty() ? "cpu" : device;

  for (const auto& [name, here] : current_settings()) {
    if (file.metadata.contains(name)) {
      reference.environment.settings[name] = metadata.text(name);
    }
  }
  reference.seed = metadata.seed("seed");
  reference.init_seed = metadata.seed("init_seed");
  const auto tolerance = metadata.text("tolerance");
  if (!tolerance.empty()) {
    reference.tolerance = metadata.number("tolerance", tolerance);
    if (!(*reference.tolerance >= 0)) {
      metadata.fail("tolerance", "a number that is not negative", quote(tolerance));
    }
  }
  reference.weights_file = metadata.text("weights_file");
  reference.prefix = metadata.text("prefix");
  reference.layout = metadata.text("layout");
  check_layout(metadata, reference.layout);
  for (const auto name : input_names) {
    const auto key = "strides/inputs/" + std::string(name);
    const auto value = metadata.text(key);
    if (!value.empty()) {
      reference.strides[std::string(name)] = parse_strides(metadata, key, value);
    }
  }
  reference.tensors = std::move(file.tensors);
  check_tensors(reference);
  return reference;
}

}  // namespace mha::parity
