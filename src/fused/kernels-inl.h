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

/// scores[row][key] = query[row] . keys of a panel, kVectors of them.
template <class F, int kRows, int kVectors>
HWY_INLINE void ScorePanel(const float* HWY_RESTRICT query, const float* HWY_RESTRICT panel,
                           std::int64_t words, float* HWY_RESTRICT scores) {
  const D d;
  const std::int64_t lanes = Lanes();
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Zero(d);
    }
  }
  for (std::int64_t word = 0; word < words; ++word, panel += Panel()) {
    V keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      keys[v] = hn::Load(d, panel + v * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V q = hn::Set(d, query[r * words + word]);
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = F::MulAdd(q, keys[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[r][v], d, scores + r * kKeyBlock + v * lanes);
    }
  }
}

/// output[row] = output[row] * factor[row] + weights[row] . values, kVectors columns of them; kFirst: output is 0 so far.
template <class F, int kRows, int kVectors, bool kFirst>
HWY_INLINE void ValuePanel(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values,
                           std::int64_t words, const float* HWY_RESTRICT factors, float* HWY_RESTRICT output,
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
    for (std::int64_t word = begin; word < end; ++word, values += kVectors * lanes) {
      V value[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        value[v] = hn::Load(d, values + v * lanes);
      }
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

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
