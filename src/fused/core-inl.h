// The kernels, compiled once for each instruction set; included by core.cpp alone.
#if defined(MHA_FUSED_CORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_CORE_INL_H_
#undef MHA_FUSED_CORE_INL_H_
#else
#define MHA_FUSED_CORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fused/core.h"
#include "fused/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {

// Sizes of the blocking. A strip of query rows keeps its scores in the first-level cache, a block of keys and
// values stays in the second while a block of queries passes.
constexpr std::int64_t kStripRows = 6;
constexpr std::int64_t kQueryBlock = 64;
constexpr std::int64_t kKeyBlock = 512;
#if HWY_TARGET == HWY_AVX3
constexpr int kPanelVectors = 4;  // 32 registers
#elif HWY_ARCH_ARM
constexpr int kPanelVectors = 4;
#else
constexpr int kPanelVectors = 2;  // 16 registers
#endif
constexpr float kInfinity = std::numeric_limits<float>::infinity();

HWY_INLINE std::int64_t Panel() {
  return kPanelVectors * Lanes();
}
HWY_INLINE std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Words of a row of `count` elements.
template <class F>
HWY_INLINE std::int64_t Words(std::int64_t count) {
  return (count + F::kPerWord - 1) / F::kPerWord;
}

/// Where each part of a thread's scratch memory begins. All are 32-bit words.
struct Scratches {
  float* keys;     // panels of [words of d_k, rounded up to 4][Panel()]
  float* values;   // panels of [words of key_len][columns of the panel]
  float* rows;     // [Panel()][words of d_k, rounded up to 4]
  float* query;    // [kQueryBlock][words of d_k]
  float* scores;   // [kStripRows][kKeyBlock]
  float* output;   // [kQueryBlock][d_k, rounded up to Lanes()]
  float* maximum;  // [kQueryBlock]
  float* sum;      // [kQueryBlock]
};

template <class F>
HWY_INLINE std::int64_t Carve(const CoreArguments& a, float* scratch, Scratches& parts) {
  std::int64_t at = 0;
  const auto take = [&](std::int64_t words) {
    float* const part = scratch == nullptr ? nullptr : scratch + at;
    at += RoundUp(words, 16);
    return part;
  };
  const std::int64_t columns = RoundUp(a.d_k, Lanes());
  const std::int64_t row = RoundUp(Words<F>(a.d_k), 4);
  parts.keys = take(RoundUp(a.key_len, Panel()) * row);
  parts.values = take(Words<F>(a.key_len) * columns);
  parts.rows = take(Panel() * row);
  parts.query = take(kQueryBlock * Words<F>(a.d_k));
  parts.scores = take(kStripRows * kKeyBlock);
  parts.output = take(kQueryBlock * columns);
  parts.maximum = take(kQueryBlock + HWY_MAX_BYTES / 4);
  parts.sum = take(kQueryBlock + HWY_MAX_BYTES / 4);
  return at;
}

HWY_INLINE std::int64_t QueryBlocks(const CoreArguments& a) {
  return (a.query_len + kQueryBlock - 1) / kQueryBlock;
}

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

/// Rows of keys as panels: for each word of the features the panel's keys side by side.
template <class F>
void PackKeys(const typename F::Element* keys, std::int64_t stride, std::int64_t key_len, std::int64_t d_k,
              const Scratches& s) {
  const std::int64_t width = RoundUp(Words<F>(d_k), 4);
  float* packed = s.keys;
  for (std::int64_t first = 0; first < key_len; first += Panel(), packed += Panel() * width) {
    const std::int64_t count = std::min(Panel(), key_len - first);
    for (std::int64_t key = 0; key < count; ++key) {
      float* const row = s.rows + key * width;
      std::fill(row + width - 4, row + width, 0.0f);
      F::ToWords(keys + (first + key) * stride, d_k, row);
    }
    // What follows the last key up to a whole vector is multiplied too, and then replaced.
    const std::int64_t padded = RoundUp(count, std::max<std::int64_t>(Lanes(), 4));
    std::fill(s.rows + count * width, s.rows + std::min(padded, Panel()) * width, 0.0f);
    Transpose(s.rows, std::min(padded, Panel()), width, packed);
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
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = kFirst ? hn::Zero(d)
                          : hn::Mul(hn::Set(d, factors[r]), hn::Load(d, output + r * columns + v * lanes));
    }
  }
  for (std::int64_t word = 0; word < words; ++word, values += kVectors * lanes) {
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
      hn::Store(sums[r][v], d, output + r * columns + v * lanes);
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

/// One head's work on a thread.
template <class F>
class Head {
 public:
  using Element = typename F::Element;

  Head(const CoreArguments& a, const Scratches& scratch, std::int64_t batch, std::int64_t head)
      : a_(a),
        s_(scratch),
        words_(Words<F>(a.d_k)),
        columns_(RoundUp(a.d_k, Lanes())),
        query_(At(a.query, a.query_strides, batch, head)),
        key_(At(a.key, a.key_strides, batch, head)),
        value_(At(a.value, a.value_strides, batch, head)),
        output_(const_cast<Element*>(At(a.output, a.output_strides, batch, head))),
        mask_(a.mask.data == nullptr ? nullptr : a.mask.data + batch * a.mask.batch + head * a.mask.head),
        scale_(static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(a.d_k)))),
        fill_(static_cast<float>((a.element == fused::Element::bfloat16 ? -998244352.0 : -1e9) *
                                 std::sqrt(static_cast<double>(a.d_k)))) {}

  void Pack() const {
    PackKeys<F>(key_, a_.key_strides.row, a_.key_len, a_.d_k, s_);
    PackValues<F>(value_, a_.value_strides.row, a_.key_len, a_.d_k, s_.values);
  }

  /// A block of query rows against all keys.
  void RunBlock(std::int64_t first_row) const {
    const std::int64_t rows = std::min(kQueryBlock, a_.query_len - first_row);
    for (std::int64_t r = 0; r < rows; ++r) {
      F::ToWords(query_ + (first_row + r) * a_.query_strides.row, a_.d_k, s_.query + r * words_);
    }
    // Past the last key that any row keeps, there is nothing to add.
    const std::int64_t end =
        a_.causal ? std::clamp<std::int64_t>(first_row + rows + a_.causal_shift, 0, a_.key_len) : a_.key_len;
    RunKeys(first_row, rows, end);
    if (end < a_.key_len && AnyRowKeepsNone(rows)) {
      RunKeys(first_row, rows, a_.key_len);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      F::StoreRow(s_.output + r * columns_, 1.0f / s_.sum[r], a_.d_k,
                  output_ + (first_row + r) * a_.output_strides.row);
    }
  }

 private:
  static const Element* At(const void* data, const Strides& strides, std::int64_t batch, std::int64_t head) {
    return static_cast<const Element*>(data) + batch * strides.batch + head * strides.head;
  }

  void RunKeys(std::int64_t first_row, std::int64_t rows, std::int64_t end) const {
    std::fill(s_.maximum, s_.maximum + rows, -kInfinity);
    std::fill(s_.sum, s_.sum + rows, 0.0f);
    const std::int64_t strips = (rows + kStripRows - 1) / kStripRows;
    for (std::int64_t first_key = 0; first_key < end; first_key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, end - first_key);
      std::int64_t row = 0;
      for (std::int64_t strip = 0; strip < strips; ++strip) {
        // As equal as can be: 50 rows are 5 strips of 6 and 4 of 5.
        const std::int64_t next = rows * (strip + 1) / strips;
        // Skipped where every row blocks all of these keys; not when all keys are wanted.
        if (end == a_.key_len || first_key < first_row + next + a_.causal_shift) {
          RunStrip(next - row, {first_row + row, row, first_key, keys});
        }
        row = next;
      }
    }
  }

  /// Where a strip's rows and a block of keys are.
  struct Place {
    std::int64_t query;  // the first row's number
    std::int64_t row;    // the same within the block of queries
    std::int64_t key;
    std::int64_t keys;
  };

  HWY_NOINLINE void RunStrip(std::int64_t rows, const Place& at) const {
    switch (rows) {
      case 1:
        return Strip<1>(at);
      case 2:
        return Strip<2>(at);
      case 3:
        return Strip<3>(at);
      case 4:
        return Strip<4>(at);
      case 5:
        return Strip<5>(at);
      default:
        return Strip<6>(at);
    }
  }

  template <int kRows>
  HWY_NOINLINE void Strip(const Place& at) const {
    const std::int64_t lanes = Lanes();
    const std::int64_t panel = Panel();
    const std::int64_t width = RoundUp(words_, 4);
    for (std::int64_t key = 0; key < at.keys; key += panel) {
      const std::int64_t vectors = (std::min(panel, at.keys - key) + lanes - 1) / lanes;
      WithVectors(vectors, [&](auto count) HWY_ATTR {
        ScorePanel<F, kRows, decltype(count)::value>(
            s_.query + at.row * words_, s_.keys + (at.key + key) * width, words_, s_.scores + key);
      });
    }
    HWY_ALIGN float factors[16];  // a whole vector at least
    if (mask_ != nullptr || a_.causal) {
      Softmax<kRows, true>(at, factors);
    } else {
      Softmax<kRows, false>(at, factors);
    }
    const std::int64_t words = Words<F>(at.keys);
    const float* values = s_.values;
    for (std::int64_t column = 0; column < columns_; column += panel) {
      const std::int64_t of_panel = std::min(panel, columns_ - column);
      const float* const from = values + at.key / F::kPerWord * of_panel;
      float* const output = s_.output + at.row * columns_ + column;
      WithVectors(of_panel / lanes, [&](auto count) HWY_ATTR {
        constexpr int kVectors = decltype(count)::value;
        if (at.key == 0) {
          ValuePanel<F, kRows, kVectors, true>(s_.scores, from, words, factors, output, columns_);
        } else {
          ValuePanel<F, kRows, kVectors, false>(s_.scores, from, words, factors, output, columns_);
        }
      });
      values += Words<F>(a_.key_len) * of_panel;
    }
  }

  /// Turns the strip's scores into weights relative to each row's running maximum; `factors` are what the rows' sums so
  /// far are to be multiplied by.
  template <int kRows, bool kMasked>
  HWY_INLINE void Softmax(const Place& at, float* HWY_RESTRICT factors) const {
    const D d;
    const std::int64_t lanes = Lanes();
    float* HWY_RESTRICT scores = s_.scores;
    // Past the last key: -inf, whose weight is 0, up to whole words of whole vectors.
    const std::int64_t step = lanes * F::kPerWord;
    for (std::int64_t key = at.keys / lanes * lanes; key < RoundUp(at.keys, step); key += lanes) {
      const auto real = hn::FirstN(d, static_cast<std::size_t>(std::max<std::int64_t>(at.keys - key, 0)));
      for (int r = 0; r < kRows; ++r) {
        float* const score = scores + r * kKeyBlock + key;
        hn::Store(hn::IfThenElse(real, hn::Load(d, score), hn::Set(d, -kInfinity)), d, score);
      }
    }
    if constexpr (kMasked) {
      for (int r = 0; r < kRows; ++r) {
        Mask(at.query + r, at.key, at.keys, scores + r * kKeyBlock);
      }
    }
    V highest[kRows];
    for (int r = 0; r < kRows; ++r) {
      highest[r] = hn::Set(d, -kInfinity);
    }
    for (std::int64_t key = 0; key < at.keys; key += lanes) {
      for (int r = 0; r < kRows; ++r) {
        highest[r] = hn::Max(highest[r], hn::Load(d, scores + r * kKeyBlock + key));
      }
    }
    V references[kRows];
    for (int r = 0; r < kRows; ++r) {
      const float before = s_.maximum[at.row + r];
      const float maximum = std::max(before, hn::GetLane(hn::MaxOfLanes(d, highest[r])) * scale_);
      // Where all scores are -inf so far, nothing is added; -inf - -inf would be NaN.
      const float reference = maximum == -kInfinity ? 0.0f : maximum;
      s_.maximum[at.row + r] = maximum;
      factors[r] = before - reference;
      references[r] = hn::Set(d, reference);
    }
    for (int r = 0; r < kRows; r += static_cast<int>(lanes)) {
      hn::Store(Exp2<5>(d, hn::Load(d, factors + r)), d, factors + r);
    }
    const V scale = hn::Set(d, scale_);
    V sums[kRows];
    for (int r = 0; r < kRows; ++r) {
      sums[r] = hn::Zero(d);
    }
    for (std::int64_t key = 0; key < at.keys; key += step) {
      for (int r = 0; r < kRows; ++r) {
        float* const score = scores + r * kKeyBlock + key;
        V weights[F::kPerWord];
        for (int i = 0; i < F::kPerWord; ++i) {
          const V raw = hn::Load(d, score + i * lanes);
          // A row of nothing but the fill must give exactly 1: there the product is rounded as its maximum was.
          weights[i] = Exp2<F::kDegree>(d, kMasked ? hn::Sub(hn::Mul(raw, scale), references[r])
                                                   : hn::MulSub(raw, scale, references[r]));
          sums[r] = hn::Add(sums[r], weights[i]);
        }
        hn::Store(F::PackWeights(weights), d, scores + r * kKeyBlock + key / F::kPerWord);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float& sum = s_.sum[at.row + r];
      sum = sum * factors[r] + hn::GetLane(hn::SumOfLanes(d, sums[r]));
    }
  }

  /// The lesson's masked_fill.
  HWY_INLINE void Mask(std::int64_t query, std::int64_t first_key, std::int64_t keys,
                       float* HWY_RESTRICT scores) const {
    if (a_.causal) {
      const std::int64_t kept = std::clamp<std::int64_t>(query + a_.causal_shift + 1 - first_key, 0, keys);
      std::fill(scores + kept, scores + keys, fill_);
    }
    if (mask_ == nullptr) {
      return;
    }
    const std::uint8_t* HWY_RESTRICT keep = mask_ + query * a_.mask.query + first_key * a_.mask.key;
    if (a_.mask.key == 0) {
      if (*keep == 0) {
        std::fill(scores, scores + keys, fill_);
      }
      return;
    }
    const D d;
    const hn::Rebind<std::uint8_t, D> bytes;
    const hn::RebindToSigned<D> integers;
    const V fill = hn::Set(d, fill_);
    const std::int64_t lanes = Lanes();
    std::int64_t key = 0;
    for (; key + lanes <= keys; key += lanes) {
      const auto kept = hn::PromoteTo(integers, hn::LoadU(bytes, keep + key));
      const auto blocked = hn::RebindMask(d, hn::Eq(kept, hn::Zero(integers)));
      hn::Store(hn::IfThenElse(blocked, fill, hn::Load(d, scores + key)), d, scores + key);
    }
    for (; key < keys; ++key) {
      scores[key] = keep[key] == 0 ? fill_ : scores[key];
    }
  }

  /// Whether a row found only blocked keys, or scores no higher: then also the keys that were skipped count.
  bool AnyRowKeepsNone(std::int64_t rows) const {
    const float highest = fill_ * scale_;
    return std::any_of(s_.maximum, s_.maximum + rows, [&](float maximum) { return maximum <= highest; });
  }

  const CoreArguments& a_;
  const Scratches& s_;
  std::int64_t words_;
  std::int64_t columns_;
  const Element* query_;
  const Element* key_;
  const Element* value_;
  Element* output_;
  const std::uint8_t* mask_;
  float scale_;  // of the scores, to base 2
  float fill_;   // in place of blocked scores, before the scale
};

template <class F>
void RunTasks(const CoreArguments& arguments, std::int64_t begin, std::int64_t end, float* scratch) {
  Scratches parts{};
  Carve<F>(arguments, scratch, parts);
  const std::int64_t blocks = QueryBlocks(arguments);
  std::int64_t packed = -1;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t index = task / blocks;
    const Head<F> head(arguments, parts, index / arguments.num_heads, index % arguments.num_heads);
    if (index != packed) {
      head.Pack();
      packed = index;
    }
    // First, last, second, last but one: neighbours have as much work as others with the causal rule too.
    const std::int64_t number = task % blocks;
    head.RunBlock((number % 2 == 0 ? number / 2 : blocks - 1 - number / 2) * kQueryBlock);
  }
}

/// Calls function(F) for the arguments' element, with the processor's own products of pairs where `pairs`.
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

std::int64_t Scratch(const CoreArguments& arguments, bool pairs) {
  return WithElement(arguments.element, pairs, [&](auto element) HWY_ATTR {
    Scratches parts{};
    return Carve<decltype(element)>(arguments, nullptr, parts);
  });
}

void Run(const CoreArguments& arguments, bool pairs, std::int64_t begin, std::int64_t end, float* scratch) {
  WithElement(arguments.element, pairs,
              [&](auto element) HWY_ATTR { RunTasks<decltype(element)>(arguments, begin, end, scratch); });
}

/// Whether kernels for the processor's own products of bfloat16 are among these.
bool HasPairs() {
  return MHA_FUSED_HAVE_PAIRS != 0;
}

std::int64_t Tasks(const CoreArguments& arguments) {
  return arguments.batch * arguments.num_heads * QueryBlocks(arguments);
}

const char* Name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
