#include "weights/torch_dtypes.h"

#include <algorithm>
#include <string>

namespace mha::weights {
namespace {

/// The first of LibTorch's dtypes for which `matches` holds.
template <typename Predicate>
std::optional<c10::ScalarType> find_dtype(const Predicate& matches) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<c10::ScalarType>(i);
    if (type != c10::ScalarType::Undefined && matches(type)) {
      return type;
    }
  }
  return std::nullopt;
}

bool remove_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<c10::ScalarType> dtype_of_name(std::string_view name) {
  if (!remove_prefix(name, "torch.")) {
    return std::nullopt;
  }
  return find_dtype([name](c10::ScalarType type) {
    const auto names = c10::getDtypeNames(type);
    return name == names.first || (!names.second.empty() && name == names.second);
  });
}

std::optional<c10::ScalarType> dtype_of_storage(std::string_view name) {
  constexpr std::string_view kSuffix = "Storage";
  if (name == "torch.storage.UntypedStorage" || name == "torch.storage._UntypedStorage" ||
      name == "torch.UntypedStorage") {
    return c10::kByte;
  }
  if (!remove_prefix(name, "torch.") || !name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  remove_prefix(name, "cuda.");
  name.remove_suffix(kSuffix.size());
  return find_dtype([name](c10::ScalarType type) { return name == c10::toString(type); });
}

}  // namespace mha::weights
