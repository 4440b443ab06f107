#include "weights/model_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "mha/error.h"
#include "support/checked_math.h"
#include "support/quote.h"

namespace mha::weights {
namespace {

using Json = nlohmann::json;
using Told = ConfigSection::Told;

constexpr std::size_t kMaxDepth = 64;

constexpr std::array<std::string_view, 7> kNumHeadsKeys{"num_attention_heads",
                                                        "n_head",
                                                        "n_heads",
                                                        "num_heads",
                                                        "encoder_attention_heads",
                                                        "decoder_attention_heads",
                                                        "decoder_num_attention_heads"};
constexpr std::array<std::string_view, 6> kWidthKeys{"hidden_size", "d_model", "n_embd",
                                                     "n_embed",     "dim",     "embed_dim"};
constexpr std::array<std::string_view, 2> kHeadWidthKeys{"head_dim", "d_kv"};

template <std::size_t size>
bool is_one_of(const std::array<std::string_view, size>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

/// Takes nlohmann's parse events one by one: a tree of the whole file would let its author choose our memory.
class ConfigReader final : public nlohmann::json_sax<Json> {
 public:
  explicit ConfigReader(const std::string& file) : file_(file) {}

  std::vector<ConfigSection> take() && { return std::move(sections_); }

  bool null() override { return depth_ > 0 || other("null"); }  // as good as absent
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return other(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return other(escape(text)); }
  bool string(string_t& value) override { return other(quote(value)); }
  bool binary(binary_t& /*value*/) override { return other("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    const bool fits =
        value > 0 && value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (depth_ == 0 || !fits) {
      return other(std::to_string(value));
    }
    if (std::vector<Told>* const place = place_of_value()) {
      place->push_back({.key = key_, .value = static_cast<std::int64_t>(value), .found = {}});
    }
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    other("an object");
    if (depth_ == 0) {
      add_section("");
    } else if (depth_ == 1) {
      object_ = key_;
      object_added_ = false;
    }
    return enter(/*array=*/false);
  }

  bool start_array(std::size_t /*elements*/) override { return other("an array") && enter(/*array=*/true); }

  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }

  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    throw Error(file_ + ": expected valid JSON, found something else at its byte " +
                std::to_string(position));
  }

 private:
  void add_section(const std::string& name) {
    sections_.push_back({.name = name, .num_heads = {}, .widths = {}, .head_widths = {}});
  }

  /// Where the value of the current key goes; null when nobody asks for it.
  std::vector<Told>* place_of_value() {
    constexpr std::size_t deepest = 2;
    if (depth_ == 0 || depth_ > deepest || std::find(arrays_.begin(), arrays_.end(), true) != arrays_.end()) {
      return nullptr;
    }
    const auto kind = is_one_of(kNumHeadsKeys, key_)    ? &ConfigSection::num_heads
                      : is_one_of(kWidthKeys, key_)     ? &ConfigSection::widths
                      : is_one_of(kHeadWidthKeys, key_) ? &ConfigSection::head_widths
                                                        : nullptr;
    if (kind == nullptr) {
      return nullptr;
    }
    if (depth_ == deepest && !object_added_) {
      add_section(object_);
      object_added_ = true;
    }
    return &((depth_ == 1 ? sections_.front() : sections_.back()).*kind);
  }

  bool other(const std::string& found) {
    if (depth_ == 0 && found != "an object") {
      throw Error(file_ + ": expected a JSON object, found " + found);
    }
    if (std::vector<Told>* const place = place_of_value()) {
      place->push_back({.key = key_, .value = std::nullopt, .found = found});
    }
    return true;
  }

  bool enter(bool array) {
    if (++depth_ > kMaxDepth) {
      throw Error(file_ + ": expected JSON nested at most " + std::to_string(kMaxDepth) +
                  " deep, found deeper");
    }
    arrays_.push_back(array);
    return true;
  }

  bool leave() {
    --depth_;
    arrays_.pop_back();
    return true;
  }

  const std::string& file_;
  std::vector<ConfigSection> sections_;
  std::string key_;
  std::string object_;         // the key of the object in the file's object
  bool object_added_ = false;  // whether it is among the sections: only when it tells something
  std::size_t depth_ = 0;
  std::vector<bool> arrays_;  // one a level: whether it is an array
};

std::string full_key(const ConfigSection& section, const Told& told) {
  return escape(section.name.empty() ? told.key : section.name + "." + told.key);
}

/// Whether a section is about attention of that width.
bool is_about(const ConfigSection& section, std::int64_t d_model) {
  const bool tells = std::any_of(section.widths.begin(), section.widths.end(),
                                 [](const Told& told) { return told.value.has_value(); });
  if (d_model == 0 || !tells) {
    // A model among several that does not tell its width may be any of them.
    return d_model == 0 || section.name.empty();
  }
  return std::any_of(section.widths.begin(), section.widths.end(),
                     [&](const Told& told) { return told.value == d_model; });
}

void check_divides(const std::string& key, std::int64_t num_heads, std::int64_t d_model,
                   const std::string& file) {
  if (d_model % num_heads != 0) {
    throw Error(file + ": " + key + ": expected a divisor of d_model " + std::to_string(d_model) +
                ", found " + std::to_string(num_heads));
  }
}

void check_head_width(const ConfigSection& section, std::int64_t num_heads, std::int64_t d_model,
                      const std::string& file) {
  for (const Told& told : section.head_widths) {
    if (told.value && multiply(*told.value, num_heads) != d_model) {
      throw Error(file + ": " + full_key(section, told) + ": expected num_heads * d_k to be d_model " +
                  std::to_string(d_model) + ", found " + std::to_string(num_heads) + " * " +
                  std::to_string(*told.value));
    }
  }
}

}  // namespace

std::vector<ConfigSection> parse_model_config(std::string_view json, const std::string& file) {
  ConfigReader reader(file);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return std::move(reader).take();
}

std::optional<std::int64_t> choose_num_heads(const std::vector<ConfigSection>& sections, std::int64_t d_model,
                                             const std::string& file) {
  std::optional<std::int64_t> result;
  std::string told_first;
  std::string of_other_width;
  for (const ConfigSection& section : sections) {
    for (const Told& told : section.num_heads) {
      const std::string key = full_key(section, told);
      if (!is_about(section, d_model)) {
        of_other_width += (of_other_width.empty() ? "" : ", ") + key;
        continue;
      }
      if (!told.value) {
        throw Error(file + ": " + key + ": expected a positive integer, found " + told.found);
      }
      if (result && result != told.value) {
        throw Error(file + ": expected one number of heads, found " + told_first + " and " + key + " " +
                    std::to_string(*told.value));
      }
      if (d_model > 0) {
        check_divides(key, *told.value, d_model, file);
        check_head_width(section, *told.value, d_model, file);
      }
      told_first = result ? told_first : key + " " + std::to_string(*told.value);
      result = told.value;
    }
  }
  if (!result && !of_other_width.empty()) {
    throw Error(file + ": expected the config of a model of d_model " + std::to_string(d_model) +
                ", found only " + of_other_width + ", of models of other or unknown widths");
  }
  return result;
}

}  // namespace mha::weights
