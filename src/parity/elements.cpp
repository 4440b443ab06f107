#include "parity/elements.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace mha::parity {
namespace {

/// The unsigned integer of an element's size.
template <typename T>
using Bits = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

template <typename T>
constexpr bool is_float =
    std::is_floating_point_v<T> || std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;

/// The place of a number on the line of all representable numbers; 0 for both zeros.
template <typename T>
int64_t place(Bits<T> bits) {
  constexpr auto sign = static_cast<Bits<T>>(Bits<T>{1} << (sizeof(T) * 8 - 1));
  const auto magnitude = static_cast<int64_t>(bits & static_cast<Bits<T>>(~sign));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

template <typename T>
uint64_t ulp_distance(Bits<T> a, Bits<T> b) {
  // Unsigned, since two doubles can be further apart than int64_t reaches.
  const auto first = static_cast<uint64_t>(place<T>(a));
  const auto second = static_cast<uint64_t>(place<T>(b));
  return place<T>(a) > place<T>(b) ? first - second : second - first;
}

/// |a - b|; 0 between equal infinities and zeros.
template <typename T>
double distance(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // Unsigned: exact where a double or a signed difference is not. The plus widens what is narrower than int.
    const auto larger = static_cast<uint64_t>(+std::max(a, b));
    return static_cast<double>(larger - static_cast<uint64_t>(+std::min(a, b)));
  } else {
    const auto first = static_cast<double>(a);
    const auto second = static_cast<double>(b);
    return first == second ? 0.0 : std::abs(first - second);
  }
}

void count_non_finite(double value, NonFinite& counts) {
  counts.nan += std::isnan(value) ? 1 : 0;
  counts.inf += std::isinf(value) ? 1 : 0;
}

/// Adds one pair of elements with other bits.
void add_mismatch(double ours, double reference, double difference, int64_t index, Tolerance tolerance,
                  ElementStatistics& statistics) {
  ++statistics.mismatched;
  const auto larger =
      std::isnan(difference) ? !std::isnan(statistics.max_abs) : difference > statistics.max_abs;
  if (statistics.worst < 0 || larger) {
    statistics.worst = index;
  }
  if (larger) {
    statistics.max_abs = difference;
  }
  const auto relative = difference == 0 ? 0.0 : difference / std::abs(reference);
  if (std::isnan(relative) || relative > statistics.max_rel) {
    statistics.max_rel = relative;
  }
  if (!std::isfinite(ours) || !std::isfinite(reference)) {
    ++statistics.non_finite_mismatched;
    ++statistics.beyond;
  } else if (!(difference <= tolerance.absolute + tolerance.relative * std::abs(reference))) {
    ++statistics.beyond;
  }
}

template <typename T>
ElementStatistics compare_typed(const void* ours_data, const void* reference_data, int64_t count,
                                Tolerance tolerance) {
  ElementStatistics statistics;
  if constexpr (is_float<T>) {
    statistics.max_ulp = 0;
  }
  const auto* ours_bytes = static_cast<const char*>(ours_data);
  const auto* reference_bytes = static_cast<const char*>(reference_data);
  for (int64_t i = 0; i < count; ++i) {
    // memcpy: a mapped file need not be aligned.
    T ours;
    T reference;
    std::memcpy(&ours, ours_bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    std::memcpy(&reference, reference_bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    const auto ours_value = static_cast<double>(ours);
    const auto reference_value = static_cast<double>(reference);
    statistics.all_zero = statistics.all_zero && ours_value == 0 && reference_value == 0;
    if constexpr (is_float<T>) {
      count_non_finite(ours_value, statistics.ours);
      count_non_finite(reference_value, statistics.reference);
    }
    if (std::isfinite(reference_value)) {
      statistics.max_reference = std::max(statistics.max_reference, std::abs(reference_value));
    }
    const auto ours_bits = std::bit_cast<Bits<T>>(ours);
    const auto reference_bits = std::bit_cast<Bits<T>>(reference);
    const bool both_nan = std::isnan(ours_value) && std::isnan(reference_value);
    if (ours_bits == reference_bits || both_nan) {
      continue;
    }
    add_mismatch(ours_value, reference_value, distance(ours, reference), i, tolerance, statistics);
    if constexpr (is_float<T>) {
      if (!std::isnan(ours_value) && !std::isnan(reference_value)) {
        statistics.max_ulp = std::max(*statistics.max_ulp, ulp_distance<T>(ours_bits, reference_bits));
      }
    }
  }
  if constexpr (!is_float<T>) {
    statistics.beyond = statistics.mismatched;  // integers are equal or not, however large
  }
  return statistics;
}

}  // namespace

ElementStatistics compare_elements(const torch::Tensor& ours, const torch::Tensor& reference,
                                   Tolerance tolerance) {
  const auto compare = [&]<typename T>(T /*type*/) {
    return compare_typed<T>(ours.const_data_ptr(), reference.const_data_ptr(), ours.numel(), tolerance);
  };
  switch (ours.scalar_type()) {
    case torch::kDouble:
      return compare(double{});
    case torch::kFloat:
      return compare(float{});
    case torch::kHalf:
      return compare(c10::Half{});
    case torch::kBFloat16:
      return compare(c10::BFloat16{});
    case torch::kLong:
      return compare(int64_t{});
    case torch::kInt:
      return compare(int32_t{});
    case torch::kShort:
      return compare(int16_t{});
    case torch::kChar:
      return compare(int8_t{});
    case torch::kBool:
    case torch::kByte:
      return compare(uint8_t{});
    case torch::kUInt16:
      return compare(uint16_t{});
    case torch::kUInt32:
      return compare(uint32_t{});
    case torch::kUInt64:
      return compare(uint64_t{});
    default:
      TORCH_CHECK_VALUE(false, "comparing tensors of dtype ", ours.scalar_type(), " is not supported");
  }
}

}  // namespace mha::parity
