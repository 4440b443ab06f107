// How the work is cut, and where its parts lie in scratch memory. Compiled once for each instruction set.
#if defined(MHA_FUSED_BLOCKING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_BLOCKING_INL_H_
#undef MHA_FUSED_BLOCKING_INL_H_
#else
#define MHA_FUSED_BLOCKING_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "fused/core.h"
#include "fused/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {

// Sizes of the blocking. A strip of query rows keeps its scores in the first-level cache, a block of keys and
// values stays in the second while a block of queries passes.
constexpr std::int64_t kStripRows = 6;
constexpr std::int64_t kQueryBlock = 64;
constexpr std::int64_t kKeyBlock = 512;
// Words of a product that are added up before they are added to what is there: long sums would drift.
constexpr std::int64_t kProductWords = 128;
#if HWY_ARCH_ARM || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
constexpr int kPanelVectors = 4;          // 32 registers
constexpr std::int64_t kInPlaceRows = 6;  // of a strip, where keys are not packed
#else
constexpr int kPanelVectors = 2;  // 16 registers
constexpr std::int64_t kInPlaceRows = 2;
#endif

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

/// Whether keys and values are read where they lie.
HWY_INLINE bool InPlace(const CoreArguments& a) {
  return a.query_len <= few_query_rows;
}

/// Words from one row of queries to the next: whole vectors.
template <class F>
HWY_INLINE std::int64_t QueryStride(std::int64_t d_k) {
  return RoundUp(Words<F>(d_k), Lanes());
}

/// Where each part of a thread's scratch memory begins. All are 32-bit words.
struct Scratches {
  // Where keys and values are packed:
  float* keys;    // panels of [words of d_k, rounded up to 4][Panel()]
  float* values;  // panels of [words of key_len][columns of the panel]
  float* rows;    // [Panel()][words of d_k, rounded up to 4]
  // Always:
  float* query;    // [kQueryBlock][QueryStride()]
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
  if (!InPlace(a)) {
    parts.keys = take(RoundUp(a.key_len, Panel()) * row);
    parts.values = take(Words<F>(a.key_len) * columns);
    parts.rows = take(Panel() * row);
  }
  const std::int64_t rows = std::min(kQueryBlock, a.query_len);
  parts.query = take(rows * QueryStride<F>(a.d_k));
  parts.scores = take(kStripRows * kKeyBlock);
  parts.output = take(rows * columns);
  parts.maximum = take(rows);
  parts.sum = take(rows);
  return at;
}

HWY_INLINE std::int64_t QueryBlocks(const CoreArguments& a) {
  return (a.query_len + kQueryBlock - 1) / kQueryBlock;
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
