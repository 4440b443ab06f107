// One head's attention, and runs of them. Compiled once for each instruction set.
#if defined(MHA_FUSED_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_HEAD_INL_H_
#undef MHA_FUSED_HEAD_INL_H_
#else
#define MHA_FUSED_HEAD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fused/blocking-inl.h"
#include "fused/core.h"
#include "fused/elements-inl.h"
#include "fused/kernels-inl.h"
#include "fused/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One head's work on a thread.
template <class F>
class Head {
 public:
  using Element = typename F::Element;

  Head(const CoreArguments& a, const Scratches& scratch, std::int64_t batch, std::int64_t head)
      : a_(a),
        s_(scratch),
        keys_(a.items == nullptr ? ItemKeys{batch, a.key_len, a.causal_shift} : a.items[batch]),
        words_(Words<F>(a.d_k)),
        query_stride_(QueryStride<F>(a.d_k)),
        columns_(RoundUp(a.d_k, Lanes())),
        query_(At(a.query, a.query_strides, batch, head)),
        key_(At(a.key, a.key_strides, keys_.place, head)),
        value_(At(a.value, a.value_strides, keys_.place, head)),
        output_(const_cast<Element*>(At(a.output, a.output_strides, batch, head))),
        mask_(a.mask.data == nullptr ? nullptr : a.mask.data + batch * a.mask.batch + head * a.mask.head),
        scale_(static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(a.d_k)))),
        fill_(static_cast<float>((a.element == fused::Element::bfloat16 ? -998244352.0 : -1e9) *
                                 std::sqrt(static_cast<double>(a.d_k)))) {}

  void Pack() const {
    PackKeys<F>(key_, a_.key_strides.row, keys_.key_len, a_.d_k, s_.rows, s_.keys);
    PackValues<F>(value_, a_.value_strides.row, keys_.key_len, a_.d_k, s_.values);
  }

  /// A block of query rows against all keys.
  void RunBlock(std::int64_t first_row) const {
    const std::int64_t rows = std::min(kQueryBlock, a_.query_len - first_row);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const row = s_.query + r * query_stride_;
      F::ToWords(query_ + (first_row + r) * a_.query_strides.row, a_.d_k, row);
      std::fill(row + words_, row + query_stride_, 0.0f);
    }
    // Past the last key that any row keeps, there is nothing to add.
    const std::int64_t end =
        a_.causal ? std::clamp<std::int64_t>(first_row + rows + keys_.causal_shift, 0, keys_.key_len)
                  : keys_.key_len;
    RunKeys(first_row, 0, rows, end);
    for (std::int64_t r = 0; r < rows && end < keys_.key_len; ++r) {
      if (s_.maximum[r] <= fill_) {  // it found blocked keys only: then those that were skipped count too
        RunKeys(first_row, r, r + 1, keys_.key_len);
      }
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

  /// Rows [begin, until) of the block against the keys before `end`.
  void RunKeys(std::int64_t first_row, std::int64_t begin, std::int64_t until, std::int64_t end) const {
    const std::int64_t rows = until - begin;
    std::fill(s_.maximum + begin, s_.maximum + until, -kInfinity);
    std::fill(s_.sum + begin, s_.sum + until, 0.0f);
    const std::int64_t most = InPlace(a_) ? kInPlaceRows : kStripRows;
    for (std::int64_t first_key = 0; first_key < end; first_key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, end - first_key);
      ForStrips(rows, most, [&](std::int64_t first, auto count) HWY_ATTR {
        constexpr int kRows = decltype(count)::value;
        const std::int64_t row = begin + first;
        // Skipped where every row blocks all of these keys; not when all keys are wanted.
        if (end == keys_.key_len || first_key < first_row + row + kRows + keys_.causal_shift) {
          Strip<kRows>({first_row + row, row, first_key, keys});
        }
      });
    }
  }

  /// Where a strip's rows and a block of keys are.
  struct Place {
    std::int64_t query;  // the first row's number
    std::int64_t row;    // the same within the block of queries
    std::int64_t key;
    std::int64_t keys;
  };

  template <int kRows>
  HWY_NOINLINE void Strip(const Place& at) const {
    const std::int64_t panel = Panel();
    const bool in_place = InPlace(a_);
    if (in_place) {
      ScoreRows<F, kRows>(s_.query + at.row * query_stride_, query_stride_,
                          key_ + at.key * a_.key_strides.row, a_.key_strides.row, at.keys, a_.d_k, s_.scores);
    } else {
      ScorePanels<kRows>(at);
    }
    HWY_ALIGN float factors[16] = {};  // a whole vector at least
    Softmax<kRows>(at, factors);
    for (std::int64_t column = 0; column < columns_; column += panel) {
      const std::int64_t of_panel = std::min(panel, columns_ - column);
      WithVectors(of_panel / Lanes(), [&](auto count) HWY_ATTR {
        constexpr int kVectors = decltype(count)::value;
        if (in_place) {
          WeightColumns<kRows, kVectors>(
              at, column, factors,
              ValueRows<F, kVectors>(value_ + at.key * a_.value_strides.row + column, a_.value_strides.row,
                                     at.keys, std::min(of_panel, a_.d_k - column)));
        } else {
          const float* const values =
              s_.values + Words<F>(keys_.key_len) * column + at.key / F::kPerWord * of_panel;
          WeightColumns<kRows, kVectors>(at, column, factors, PackedValues<F, kVectors>(values));
        }
      });
    }
  }

  template <int kRows>
  HWY_INLINE void ScorePanels(const Place& at) const {
    const std::int64_t width = RoundUp(words_, 4);
    for (std::int64_t key = 0; key < at.keys; key += Panel()) {
      const std::int64_t vectors = (std::min(Panel(), at.keys - key) + Lanes() - 1) / Lanes();
      WithVectors(vectors, [&](auto count) HWY_ATTR {
        ScorePanel<F, kRows, decltype(count)::value>(s_.query + at.row * query_stride_, query_stride_,
                                                     s_.keys + (at.key + key) * width, words_,
                                                     s_.scores + key);
      });
    }
  }

  /// The strip's weights times the values of kVectors columns.
  template <int kRows, int kVectors, class Values>
  HWY_INLINE void WeightColumns(const Place& at, std::int64_t column, const float* factors,
                                const Values& values) const {
    const std::int64_t words = Words<F>(at.keys);
    float* const output = s_.output + at.row * columns_ + column;
    if (at.key == 0) {
      WeightValues<F, kRows, kVectors, true>(s_.scores, values, words, factors, output, columns_);
    } else {
      WeightValues<F, kRows, kVectors, false>(s_.scores, values, words, factors, output, columns_);
    }
  }

  /// Turns the strip's scores into weights relative to each row's running maximum; `factors` are what the rows' sums so
  /// far are to be multiplied by.
  template <int kRows>
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
    if (mask_ != nullptr || a_.causal) {
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
      const float maximum = std::max(before, hn::GetLane(hn::MaxOfLanes(d, highest[r])));
      // Where all scores are -inf so far, nothing is added; -inf - -inf would be NaN.
      const float reference = maximum == -kInfinity ? 0.0f : maximum;
      s_.maximum[at.row + r] = maximum;
      factors[r] = (before - reference) * scale_;
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
          // First the difference: the highest score gives exactly 1, however large it is.
          weights[i] = Exp2<F::kDegree>(d, hn::Mul(hn::Sub(raw, references[r]), scale));
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
      const std::int64_t kept = std::clamp<std::int64_t>(query + keys_.causal_shift + 1 - first_key, 0, keys);
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

  const CoreArguments& a_;
  const Scratches& s_;
  ItemKeys keys_;
  std::int64_t words_;
  std::int64_t query_stride_;
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
    if (index != packed && !InPlace(arguments)) {
      head.Pack();
      packed = index;
    }
    // First, last, second, last but one: neighbours have as much work as others with the causal rule too.
    const std::int64_t number = task % blocks;
    head.RunBlock((number % 2 == 0 ? number / 2 : blocks - 1 - number / 2) * kQueryBlock);
  }
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
