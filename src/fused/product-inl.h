// Packed weights, and their products. Compiled once for each instruction set.
#if defined(MHA_FUSED_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHA_FUSED_PRODUCT_INL_H_
#undef MHA_FUSED_PRODUCT_INL_H_
#else
#define MHA_FUSED_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "fused/blocking-inl.h"
#include "fused/elements-inl.h"
#include "fused/kernels-inl.h"
#include "fused/pack-inl.h"
#include "fused/product.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {

/// Words of a panel: its rows side by side, for each word of the inputs, whose number is rounded up to 4.
template <class F>
HWY_INLINE std::int64_t PanelWords(std::int64_t inputs) {
  return RoundUp(Words<F>(inputs), 4) * Panel();
}

template <class F>
HWY_INLINE std::int64_t PackedWords(const WeightShape& shape) {
  return (shape.outputs + Panel() - 1) / Panel() * PanelWords<F>(shape.inputs);
}

template <class F>
void PackWeight(const WeightShape& shape, const typename F::Element* weight, float* packed) {
  std::vector<float> rows(static_cast<std::size_t>(PanelWords<F>(shape.inputs)));
  std::fill(packed, packed + PackedWords<F>(shape), 0.0f);
  PackKeys<F>(weight, shape.inputs, shape.outputs, shape.inputs, rows.data(), packed);
}

template <class F>
void UnpackWeight(const WeightShape& shape, const float* packed, typename F::Element* weight) {
  const std::int64_t words = Words<F>(shape.inputs);
  std::vector<float> row(static_cast<std::size_t>(words));
  for (std::int64_t output = 0; output < shape.outputs; ++output) {
    const float* const panel = packed + output / Panel() * PanelWords<F>(shape.inputs) + output % Panel();
    for (std::int64_t word = 0; word < words; ++word) {
      row[static_cast<std::size_t>(word)] = panel[word * Panel()];
    }
    F::FromWords(row.data(), shape.inputs, weight + output * shape.inputs);
  }
}

/// Some rows of x, against some panels.
template <class F>
class Product {
 public:
  using Element = typename F::Element;

  /// Words of scratch memory.
  static std::int64_t Scratch(const ProductArguments& a) {
    return a.rows * QueryStride<F>(a.shape.inputs) + kStripRows * kKeyBlock;
  }

  Product(const ProductArguments& a, float* scratch)
      : a_(a),
        words_(Words<F>(a.shape.inputs)),
        stride_(QueryStride<F>(a.shape.inputs)),
        sums_(scratch),
        x_(scratch + kStripRows * kKeyBlock) {
    for (std::int64_t row = 0; row < a.rows; ++row) {
      F::ToWords(static_cast<const Element*>(a.x) + row * a.shape.inputs, a.shape.inputs, x_ + row * stride_);
    }
  }

  void Run(std::int64_t panel) const {
    ForStrips(a_.rows, kStripRows,
              [&](std::int64_t first, auto count) HWY_ATTR { Strip<decltype(count)::value>(panel, first); });
  }

 private:
  template <int kRows>
  HWY_NOINLINE void Strip(std::int64_t panel, std::int64_t row) const {
    const std::int64_t begin = std::max(a_.first, panel * Panel());
    const std::int64_t end = std::min(a_.first + a_.count, (panel + 1) * Panel());
    const std::int64_t vectors = (end - panel * Panel() + Lanes() - 1) / Lanes();
    const float* const weights =
        static_cast<const float*>(a_.packed) + panel * PanelWords<F>(a_.shape.inputs);
    WithVectors(vectors, [&](auto count) HWY_ATTR {
      constexpr int kVectors = decltype(count)::value;
      ScorePanel<F, kRows, kVectors>(x_ + row * stride_, stride_, weights, words_, sums_);
    });
    for (int r = 0; r < kRows; ++r) {
      float* const sums = sums_ + r * kKeyBlock + (begin - panel * Panel());
      F::AddRow(sums, static_cast<const Element*>(a_.bias) + begin, end - begin,
                static_cast<Element*>(a_.y) + (row + r) * a_.count + (begin - a_.first));
    }
  }

  const ProductArguments& a_;
  std::int64_t words_;
  std::int64_t stride_;
  float* HWY_RESTRICT sums_;  // [kStripRows][kKeyBlock]
  float* HWY_RESTRICT x_;     // [rows][stride_]
};

template <class F>
void RunProduct(const ProductArguments& arguments, std::int64_t begin, std::int64_t end, float* scratch) {
  const Product<F> product(arguments, scratch);
  const std::int64_t first = arguments.first / Panel();
  for (std::int64_t task = begin; task < end; ++task) {
    product.Run(first + task);
  }
}

}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
