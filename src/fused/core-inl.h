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
#include <cstring>
#include <limits>

#include "fused/core.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Sizes of the blocking. A strip of query rows keeps its scores in the first-level cache, a block of keys and
// values stays in the second while a block of queries passes.
constexpr std::int64_t kStripRows = 6;
constexpr std::int64_t kQueryBlock = 64;
constexpr std::int64_t kKeyBlock = 512;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
constexpr int kPanelVectors = 2;  // 16 registers
#else
constexpr int kPanelVectors = 4;  // 32 registers
#endif

HWY_INLINE std::int64_t Lanes() {
  return static_cast<std::int64_t>(hn::Lanes(D()));
}
HWY_INLINE std::int64_t Panel() {
  return kPanelVectors * Lanes();
}
HWY_INLINE std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Where each part of a thread's scratch memory begins.
struct Scratches {
  float* keys;     // panels of [d_k][Panel()]
  float* values;   // panels of [key_len][vectors of the panel]
  float* query;    // [kQueryBlock][d_k], scaled
  float* scores;   // [kStripRows][kKeyBlock]
  float* output;   // [kQueryBlock][d_k rounded up]
  float* maximum;  // [kQueryBlock]
  float* sum;      // [kQueryBlock]
};

HWY_INLINE std::size_t Carve(const CoreArguments& a, float* scratch, Scratches& parts) {
  std::size_t at = 0;
  const auto take = [&](std::int64_t floats) {
    float* const part = scratch == nullptr ? nullptr : scratch + at;
    at += static_cast<std::size_t>(RoundUp(floats, 16));
    return part;
  };
  const std::int64_t columns = RoundUp(a.d_k, Lanes());
  parts.keys = take(RoundUp(a.key_len, Panel()) * a.d_k);
  parts.values = take(a.key_len * columns);
  parts.query = take(kQueryBlock * a.d_k);
  parts.scores = take(kStripRows * kKeyBlock);
  parts.output = take(kQueryBlock * columns);
  parts.maximum = take(kQueryBlock);
  parts.sum = take(kQueryBlock);
  return at;
}

std::size_t Scratch(const CoreArguments& arguments) {
  Scratches parts{};
  return Carve(arguments, nullptr, parts);
}

HWY_INLINE std::int64_t QueryBlocks(const CoreArguments& a) {
  return (a.query_len + kQueryBlock - 1) / kQueryBlock;
}

std::int64_t Tasks(const CoreArguments& arguments) {
  return arguments.batch * arguments.num_heads * QueryBlocks(arguments);
}

/// 2^x for x <= 0, within 8e-8; 0 below -126; NaN for NaN.
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 + 127 leaves round(x) + 127 in the low bits: the exponent of 2^round(x).
  const V magic = hn::Set(d, 12583039.0f);
  const V shifted = hn::Add(x, magic);
  const V fraction = hn::Sub(x, hn::Sub(shifted, magic));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  // Minimax on [-0.5, 0.5].
  V y = hn::Set(d, 1.3276466e-3f);
  y = hn::MulAdd(y, fraction, hn::Set(d, 9.6755413e-3f));
  y = hn::MulAdd(y, fraction, hn::Set(d, 5.5507132e-2f));
  y = hn::MulAdd(y, fraction, hn::Set(d, 2.4022118e-1f));
  y = hn::MulAdd(y, fraction, hn::Set(d, 6.9314697e-1f));
  y = hn::MulAdd(y, fraction, hn::Set(d, 1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(y, power));
}

HWY_INLINE float Exp2(float x) {
  return hn::GetLane(Exp2(D(), hn::Set(D(), x)));
}

/// Transposes rows of keys into panels: for each feature the panel's keys side by side, 0 past the last key.
void PackKeys(const float* HWY_RESTRICT rows, std::int64_t stride, std::int64_t key_len, std::int64_t d_k,
              float* HWY_RESTRICT packed) {
  const std::int64_t panel = Panel();
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
#endif
  for (std::int64_t first = 0; first < key_len; first += panel, packed += panel * d_k) {
    const std::int64_t keys = std::min(panel, key_len - first);
    std::int64_t key = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; key + 4 <= keys; key += 4) {
      const float* HWY_RESTRICT row = rows + (first + key) * stride;
      std::int64_t feature = 0;
      for (; feature + 4 <= d_k; feature += 4) {
        const auto a = hn::LoadU(d4, row + feature);
        const auto b = hn::LoadU(d4, row + stride + feature);
        const auto c = hn::LoadU(d4, row + 2 * stride + feature);
        const auto e = hn::LoadU(d4, row + 3 * stride + feature);
        const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
        const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
        const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
        const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
        float* HWY_RESTRICT to = packed + feature * panel + key;
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, to);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, to + panel);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, to + 2 * panel);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, to + 3 * panel);
      }
      for (; feature < d_k; ++feature) {
        for (std::int64_t i = 0; i < 4; ++i) {
          packed[feature * panel + key + i] = row[i * stride + feature];
        }
      }
    }
#endif
    for (; key < panel; ++key) {
      for (std::int64_t feature = 0; feature < d_k; ++feature) {
        packed[feature * panel + key] = key < keys ? rows[(first + key) * stride + feature] : 0.0f;
      }
    }
  }
}

/// Copies rows of values into panels of columns, 0 past the last column.
void PackValues(const float* HWY_RESTRICT rows, std::int64_t stride, std::int64_t key_len, std::int64_t d_k,
                float* HWY_RESTRICT packed) {
  const std::int64_t all = RoundUp(d_k, Lanes());
  for (std::int64_t column = 0; column < all; column += Panel()) {
    const std::int64_t width = std::min(Panel(), all - column);
    const std::int64_t used = std::min(width, d_k - column);
    for (std::int64_t key = 0; key < key_len; ++key, packed += width) {
      std::memcpy(packed, rows + key * stride + column, static_cast<std::size_t>(used) * sizeof(float));
      std::fill(packed + used, packed + width, 0.0f);
    }
  }
}

/// scores[row][key] = query[row] . keys of a panel, kVectors of them.
template <int kRows, int kVectors>
HWY_INLINE void ScorePanel(const float* HWY_RESTRICT query, const float* HWY_RESTRICT panel, std::int64_t d_k,
                           float* HWY_RESTRICT scores) {
  const D d;
  const std::int64_t lanes = Lanes();
  const std::int64_t width = Panel();
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Zero(d);
    }
  }
  for (std::int64_t feature = 0; feature < d_k; ++feature, panel += width) {
    V keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      keys[v] = hn::Load(d, panel + v * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V q = hn::Set(d, query[r * d_k + feature]);
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(q, keys[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[r][v], d, scores + r * kKeyBlock + v * lanes);
    }
  }
}

/// output[row] = output[row] * factor[row] + weights[row] . values, kVectors columns of them.
template <int kRows, int kVectors>
HWY_INLINE void ValuePanel(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values,
                           std::int64_t keys, const float* HWY_RESTRICT factors, float* HWY_RESTRICT output,
                           std::int64_t columns) {
  const D d;
  const std::int64_t lanes = Lanes();
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, factors[r]);
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Mul(factor, hn::Load(d, output + r * columns + v * lanes));
    }
  }
  for (std::int64_t key = 0; key < keys; ++key, values += kVectors * lanes) {
    V value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      value[v] = hn::Load(d, values + v * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, weights[r * kKeyBlock + key]);
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(weight, value[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[r][v], d, output + r * columns + v * lanes);
    }
  }
}

/// Calls function.template operator()<kVectors>() for a number of vectors from 1 to kPanelVectors.
template <typename Function>
HWY_INLINE void WithVectors(std::int64_t vectors, const Function& function) {
  switch (vectors) {
    case 1:
      return function(std::integral_constant<int, 1>());
    case 2:
      return function(std::integral_constant<int, 2>());
    default:
      break;
  }
  if constexpr (kPanelVectors == 4) {
    return vectors == 3 ? function(std::integral_constant<int, 3>())
                        : function(std::integral_constant<int, 4>());
  }
}

/// One head's work on a thread.
class Head {
 public:
  Head(const CoreArguments& a, const Scratches& scratch, std::int64_t batch, std::int64_t head)
      : a_(a),
        s_(scratch),
        columns_(RoundUp(a.d_k, Lanes())),
        query_(a.query + batch * a.query_strides.batch + head * a.query_strides.head),
        output_(a.output + batch * a.output_strides.batch + head * a.output_strides.head),
        mask_(a.mask.data == nullptr ? nullptr : a.mask.data + batch * a.mask.batch + head * a.mask.head) {}

  void Pack(std::int64_t batch, std::int64_t head) const {
    PackKeys(a_.key + batch * a_.key_strides.batch + head * a_.key_strides.head, a_.key_strides.row,
             a_.key_len, a_.d_k, s_.keys);
    PackValues(a_.value + batch * a_.value_strides.batch + head * a_.value_strides.head, a_.value_strides.row,
               a_.key_len, a_.d_k, s_.values);
  }

  /// A block of query rows against all keys.
  void RunBlock(std::int64_t first_row) {
    const std::int64_t rows = std::min(kQueryBlock, a_.query_len - first_row);
    LoadQuery(first_row, rows);
    // Past the last key that any row keeps, there is nothing to add.
    const std::int64_t end =
        a_.causal ? std::clamp<std::int64_t>(first_row + rows + a_.causal_shift, 0, a_.key_len) : a_.key_len;
    RunKeys(first_row, rows, end);
    if (a_.causal && end < a_.key_len && AnyRowKeepsNone(rows)) {
      RunKeys(first_row, rows, a_.key_len);
    }
    StoreOutput(first_row, rows);
  }

 private:
  static constexpr float kFill = -1e9f * 1.44269504f;  // scores are in base 2

  void LoadQuery(std::int64_t first_row, std::int64_t rows) const {
    const auto scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(a_.d_k)));
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* HWY_RESTRICT from = query_ + (first_row + r) * a_.query_strides.row;
      float* HWY_RESTRICT to = s_.query + r * a_.d_k;
      for (std::int64_t feature = 0; feature < a_.d_k; ++feature) {
        to[feature] = from[feature] * scale;
      }
    }
  }

  void RunKeys(std::int64_t first_row, std::int64_t rows, std::int64_t end) {
    std::fill(s_.maximum, s_.maximum + rows, -std::numeric_limits<float>::infinity());
    std::fill(s_.sum, s_.sum + rows, 0.0f);
    std::fill(s_.output, s_.output + rows * columns_, 0.0f);
    const std::int64_t strips = (rows + kStripRows - 1) / kStripRows;
    for (std::int64_t first_key = 0; first_key < end; first_key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, end - first_key);
      std::int64_t row = 0;
      for (std::int64_t strip = 0; strip < strips; ++strip) {
        // As equal as can be: 50 rows are 5 strips of 6 and 4 of 5.
        const std::int64_t next = rows * (strip + 1) / strips;
        RunStrip(first_row, row, next - row, first_key, keys, end);
        row = next;
      }
    }
  }

  void RunStrip(std::int64_t first_row, std::int64_t row, std::int64_t rows, std::int64_t first_key,
                std::int64_t keys, std::int64_t end) {
    switch (rows) {
      case 1:
        return Strip<1>(first_row, row, first_key, keys, end);
      case 2:
        return Strip<2>(first_row, row, first_key, keys, end);
      case 3:
        return Strip<3>(first_row, row, first_key, keys, end);
      case 4:
        return Strip<4>(first_row, row, first_key, keys, end);
      case 5:
        return Strip<5>(first_row, row, first_key, keys, end);
      default:
        return Strip<6>(first_row, row, first_key, keys, end);
    }
  }

  template <int kRows>
  void Strip(std::int64_t first_row, std::int64_t row, std::int64_t first_key, std::int64_t keys,
             std::int64_t end) {
    if (a_.causal && end < a_.key_len && first_key > first_row + row + kRows - 1 + a_.causal_shift) {
      return;  // every row blocks all of these keys
    }
    const std::int64_t lanes = Lanes();
    const std::int64_t panel = Panel();
    const float* HWY_RESTRICT query = s_.query + row * a_.d_k;
    for (std::int64_t key = 0; key < keys; key += panel) {
      const std::int64_t vectors = (std::min(panel, keys - key) + lanes - 1) / lanes;
      WithVectors(vectors, [&](auto count) HWY_ATTR {
        ScorePanel<kRows, decltype(count)::value>(query, s_.keys + (first_key + key) * a_.d_k, a_.d_k,
                                                  s_.scores + key);
      });
    }
    float factors[kRows];
    for (int r = 0; r < kRows; ++r) {
      factors[r] = Softmax(first_row + row + r, row + r, first_key, keys, s_.scores + r * kKeyBlock);
    }
    float* HWY_RESTRICT output = s_.output + row * columns_;
    const float* HWY_RESTRICT values = s_.values;
    for (std::int64_t column = 0; column < columns_; column += panel) {
      const std::int64_t width = std::min(panel, columns_ - column);
      WithVectors(width / lanes, [&](auto count) HWY_ATTR {
        ValuePanel<kRows, decltype(count)::value>(s_.scores, values + first_key * width, keys, factors,
                                                  output + column, columns_);
      });
      values += a_.key_len * width;
    }
  }

  /// Turns a row's scores into weights relative to its running maximum; returns what the row's sums so far are
  /// to be multiplied by.
  float Softmax(std::int64_t query, std::int64_t row, std::int64_t first_key, std::int64_t keys,
                float* HWY_RESTRICT scores) {
    const D d;
    const std::int64_t lanes = Lanes();
    const float infinity = std::numeric_limits<float>::infinity();
    // Past the last key: -inf, whose weight is 0.
    for (std::int64_t key = keys; key < RoundUp(keys, lanes); ++key) {
      scores[key] = -infinity;
    }
    Mask(query, first_key, keys, scores);
    V highest = hn::Set(d, -infinity);
    for (std::int64_t key = 0; key < keys; key += lanes) {
      highest = hn::Max(highest, hn::Load(d, scores + key));
    }
    const float before = s_.maximum[row];
    const float maximum = std::max(before, hn::GetLane(hn::MaxOfLanes(d, highest)));
    // Where all scores are -inf so far, nothing is added; -inf - -inf would be NaN.
    const float reference = maximum == -infinity ? 0.0f : maximum;
    const V subtract = hn::Set(d, reference);
    V sums = hn::Zero(d);
    for (std::int64_t key = 0; key < keys; key += lanes) {
      const V weight = Exp2(d, hn::Sub(hn::Load(d, scores + key), subtract));
      sums = hn::Add(sums, weight);
      hn::Store(weight, d, scores + key);
    }
    const float factor = Exp2(before - reference);
    s_.maximum[row] = maximum;
    s_.sum[row] = s_.sum[row] * factor + hn::GetLane(hn::SumOfLanes(d, sums));
    return factor;
  }

  /// The lesson's masked_fill.
  void Mask(std::int64_t query, std::int64_t first_key, std::int64_t keys, float* HWY_RESTRICT scores) const {
    if (a_.causal) {
      const std::int64_t kept = std::clamp<std::int64_t>(query + a_.causal_shift + 1 - first_key, 0, keys);
      std::fill(scores + kept, scores + keys, kFill);
    }
    if (mask_ == nullptr) {
      return;
    }
    const std::uint8_t* HWY_RESTRICT keep = mask_ + query * a_.mask.query + first_key * a_.mask.key;
    if (a_.mask.key == 0) {
      if (*keep == 0) {
        std::fill(scores, scores + keys, kFill);
      }
      return;
    }
    const D d;
    const hn::Rebind<std::uint8_t, D> bytes;
    const hn::RebindToSigned<D> integers;
    const V fill = hn::Set(d, kFill);
    const std::int64_t lanes = Lanes();
    std::int64_t key = 0;
    for (; key + lanes <= keys; key += lanes) {
      const auto kept = hn::PromoteTo(integers, hn::LoadU(bytes, keep + key));
      const auto blocked = hn::RebindMask(d, hn::Eq(kept, hn::Zero(integers)));
      hn::Store(hn::IfThenElse(blocked, fill, hn::Load(d, scores + key)), d, scores + key);
    }
    for (; key < keys; ++key) {
      scores[key] = keep[key] == 0 ? kFill : scores[key];
    }
  }

  /// Whether a row found only blocked keys, or scores no higher: then also the keys that were skipped count.
  bool AnyRowKeepsNone(std::int64_t rows) const {
    return std::any_of(s_.maximum, s_.maximum + rows, [](float maximum) { return maximum <= kFill; });
  }

  void StoreOutput(std::int64_t first_row, std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* HWY_RESTRICT from = s_.output + r * columns_;
      float* HWY_RESTRICT to = output_ + (first_row + r) * a_.output_strides.row;
      const float factor = 1.0f / s_.sum[r];
      for (std::int64_t column = 0; column < a_.d_k; ++column) {
        to[column] = from[column] * factor;
      }
    }
  }

  const CoreArguments& a_;
  const Scratches& s_;
  std::int64_t columns_;
  const float* query_;
  float* output_;
  const std::uint8_t* mask_;
};

void Run(const CoreArguments& arguments, std::int64_t begin, std::int64_t end, float* scratch) {
  Scratches parts{};
  Carve(arguments, scratch, parts);
  const std::int64_t blocks = QueryBlocks(arguments);
  std::int64_t packed = -1;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t index = task / blocks;
    const std::int64_t batch = index / arguments.num_heads;
    const std::int64_t number = index % arguments.num_heads;
    Head head(arguments, parts, batch, number);
    if (index != packed) {
      head.Pack(batch, number);
      packed = index;
    }
    head.RunBlock(task % blocks * kQueryBlock);
  }
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
