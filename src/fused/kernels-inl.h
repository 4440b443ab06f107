// The inner loops: the exponential and the two products. Compiled once for each instruction set.
#if defined(MHA_FUSED_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_KERNELS_INL_H_
#undef MHA_FUSED_KERNELS_INL_H_
#else
#define MHA_FUSED_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "fused/blocking-inl.h"
#include "fused/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {

/// 2^x for x <= 0, within 8e-8 for degree 5 and 1e-4 for degree 3, of 2^x; 0 below -126; NaN for NaN.
template <int kDegree>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 + 127 leaves round(x) + 127 in the low bits: the exponent of 2^round(x).
  const V magic = hn::Set(d, 12583039.0f);
  const V shifted = hn::Add(x, magic);
  const V fraction = hn::Sub(x, hn::Sub(shifted, magic));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  // Minimax on [-0.5, 0.5].
  static_assert(kDegree == 3 || kDegree == 5);
  V y;
  if constexpr (kDegree == 5) {
    y = hn::Set(d, 1.3276466e-3f);
    y = hn::MulAdd(y, fraction, hn::Set(d, 9.6755413e-3f));
    y = hn::MulAdd(y, fraction, hn::Set(d, 5.5507132e-2f));
    y = hn::MulAdd(y, fraction, hn::Set(d, 2.4022118e-1f));
    y = hn::MulAdd(y, fraction, hn::Set(d, 6.9314697e-1f));
    y = hn::MulAdd(y, fraction, hn::Set(d, 1.0f));
  } else {
    y = hn::Set(d, 0.05517167f);
    y = hn::MulAdd(y, fraction, hn::Set(d, 0.24261113f));
    y = hn::MulAdd(y, fraction, hn::Set(d, 0.69326099f));
    y = hn::MulAdd(y, fraction, hn::Set(d, 0.99992807f));
  }
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(y, power));
}

/// scores[row][key] = query[row] . keys of a panel, kVectors of them. Rows of queries are `stride` words apart.
template <class F, int kRows, int kVectors>
HWY_INLINE void ScorePanel(const float* HWY_RESTRICT query, std::int64_t stride,
                           const float* HWY_RESTRICT panel, std::int64_t words, float* HWY_RESTRICT scores) {
  const D d;
  const std::int64_t lanes = Lanes();
  std::int64_t word = 0;
  do {
    const bool is_first = word == 0;
    const std::int64_t end = std::min(words, word + kProductWords);
    V sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::Zero(d);
      }
    }
    for (; word < end; ++word, panel += Panel()) {
      V keys[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        keys[v] = hn::Load(d, panel + v * lanes);
      }
      for (int r = 0; r < kRows; ++r) {
        const V q = hn::Set(d, query[r * stride + word]);
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = F::MulAdd(q, keys[v], sums[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        float* const to = scores + r * kKeyBlock + v * lanes;
        hn::Store(is_first ? sums[r][v] : hn::Add(hn::Load(d, to), sums[r][v]), d, to);
      }
    }
  } while (word < words);
}

/// to[i] = the sum of the lanes of sums[i], in the same order for each.
HWY_INLINE void StoreSums(const V (&sums)[4], float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) {
    to[i] = hn::GetLane(sums[i]);
  }
#else
  const D d;
  const hn::RepartitionToWide<D> d2;
  const auto fold = [d](V a, V b) HWY_ATTR {
    return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const auto low = hn::BitCast(d2, fold(sums[0], sums[1]));   // blocks of 0 1 0 1
  const auto high = hn::BitCast(d2, fold(sums[2], sums[3]));  // blocks of 2 3 2 3
  const V blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d2, low, high)),
                           hn::BitCast(d, hn::InterleaveUpper(d2, low, high)));
  HWY_ALIGN float parts[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(blocks, d, parts);
  const hn::FixedTag<float, 4> d4;
  auto total = hn::Load(d4, parts);
  for (std::int64_t i = 4; i < Lanes(); i += 4) {
    total = hn::Add(total, hn::Load(d4, parts + i));
  }
  hn::StoreU(total, d4, to);
#endif
}

/// The same scores from keys where they lie, `key_stride` elements apart: they are read once. Rows of queries are
/// `stride` words apart, 0 after the last feature. Writes up to 3 scores past the last key.
template <class F, int kRows>
HWY_INLINE void ScoreRows(const float* HWY_RESTRICT query, std::int64_t stride,
                          const typename F::Element* HWY_RESTRICT keys, std::int64_t key_stride,
                          std::int64_t count, std::int64_t d_k, float* HWY_RESTRICT scores) {
  constexpr int kKeys = 4;
  const D d;
  const std::int64_t step = Lanes() * F::kPerWord;
  const std::int64_t whole = d_k / step * step;
  for (std::int64_t first = 0; first < count; first += kKeys) {
    const typename F::Element* HWY_RESTRICT key[kKeys];
    for (int i = 0; i < kKeys; ++i) {
      key[i] = keys + std::min(first + i, count - 1) * key_stride;
    }
    V sums[kRows][kKeys];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kKeys; ++i) {
        sums[r][i] = hn::Zero(d);
      }
    }
    const float* HWY_RESTRICT q = query;
    const auto add = [&](const V(&words)[kKeys]) HWY_ATTR {
      for (int r = 0; r < kRows; ++r) {
        const V row = hn::Load(d, q + r * stride);
        for (int i = 0; i < kKeys; ++i) {
          sums[r][i] = F::MulAdd(row, words[i], sums[r][i]);
        }
      }
    };
    V words[kKeys];
    for (std::int64_t feature = 0; feature < whole; feature += step, q += Lanes()) {
      for (int i = 0; i < kKeys; ++i) {
        words[i] = F::LoadWords(key[i] + feature);
      }
      add(words);
    }
    if (whole < d_k) {
      for (int i = 0; i < kKeys; ++i) {
        words[i] = F::LoadSomeWords(key[i] + whole, d_k - whole);
      }
      add(words);
    }
    for (int r = 0; r < kRows; ++r) {
      StoreSums(sums[r], scores + r * kKeyBlock + first);
    }
  }
}

/// Values in panels, word by word.
template <class F, int kVectors>
class PackedValues {
 public:
  explicit HWY_INLINE PackedValues(const float* HWY_RESTRICT values) : values_(values) {}

  HWY_INLINE void Next(V (&value)[kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
      value[v] = hn::Load(D(), values_ + v * Lanes());
    }
    values_ += kVectors * Lanes();
  }

 private:
  const float* HWY_RESTRICT values_;
};

/// Values where they lie, `stride` elements apart; the last vector may have fewer than Lanes() columns.
template <class F, int kVectors>
class ValueRows {
 public:
  HWY_INLINE ValueRows(const typename F::Element* HWY_RESTRICT row, std::int64_t stride, std::int64_t keys,
                       std::int64_t columns)
      : row_(row), stride_(stride), keys_(keys), last_(columns - (kVectors - 1) * Lanes()) {}

  HWY_INLINE void Next(V (&value)[kVectors]) {
    const auto* const next = F::kPerWord > 1 && keys_ > 1 ? row_ + stride_ : nullptr;
    const auto load = [&](std::int64_t column) HWY_ATTR {
      return F::LoadRows(row_ + column, next == nullptr ? nullptr : next + column);
    };
    for (int v = 0; v + 1 < kVectors; ++v) {
      value[v] = load(v * Lanes());
    }
    const std::int64_t column = (kVectors - 1) * Lanes();
    value[kVectors - 1] =
        last_ == Lanes() ? load(column)
                         : F::LoadSomeRows(row_ + column, next == nullptr ? nullptr : next + column, last_);
    row_ += stride_ * F::kPerWord;
    keys_ -= F::kPerWord;
  }

 private:
  const typename F::Element* HWY_RESTRICT row_;
  std::int64_t stride_;
  std::int64_t keys_;
  std::int64_t last_;
};

/// output[row] = output[row] * factor[row] + weights[row] . values, kVectors columns of them; kFirst: output is 0 so far.
/// `values` gives their words in turn.
template <class F, int kRows, int kVectors, bool kFirst, class Values>
HWY_INLINE void WeightValues(const float* HWY_RESTRICT weights, Values values, std::int64_t words,
                             const float* HWY_RESTRICT factors, float* HWY_RESTRICT output,
                             std::int64_t columns) {
  const D d;
  const std::int64_t lanes = Lanes();
  static_assert(!F::kSumOntoOutput || F::kSumWords * F::kPerWord >= kKeyBlock);
  V sums[kRows][kVectors];
  for (std::int64_t begin = 0; begin < words; begin += F::kSumWords) {
    const std::int64_t end = std::min(words, begin + F::kSumWords);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        if (kFirst || !F::kSumOntoOutput) {
          sums[r][v] = hn::Zero(d);
        } else {
          sums[r][v] = hn::Mul(hn::Set(d, factors[r]), hn::Load(d, output + r * columns + v * lanes));
        }
      }
    }
    for (std::int64_t word = begin; word < end; ++word) {
      V value[kVectors];
      values.Next(value);
      for (int r = 0; r < kRows; ++r) {
        const V weight = hn::Set(d, weights[r * kKeyBlock + word]);
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = F::MulAdd(weight, value[v], sums[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        float* const to = output + r * columns + v * lanes;
        if (F::kSumOntoOutput || (kFirst && begin == 0)) {
          hn::Store(sums[r][v], d, to);
        } else {
          hn::Store(hn::MulAdd(hn::Set(d, begin == 0 ? factors[r] : 1.0f), hn::Load(d, to), sums[r][v]), d,
                    to);
        }
      }
    }
  }
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

/// Calls function(Constant<n>) for a number of vectors from 1 to kPanelVectors.
template <typename Function>
HWY_INLINE void WithVectors(std::int64_t vectors, const Function& function) {
  switch (vectors) {
    case 1:
      return function(Constant<1>());
    case 2:
      return function(Constant<2>());
    default:
      break;
  }
  if constexpr (kPanelVectors == 4) {
    return vectors == 3 ? function(Constant<3>()) : function(Constant<4>());
  }
}

/// Calls function(first, Constant<n>) for strips of n rows, at most `most` of them, which is at most kStripRows: as equal
/// as can be, so that 50 rows in strips of 6 are 5 strips of 6 and 4 of 5.
template <typename Function>
HWY_INLINE void ForStrips(std::int64_t rows, std::int64_t most, const Function& function) {
  const std::int64_t strips = (rows + most - 1) / most;
  std::int64_t first = 0;
  for (std::int64_t strip = 0; strip < strips; ++strip) {
    const std::int64_t next = rows * (strip + 1) / strips;
    static_assert(kStripRows == 6);
    switch (next - first) {
      case 1:
        function(first, Constant<1>());
        break;
      case 2:
        function(first, Constant<2>());
        break;
      case 3:
        function(first, Constant<3>());
        break;
      case 4:
        function(first, Constant<4>());
        break;
      case 5:
        function(first, Constant<5>());
        break;
      default:
        function(first, Constant<6>());
    }
    first = next;
  }
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
