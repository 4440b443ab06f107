#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "mha/error.h"
#include "support/quote.h"
#include "weights/index.h"
#include "weights/json_errors.h"

namespace mha::weights {
namespace {

using Json = nlohmann::json;

/// As for the header of a safetensors file.
constexpr std::size_t kMaxIndexBytes = 100'000'000;
/// Of tensors and other keys: each costs more memory than its bytes in the file. Large models have 100 000.
constexpr std::size_t kMaxKeys = 1'000'000;

/// Takes nlohmann's parse events one by one: a tree would keep only one of two equal keys, and cost many times
/// the file's size. The parser does not recurse, so that depth costs nothing.
class IndexBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit IndexBuilder(const std::string& file) : file_(file) {}

  Index take() && {
    if (keys_.count("weight_map") == 0) {
      throw Error(file_ + ": expected the index of a sharded file, with a \"weight_map\", found other JSON");
    }
    return std::move(index_);
  }

  bool null() override { return other("null", /*as_metadata=*/nullptr); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return scalar(text); }
  bool binary(binary_t& /*value*/) override { return other("binary data", /*as_metadata=*/nullptr); }

  bool string(string_t& value) override {
    if (place_ == Place::kMap && depth_ == 2) {
      const std::size_t number = shard(value);
      index_.entries.push_back({std::move(name_), number});
      return true;
    }
    return other(quote(value), &value);
  }

  bool start_object(std::size_t /*elements*/) override {
    if (depth_ != 0 && !(depth_ == 1 && place_ == Place::kMap)) {
      other("an object", /*as_metadata=*/nullptr);
    }
    ++depth_;
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    other("an array", /*as_metadata=*/nullptr);
    ++depth_;
    return true;
  }

  bool key(string_t& value) override {
    if (depth_ == 1) {
      place_ = value == "weight_map" ? Place::kMap
               : value == "metadata" ? Place::kMetadata
                                     : Place::kElsewhere;
      once(keys_, value, "key");
    } else if (depth_ == 2 && place_ == Place::kMap) {
      once(names_, value, "tensor");
      name_ = value;
    } else if (depth_ == 2 && place_ == Place::kMetadata) {
      once(metadata_keys_, value, "metadata key");
      name_ = value;
    }
    return true;
  }

  bool end_array() override { return leave(); }
  bool end_object() override { return leave(); }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    refuse_json(file_, "an index", position, error);
  }

 private:
  /// Below which top-level key the next event falls.
  enum class Place { kElsewhere, kMetadata, kMap };

  bool leave() {
    --depth_;
    return true;
  }

  bool scalar(const std::string& text) { return other(text, &text); }

  /// A value that is no name of a shard: kept where it is metadata, refused inside the map.
  bool other(const std::string& found, const std::string* as_metadata) {
    if (place_ == Place::kMap && depth_ == 1) {
      throw Error(file_ + ": weight_map: expected an object of file names, found " + escape(found));
    }
    if (place_ == Place::kMap && depth_ >= 2) {
      refuse("expected the name of its shard, found " + escape(found));
    }
    if (place_ == Place::kMetadata && depth_ == 2 && as_metadata != nullptr) {
      index_.metadata[name_] = *as_metadata;
    }
    return true;
  }

  std::size_t shard(const std::string& name) {
    const auto known = shards_.find(name);
    if (known != shards_.end()) {
      return known->second;
    }
    // A backslash and a colon lead elsewhere on other systems only; no real shard has them.
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find_first_of(std::string_view("/\\:\0", 4)) == std::string::npos;
    if (!plain) {
      refuse("expected a shard that is a plain file name, found " + quote(name));
    }
    index_.shards.push_back(name);
    return shards_.emplace(name, shards_.size()).first->second;
  }

  void once(std::unordered_set<std::string>& seen, const std::string& key, const std::string& what) {
    if (++counted_ > kMaxKeys) {
      throw Error(file_ + ": expected at most " + std::to_string(kMaxKeys) + " keys, found more");
    }
    if (!seen.insert(key).second) {
      throw Error(file_ + ": " + what + " " + quote(key) + ": expected once, found twice");
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(file_ + ": tensor " + quote(name_) + ": " + why);
  }

  const std::string& file_;
  Index index_;
  Place place_ = Place::kElsewhere;
  std::size_t depth_ = 0;    // of objects and arrays that are open
  std::string name_;         // of the tensor or metadata whose value comes next
  std::size_t counted_ = 0;  // keys
  std::unordered_set<std::string> keys_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::unordered_map<std::string, std::size_t> shards_;
};

}  // namespace

Index parse_index(std::string_view json, const std::string& file) {
  if (json.size() > kMaxIndexBytes) {
    throw Error(file + ": expected an index of at most " + std::to_string(kMaxIndexBytes) + " bytes, found " +
                std::to_string(json.size()));
  }
  refuse_nul(json, file, "an index");
  IndexBuilder builder(file);
  Json::sax_parse(json.begin(), json.end(), &builder);
  return std::move(builder).take();
}

}  // namespace mha::weights
