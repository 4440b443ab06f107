/// Dtypes by the names that PyTorch's pickles give them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace mha::weights {

/// Of `torch.float32` and its kin; nothing for other names.
std::optional<c10::ScalarType> dtype_of_name(std::string_view name);

/// Of the elements of a storage class: `torch.FloatStorage`, `torch.cuda.HalfStorage`, and bytes for
/// `torch.storage.UntypedStorage`; nothing for other names.
std::optional<c10::ScalarType> dtype_of_storage(std::string_view name);

}  // namespace mha::weights
