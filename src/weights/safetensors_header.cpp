#include "weights/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "mha/error.h"
#include "support/quote.h"
#include "weights/json_errors.h"
#include "weights/safetensors_format.h"

namespace mha::weights {
namespace {

using Json = nlohmann::json;

/// More than any real tensor has, and few enough that messages and LibTorch bear it.
constexpr std::size_t kMaxRank = 64;

/// Memory that a header may take once it is read and its tensors are made, which can be many times its own.
/// 100 000 tensors need about half.
constexpr std::size_t kMaxMemory = std::size_t{160} << 20;
constexpr std::size_t kTensorBytes = 800;  // of an entry, what checks it, and the tensor
constexpr std::size_t kMetadataBytes = 160;

/// Takes nlohmann's parse events one by one. A tree of the whole header would keep only one of two equal keys
/// and cost many times the header's size; this keeps just what the format allows and stops at the first thing
/// it does not.
class HeaderBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderBuilder(const std::string& file) : file_(file) {}

  SafetensorsHeader take() && { return std::move(header_); }

  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { refuse(value < 0 ? std::to_string(value) : "-0"); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { refuse(escape(text)); }
  bool binary(binary_t& /*value*/) override { refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kInShape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse(std::to_string(value));
      }
      if (tensor_.shape.size() == kMaxRank) {
        fail("expected at most " + std::to_string(kMaxRank) + " dimensions, found more");
      }
      charge(2 * sizeof value);
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (state_ == State::kInOffsets) {
      if (offsets_ == 2) {
        fail("expected two data_offsets, found more");
      }
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    } else {
      refuse(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadataValue) {
      charge(kMetadataBytes + 2 * (key_.size() + value.size()));
      header_.metadata[key_] = std::move(value);
      state_ = State::kInMetadata;
    } else if (state_ == State::kDtype) {
      tensor_.dtype = dtype(value);
      state_ = State::kInTensor;
    } else {
      refuse(quote(value));
    }
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kMetadata:
        state_ = State::kInMetadata;
        return true;
      case State::kTensor:
        state_ = State::kInTensor;
        return true;
      default:
        refuse("an object");
    }
  }

  bool start_array(std::size_t /*elements*/) override {
    if (state_ == State::kShape) {
      state_ = State::kInShape;
    } else if (state_ == State::kOffsets) {
      state_ = State::kInOffsets;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::kTop) {
      start_entry(value);
    } else if (state_ == State::kInMetadata) {
      key_ = value;
      if (header_.metadata.count(key_) != 0) {
        throw Error(file_ + ": metadata key " + quote(key_) + ": expected once, found twice");
      }
      state_ = State::kMetadataValue;
    } else {
      start_field(value);
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::kInOffsets && offsets_ != 2) {
      fail("expected two data_offsets, found " + std::to_string(offsets_));
    }
    state_ = State::kInTensor;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kInTensor) {
      for (std::size_t i = 0; i < kFields.size(); ++i) {
        if (!seen_[i]) {
          fail("expected a field " + quote(kFields[i].first) + ", found none");
        }
      }
      tensor_.shape.shrink_to_fit();
      header_.tensors.push_back(std::move(tensor_));
    }
    state_ = State::kTop;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    refuse_json(file_, "a header", position, error);
  }

 private:
  /// Where in the header the next event falls: kX awaits a value, kInX is inside it.
  enum class State {
    kStart,
    kTop,
    kMetadata,
    kInMetadata,
    kMetadataValue,
    kTensor,
    kInTensor,
    kDtype,
    kShape,
    kInShape,
    kOffsets,
    kInOffsets,
  };

  static constexpr std::array<std::pair<std::string_view, State>, 3> kFields{
      {{"dtype", State::kDtype}, {"shape", State::kShape}, {"data_offsets", State::kOffsets}}};

  void start_entry(const std::string& name) {
    charge(kTensorBytes + 4 * name.size());
    if (!names_.insert(name).second) {
      throw Error(file_ + ": tensor " + quote(name) + ": expected once in the header, found twice");
    }
    if (name == kMetadataKey) {
      state_ = State::kMetadata;
      return;
    }
    tensor_ = {};
    tensor_.name = name;
    offsets_ = 0;
    seen_ = {};
    state_ = State::kTensor;
  }

  void start_field(const std::string& name) {
    const auto* const field =
        std::find_if(kFields.begin(), kFields.end(), [&](const auto& each) { return each.first == name; });
    if (field == kFields.end()) {
      fail("expected the fields dtype, shape and data_offsets, found " + quote(name));
    }
    bool& seen = seen_[static_cast<std::size_t>(field - kFields.begin())];
    if (seen) {
      fail("expected the field " + quote(name) + " once, found it twice");
    }
    seen = true;
    state_ = field->second;
  }

  c10::ScalarType dtype(const std::string& name) const {
    std::string known;
    for (const SafetensorsDtype& each : kSafetensorsDtypes) {
      if (each.name == name) {
        return each.type;
      }
      known += (known.empty() ? "" : " ") + std::string(each.name);
    }
    fail("expected a dtype of " + known + ", found " + quote(name));
  }

  void charge(std::size_t bytes) {
    spent_ += bytes;
    if (spent_ > kMaxMemory) {
      throw Error(file_ + ": expected a header of at most " + std::to_string(kMaxMemory >> 20) +
                  " MiB once it is read, found more");
    }
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(file_ + ": tensor " + quote(tensor_.name) + ": " + why);
  }

  /// The value `found` cannot stand where it was found.
  [[noreturn]] void refuse(const std::string& found) const {
    switch (state_) {
      case State::kMetadata:
        throw Error(file_ + ": __metadata__: expected an object of strings, found " + found);
      case State::kMetadataValue:
        throw Error(file_ + ": metadata key " + quote(key_) + ": expected a string, found " + found);
      case State::kTensor:
        fail("expected an object with dtype, shape and data_offsets, found " + found);
      case State::kDtype:
        fail("dtype: expected a string, found " + found);
      case State::kShape:
      case State::kOffsets:
        fail(field_name() + ": expected an array of integers, found " + found);
      case State::kInShape:
      case State::kInOffsets:
        fail(field_name() + ": expected integers from 0 to 2^63 - 1, found " + found);
      default:
        throw Error(file_ + ": expected a header that is one JSON object, found " + found);
    }
  }

  std::string field_name() const {
    return state_ == State::kShape || state_ == State::kInShape ? "shape" : "data_offsets";
  }

  const std::string& file_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  State state_ = State::kStart;
  std::string key_;     // of the metadata being read
  TensorEntry tensor_;  // being read
  std::array<bool, kFields.size()> seen_{};
  int offsets_ = 0;
  std::size_t spent_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file) {
  if (json.empty() || json.front() != '{') {
    throw Error(file + ": expected a header that begins with '{', found " + quote(json.substr(0, 16)));
  }
  refuse_nul(json, file, "a header");
  // The format wants spaces where JSON allows any white space.
  const std::size_t last = json.find_last_not_of(' ');
  if (json[last] != '}') {
    throw Error(file + ": expected a header that ends with '}' and spaces, found " +
                quote(json.substr(last - std::min<std::size_t>(last, 15), 16)));
  }
  HeaderBuilder builder(file);
  Json::sax_parse(json.begin(), json.end(), &builder);
  return std::move(builder).take();
}

}  // namespace mha::weights
