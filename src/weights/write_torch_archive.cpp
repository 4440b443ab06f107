#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mha/error.h"
#include "support/dtype_text.h"
#include "support/quote.h"
#include "support/tensor_values.h"
#include "weights/inflate.h"
#include "weights/output_file.h"
#include "weights/pickle_writer.h"
#include "weights/storage_plan.h"
#include "weights/torch_files.h"
#include "weights/zip_layout.h"

namespace mha::weights {
namespace {

/// Dtypes that have a class of storage of their own, as all had once.
constexpr std::array kOldDtypes{c10::kFloat, c10::kDouble, c10::kHalf,         c10::kBFloat16,
                                c10::kLong,  c10::kInt,    c10::kShort,        c10::kChar,
                                c10::kByte,  c10::kBool,   c10::kComplexFloat, c10::kComplexDouble};
/// Those whose storages are plain bytes.
constexpr std::array kNewDtypes{c10::kUInt16,          c10::kUInt32,          c10::kUInt64,
                                c10::kComplexHalf,     c10::kFloat8_e4m3fn,   c10::kFloat8_e5m2,
                                c10::kFloat8_e4m3fnuz, c10::kFloat8_e5m2fnuz, c10::kFloat8_e8m0fnu};

template <typename Dtypes>
bool contains(const Dtypes& dtypes, c10::ScalarType dtype) {
  return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

void check(const StateDict& tensors, const std::string& file) {
  for (const auto& item : tensors) {
    const std::string where = file + ": tensor " + quote(item.key()) + ": ";
    if (!is_utf8(item.key())) {
      throw Error(where + "expected a name of valid UTF-8");
    }
    if (item.key().size() > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(where + "expected a name of less than 4 GiB, found " + std::to_string(item.key().size()) +
                  " bytes");
    }
    std::string found = not_dense(item.value());
    if (found.empty() && !contains(kOldDtypes, item.value().scalar_type()) &&
        !contains(kNewDtypes, item.value().scalar_type())) {
      found = "dtype " + dtype_text(item.value().scalar_type());
    }
    if (!found.empty()) {
      throw Error(where + "expected a dense tensor of a dtype that torch.save has, found " + found);
    }
  }
}

/// What `torch.save` writes for a tensor: a call of a function that rebuilds it over a part of a storage.
void write_tensor(PickleWriter& pickle, const at::Tensor& tensor, const StoragePlan::View& view,
                  const StoragePlan::Record& record) {
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool old = contains(kOldDtypes, dtype);
  pickle.global("torch._utils", old ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle.mark();
  pickle.mark();
  pickle.text("storage");
  if (old) {
    pickle.global("torch", std::string(c10::toString(dtype)) + "Storage");
  } else {
    pickle.global("torch.storage", "UntypedStorage");
  }
  pickle.text(std::to_string(view.record));
  pickle.text("cpu");
  pickle.integer(old ? record.elements : static_cast<std::int64_t>(record.bytes()));
  pickle.tuple();
  pickle.persistent();
  pickle.integer(view.offset);
  pickle.integers(tensor.sizes().vec());
  pickle.integers(view.strides);
  pickle.boolean(false);  // requires_grad
  pickle.global("collections", "OrderedDict");
  pickle.mark();
  pickle.tuple();
  pickle.reduce();  // no hooks
  if (!old) {
    pickle.global("torch", dtype_text(dtype));
  }
  pickle.tuple();
  pickle.reduce();
}

std::string write_pickle(const StateDict& tensors, const StoragePlan& plan) {
  PickleWriter pickle;
  pickle.empty_dict();
  pickle.mark();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    pickle.text(tensors[i].key());
    write_tensor(pickle, tensors[i].value(), plan.views[i], plan.records[plan.views[i].record]);
  }
  pickle.set_items();
  return std::move(pickle).finish();
}

std::span<const std::byte> bytes_of(const void* data, std::size_t size) {
  return {static_cast<const std::byte*>(data), size};
}

}  // namespace

void write_torch_archive(const std::filesystem::path& path, const StateDict& tensors,
                         const WriteOptions& options) {
  // PyTorch names the folder after the file; a fixed name gives the same bytes under every name.
  const std::string folder = "archive/";
  const c10::NoGradGuard no_grad;
  const std::string file = show(path);
  check(tensors, file);
  const StoragePlan plan = plan_storages(tensors, file);
  const std::string pickle = write_pickle(tensors, plan);
  const std::string byte_order = "little";
  const std::string version = "3\n";

  ZipLayout layout;
  layout.add(folder + "data.pkl", pickle.size());
  layout.add(folder + "byteorder", byte_order.size());
  for (std::size_t i = 0; i < plan.records.size(); ++i) {
    layout.add(folder + "data/" + std::to_string(i), plan.records[i].bytes());
  }
  layout.add(folder + "version", version.size());

  OutputFile output(path, layout.total(), options);
  std::size_t number = 0;
  const auto write = [&](const void* data, std::size_t size) {
    const std::string header = layout.header(number++, crc32(bytes_of(data, size)));
    output.write(header.data(), header.size());
    output.write(data, size);
  };
  write(pickle.data(), pickle.size());
  write(byte_order.data(), byte_order.size());
  for (const StoragePlan::Record& record : plan.records) {
    // One at a time: the copies may not fit in memory together.
    const at::Tensor values = record.values();
    write(values.const_data_ptr(), values.nbytes());
  }
  write(version.data(), version.size());
  const std::string directory = layout.directory();
  output.write(directory.data(), directory.size());
  output.commit();
}

}  // namespace mha::weights
