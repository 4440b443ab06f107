#include "weights/storage_plan.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "mha/error.h"
#include "support/checked_math.h"
#include "support/quote.h"
#include "support/shape_text.h"
#include "support/tensor_values.h"

namespace mha::weights {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// A tensor's place in memory.
struct Place {
  std::size_t number;  // of the tensor
  const c10::StorageImpl* storage;
  c10::ScalarType dtype;
  std::int64_t begin;  // in elements of the storage
  std::int64_t end;    // one past the last element it touches
};

/// Whether a tensor's memory holds its values as they are.
bool has_place(const at::Tensor& tensor) {
  return tensor.numel() > 0 && !tensor._is_zerotensor() && !tensor.is_conj() && !tensor.is_neg();
}

Place place_of(std::size_t number, const at::Tensor& tensor) {
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return {number, tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type(), tensor.storage_offset(),
          last + 1};
}

std::vector<std::int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

class Planner {
 public:
  Planner(const StateDict& tensors, const std::string& file) : tensors_(tensors), file_(file) {}

  StoragePlan run() && {
    plan_.views.resize(tensors_.size());
    std::vector<Place> places;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (has_place(tensors_[i].value())) {
        places.push_back(place_of(i, tensors_[i].value()));
      }
    }
    group(std::move(places));
    // In the order of the tensors, so that the file does not depend on addresses.
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (groups_.size() > i && !groups_[i].empty()) {
        add_shared(groups_[i]);
      } else if (!shared_[i]) {
        add_alone(i);
      }
    }
    return std::move(plan_);
  }

 private:
  /// Finds the tensors that overlap; `groups_` has them under the number of their first.
  void group(std::vector<Place> places) {
    groups_.resize(tensors_.size());
    shared_.resize(tensors_.size());
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tie(a.storage, a.dtype, a.begin, a.number) <
             std::tie(b.storage, b.dtype, b.begin, b.number);
    });
    for (auto first = places.begin(); first != places.end();) {
      std::int64_t end = first->end;
      auto next = first + 1;
      while (next != places.end() && next->storage == first->storage && next->dtype == first->dtype &&
             next->begin < end) {
        end = std::max(end, next->end);
        ++next;
      }
      keep_if_small({first, next}, end - first->begin);
      first = next;
    }
  }

  void keep_if_small(std::vector<Place> places, std::int64_t span) {
    std::int64_t alone = 0;
    std::size_t first = places.front().number;
    for (const Place& place : places) {
      alone = add(alone, tensors_[place.number].value().numel()).value_or(kMost);
      first = std::min(first, place.number);
    }
    if (span > alone) {
      return;
    }
    for (const Place& place : places) {
      shared_[place.number] = true;
    }
    groups_[first] = std::move(places);
  }

  void add_shared(const std::vector<Place>& places) {
    StoragePlan::Record record{tensors_[places.front().number].value(), false, places.front().begin, 0};
    for (const Place& place : places) {
      const at::Tensor& tensor = tensors_[place.number].value();
      record.elements = std::max(record.elements, place.end - record.begin);
      plan_.views[place.number] = {plan_.records.size(), place.begin - record.begin, tensor.strides().vec()};
    }
    plan_.records.push_back(std::move(record));
  }

  void add_alone(std::size_t number) {
    const at::Tensor& tensor = tensors_[number].value();
    const auto bytes = multiply(tensor.numel(), static_cast<std::int64_t>(tensor.element_size()));
    if (!bytes) {
      throw Error(file_ + ": tensor " + quote(tensors_[number].key()) +
                  ": expected a tensor of less than 2^63 bytes, found shape " + shape_text(tensor.sizes()));
    }
    plan_.views[number] = {plan_.records.size(), 0, row_major_strides(tensor.sizes())};
    plan_.records.push_back({tensor, true, 0, tensor.numel()});
  }

  const StateDict& tensors_;
  const std::string& file_;
  StoragePlan plan_;
  std::vector<std::vector<Place>> groups_;
  std::vector<bool> shared_;
};

}  // namespace

at::Tensor StoragePlan::Record::values() const {
  return mha::row_major(row_major ? tensor : at::as_strided(tensor.detach(), {elements}, {1}, begin));
}

StoragePlan plan_storages(const StateDict& tensors, const std::string& file) {
  return Planner(tensors, file).run();
}

}  // namespace mha::weights
