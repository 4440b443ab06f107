// How queries, keys and values of each kind become 32-bit words to multiply: a float32, or a pair of bfloat16. Compiled
// once for each instruction set.
#if defined(MHA_FUSED_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_ELEMENTS_INL_H_
#undef MHA_FUSED_ELEMENTS_INL_H_
#else
#define MHA_FUSED_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "fused/core.h"

// Highway 1.0 lacks AVX-512's dot product of bfloat16.
#undef MHA_FUSED_HAVE_PAIRS
#if HWY_ARCH_X86 && (defined(__GNUC__) || defined(__clang__)) && HWY_TARGET <= HWY_AVX3
#define MHA_FUSED_HAVE_PAIRS 1
#else
#define MHA_FUSED_HAVE_PAIRS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DW = hn::RebindToUnsigned<D>;
using VW = hn::Vec<DW>;
using Bits = std::uint16_t;  // of a bfloat16
using DH = hn::Rebind<Bits, D>;

HWY_INLINE std::int64_t Lanes() {
  return static_cast<std::int64_t>(hn::Lanes(D()));
}

HWY_INLINE float Widen(Bits bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

HWY_INLINE V Widen(hn::Vec<DH> bits) {
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DW(), bits)));
}

/// Bits of the nearest bfloat16, ties to even; NaN stays NaN.
HWY_INLINE VW Narrow(V value) {
  const DW words;
  const VW bits = hn::BitCast(words, value);
  const VW odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const VW rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7FFF))));
  const VW quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(words, 0x40));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet, rounded);
}

/// Stores `count` floats, at most a vector of them, as bfloat16.
HWY_INLINE void StoreNarrow(V value, std::int64_t count, Bits* HWY_RESTRICT to) {
  HWY_ALIGN std::uint32_t bits[HWY_MAX_BYTES / sizeof(std::uint32_t)];
  hn::Store(Narrow(value), DW(), bits);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<Bits>(bits[i]);
  }
}

/// The first `count` lanes, fewer than there are; 0 in the others. Reads nothing else.
template <class DT, typename T = hn::TFromD<DT>>
HWY_INLINE hn::Vec<DT> LoadSome(DT d, const T* HWY_RESTRICT from, std::int64_t count) {
#if HWY_ARCH_X86
  // Where the processor has masked loads of this size, which do not touch what they leave out.
  if constexpr (HWY_TARGET <= HWY_AVX3 || (HWY_TARGET <= HWY_AVX2 && sizeof(T) == 4)) {
    return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(count)), d, from);
  }
#endif
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    lanes[i] = from[i];
  }
  return hn::Load(d, lanes);
}

/// float32: a word is a number.
struct Float32 {
  using Element = float;
  static constexpr std::int64_t kPerWord = 1;
  static constexpr int kDegree = 5;  // of the exponential
  // Weighted values that are added up before they are added to the output: long sums of one sign would drift.
  static constexpr std::int64_t kSumWords = 128;
  static constexpr bool kSumOntoOutput = false;

  static HWY_INLINE void ToWords(const float* from, std::int64_t count, float* HWY_RESTRICT to) {
    const D d;
    std::int64_t i = 0;
    for (; i + Lanes() <= count; i += Lanes()) {
      hn::StoreU(hn::LoadU(d, from + i), d, to + i);
    }
    for (; i < count; ++i) {
      to[i] = from[i];
    }
  }
  /// A vector of a row's words; of `count` elements that do not fill it, 0 after them.
  static HWY_INLINE V LoadWords(const float* from) { return hn::LoadU(D(), from); }
  static HWY_INLINE V LoadSomeWords(const float* from, std::int64_t count) {
    return LoadSome(D(), from, count);
  }
  /// Rows of values: each word is one of the row.
  static HWY_INLINE void InterleaveRows(const float* row, const float* /*next*/, std::int64_t count,
                                        float* HWY_RESTRICT to) {
    ToWords(row, count, to);
  }
  /// A vector of them, whole or not.
  static HWY_INLINE V LoadRows(const float* row, const float* /*next*/) { return LoadWords(row); }
  static HWY_INLINE V LoadSomeRows(const float* row, const float* /*next*/, std::int64_t count) {
    return LoadSomeWords(row, count);
  }
  static HWY_INLINE void FromWords(const float* HWY_RESTRICT words, std::int64_t count, float* to) {
    ToWords(words, count, to);
  }
  static HWY_INLINE V MulAdd(V a, V b, V sum) { return hn::MulAdd(a, b, sum); }
  /// Weights of kPerWord vectors of keys as the product takes them.
  static HWY_INLINE V PackWeights(const V* weights) { return weights[0]; }
  static HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, float factor, std::int64_t count,
                                  float* HWY_RESTRICT to) {
    const D d;
    const V factors = hn::Set(d, factor);
    std::int64_t i = 0;
    for (; i + Lanes() <= count; i += Lanes()) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), factors), d, to + i);
    }
    for (; i < count; ++i) {
      to[i] = from[i] * factor;
    }
  }
  /// to = from + bias.
  static HWY_INLINE void AddRow(const float* HWY_RESTRICT from, const float* bias, std::int64_t count,
                                float* HWY_RESTRICT to) {
    const D d;
    std::int64_t i = 0;
    for (; i + Lanes() <= count; i += Lanes()) {
      hn::StoreU(hn::Add(hn::LoadU(d, from + i), hn::LoadU(d, bias + i)), d, to + i);
    }
    for (; i < count; ++i) {
      to[i] = from[i] + bias[i];
    }
  }
};

/// bfloat16 on any processor: widened to float32.
struct WidenedBFloat16 : Float32 {
  using Element = Bits;

  static HWY_INLINE V LoadWords(const Bits* from) { return Widen(hn::LoadU(DH(), from)); }
  static HWY_INLINE V LoadSomeWords(const Bits* from, std::int64_t count) {
    return Widen(LoadSome(DH(), from, count));
  }
  static HWY_INLINE V LoadRows(const Bits* row, const Bits* /*next*/) { return LoadWords(row); }
  static HWY_INLINE V LoadSomeRows(const Bits* row, const Bits* /*next*/, std::int64_t count) {
    return LoadSomeWords(row, count);
  }
  static HWY_INLINE void ToWords(const Bits* from, std::int64_t count, float* HWY_RESTRICT to) {
    const D d;
    std::int64_t i = 0;
    for (; i + Lanes() <= count; i += Lanes()) {
      hn::StoreU(LoadWords(from + i), d, to + i);
    }
    for (; i < count; ++i) {
      to[i] = Widen(from[i]);
    }
  }
  static HWY_INLINE void InterleaveRows(const Bits* row, const Bits* /*next*/, std::int64_t count,
                                        float* HWY_RESTRICT to) {
    ToWords(row, count, to);
  }
  static HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, float factor, std::int64_t count,
                                  Bits* HWY_RESTRICT to) {
    const D d;
    const V factors = hn::Set(d, factor);
    for (std::int64_t i = 0; i < count; i += Lanes()) {
      StoreNarrow(hn::Mul(hn::LoadU(d, from + i), factors), std::min(Lanes(), count - i), to + i);
    }
  }
  static HWY_INLINE void FromWords(const float* HWY_RESTRICT words, std::int64_t count, Bits* to) {
    for (std::int64_t i = 0; i < count; i += Lanes()) {
      StoreNarrow(LoadSome(D(), words + i, std::min(Lanes(), count - i)), std::min(Lanes(), count - i),
                  to + i);
    }
  }
  static HWY_INLINE void AddRow(const float* HWY_RESTRICT from, const Bits* bias, std::int64_t count,
                                Bits* HWY_RESTRICT to) {
    for (std::int64_t i = 0; i < count; i += Lanes()) {
      const std::int64_t some = std::min(Lanes(), count - i);
      StoreNarrow(hn::Add(LoadSome(D(), from + i, some), LoadSomeWords(bias + i, some)), some, to + i);
    }
  }
};

#if MHA_FUSED_HAVE_PAIRS
/// bfloat16 with the processor's own products: a word is a pair, and two products are added to each float32 sum.
///
/// Assembly, since the intrinsics could not be used in functions compiled for processors that lack the instructions.
struct PairedBFloat16 : WidenedBFloat16 {
  static constexpr std::int64_t kPerWord = 2;
  static constexpr int kDegree = 3;  // the weights are rounded to 8 bits
  static constexpr std::int64_t kSumWords = 256;
  static constexpr bool kSumOntoOutput = true;  // faster; what drifts is far below what rounds

  static HWY_INLINE void ToWords(const Bits* from, std::int64_t count, float* HWY_RESTRICT to) {
    if (count > 0) {  // there may be no memory
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Bits));
    }
    if (count % 2 != 0) {
      std::memset(reinterpret_cast<Bits*>(to) + count, 0, sizeof(Bits));
    }
  }
  static HWY_INLINE V LoadWords(const Bits* from) { return hn::BitCast(D(), hn::LoadU(DB(), from)); }
  static HWY_INLINE V LoadSomeWords(const Bits* from, std::int64_t count) {
    return hn::BitCast(D(), LoadSome(DB(), from, count));
  }
  /// Rows of values in pairs: each word holds one value of each of two rows; without a `next` row, 0.
  static HWY_INLINE V LoadRows(const Bits* row, const Bits* next) {
    const DH halves;
    return Interleave(hn::LoadU(halves, row), next == nullptr ? hn::Zero(halves) : hn::LoadU(halves, next));
  }
  static HWY_INLINE V LoadSomeRows(const Bits* row, const Bits* next, std::int64_t count) {
    const DH halves;
    return Interleave(LoadSome(halves, row, count),
                      next == nullptr ? hn::Zero(halves) : LoadSome(halves, next, count));
  }
  static HWY_INLINE void InterleaveRows(const Bits* row, const Bits* next, std::int64_t count,
                                        float* HWY_RESTRICT to) {
    const D d;
    std::int64_t i = 0;
    for (; i + Lanes() <= count; i += Lanes()) {
      hn::StoreU(LoadRows(row + i, next == nullptr ? nullptr : next + i), d, to + i);
    }
    for (; i < count; ++i) {
      const std::uint32_t word = row[i] | static_cast<std::uint32_t>(next == nullptr ? 0 : next[i]) << 16;
      std::memcpy(to + i, &word, sizeof word);
    }
  }
  static HWY_INLINE void FromWords(const float* HWY_RESTRICT words, std::int64_t count, Bits* to) {
    std::memcpy(to, words, static_cast<std::size_t>(count) * sizeof(Bits));
  }
  static HWY_INLINE void AddRow(const float* HWY_RESTRICT from, const Bits* bias, std::int64_t count,
                                Bits* HWY_RESTRICT to) {
    // The bias's bits are numbers here, not pairs.
    WidenedBFloat16::AddRow(from, bias, count, to);
  }
  static HWY_INLINE V MulAdd(V a, V b, V sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
  static HWY_INLINE V PackWeights(const V* weights) {
    V pairs = weights[0];
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs.raw) : "v"(weights[1].raw), "v"(weights[0].raw));
    return pairs;
  }

 private:
  using DB = hn::Repartition<Bits, D>;

  static HWY_INLINE V Interleave(hn::Vec<DH> low, hn::Vec<DH> high) {
    const DW words;
    return hn::BitCast(D(), hn::Or(hn::PromoteTo(words, low), hn::ShiftLeft<16>(hn::PromoteTo(words, high))));
  }
};
#endif

/// Calls function(F) for the kind of element, with the processor's own products of pairs where `pairs`.
template <typename Function>
HWY_INLINE auto WithElement(Element element, bool pairs, const Function& function) {
  if (element == Element::float32) {
    return function(Float32());
  }
#if MHA_FUSED_HAVE_PAIRS
  if (pairs) {
    return function(PairedBFloat16());
  }
#endif
  static_cast<void>(pairs);
  return function(WidenedBFloat16());
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
