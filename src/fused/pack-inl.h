// Keys and values in the order in which the kernels read them. Compiled once for each instruction set.
#if defined(MHA_FUSED_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_PACK_INL_H_
#undef MHA_FUSED_PACK_INL_H_
#else
#define MHA_FUSED_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "fused/blocking-inl.h"
#include "fused/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {

/// Transposes `rows` ([count][width] words, width a multiple of 4) to [width][Panel()].
HWY_INLINE void Transpose(const float* HWY_RESTRICT rows, std::int64_t count, std::int64_t width,
                          float* HWY_RESTRICT packed) {
  const std::int64_t panel = Panel();
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t word = 0; word < width; ++word) {
      packed[word * panel + row] = rows[row * width + word];
    }
  }
#else
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  for (std::int64_t row = 0; row < count; row += 4) {
    for (std::int64_t word = 0; word < width; word += 4) {
      const float* HWY_RESTRICT from = rows + row * width + word;
      const auto a = hn::LoadU(d4, from);
      const auto b = hn::LoadU(d4, from + width);
      const auto c = hn::LoadU(d4, from + 2 * width);
      const auto e = hn::LoadU(d4, from + 3 * width);
      const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
      const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
      const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
      const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
      float* HWY_RESTRICT to = packed + word * panel + row;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, to);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, to + panel);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, to + 2 * panel);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, to + 3 * panel);
    }
  }
#endif
}

/// Rows of keys as panels: for each word of the features the panel's keys side by side. `rows` is room for
/// [Panel()][words of d_k, rounded up to 4].
template <class F>
void PackKeys(const typename F::Element* keys, std::int64_t stride, std::int64_t key_len, std::int64_t d_k,
              float* HWY_RESTRICT rows, float* HWY_RESTRICT packed) {
  const std::int64_t width = RoundUp(Words<F>(d_k), 4);
  for (std::int64_t first = 0; first < key_len; first += Panel(), packed += Panel() * width) {
    const std::int64_t count = std::min(Panel(), key_len - first);
    for (std::int64_t key = 0; key < count; ++key) {
      float* const row = rows + key * width;
      std::fill(row + width - 4, row + width, 0.0f);
      F::ToWords(keys + (first + key) * stride, d_k, row);
    }
    // What follows the last key up to a whole vector is multiplied too, and then replaced.
    const std::int64_t padded = RoundUp(count, std::max<std::int64_t>(Lanes(), 4));
    std::fill(rows + count * width, rows + std::min(padded, Panel()) * width, 0.0f);
    Transpose(rows, std::min(padded, Panel()), width, packed);
  }
}

/// Rows of values as panels of columns, 0 past the last column.
template <class F>
void PackValues(const typename F::Element* values, std::int64_t stride, std::int64_t key_len,
                std::int64_t d_k, float* HWY_RESTRICT packed) {
  const std::int64_t columns = RoundUp(d_k, Lanes());
  for (std::int64_t column = 0; column < columns; column += Panel()) {
    const std::int64_t width = std::min(Panel(), columns - column);
    const std::int64_t used = std::min(width, d_k - column);
    for (std::int64_t key = 0; key < key_len; key += F::kPerWord, packed += width) {
      const auto* const row = values + key * stride + column;
      F::InterleaveRows(row, key + 1 < key_len ? row + stride : nullptr, used, packed);
      std::fill(packed + used, packed + width, 0.0f);
    }
  }
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
