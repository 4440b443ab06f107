#include "fused/product.h"

#include "fused/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fused/product.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set
#include <hwy/highway.h>

#include "fused/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {
namespace {

std::int64_t Size(const WeightShape& shape, bool pairs) {
  return WithElement(shape.element, pairs,
                     [&](auto element) HWY_ATTR { return PackedWords<decltype(element)>(shape); });
}

void Pack(const WeightShape& shape, bool pairs, const void* weight, float* packed) {
  WithElement(shape.element, pairs, [&](auto element) HWY_ATTR {
    using F = decltype(element);
    PackWeight<F>(shape, static_cast<const typename F::Element*>(weight), packed);
  });
}

void Unpack(const WeightShape& shape, bool pairs, const float* packed, void* weight) {
  WithElement(shape.element, pairs, [&](auto element) HWY_ATTR {
    using F = decltype(element);
    UnpackWeight<F>(shape, packed, static_cast<typename F::Element*>(weight));
  });
}

std::int64_t ProductTasks(const ProductArguments& a) {
  return a.count == 0 ? 0 : (a.first + a.count - 1) / Panel() - a.first / Panel() + 1;
}

std::int64_t ProductScratch(const ProductArguments& arguments, bool pairs) {
  return WithElement(arguments.shape.element, pairs,
                     [&](auto element) HWY_ATTR { return Product<decltype(element)>::Scratch(arguments); });
}

void MultiplyTasks(const ProductArguments& arguments, bool pairs, std::int64_t begin, std::int64_t end,
                   float* scratch) {
  WithElement(arguments.shape.element, pairs,
              [&](auto element) HWY_ATTR { RunProduct<decltype(element)>(arguments, begin, end, scratch); });
}

}  // namespace
}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mha::fused {

HWY_EXPORT(MultiplyTasks);
HWY_EXPORT(Pack);
HWY_EXPORT(ProductScratch);
HWY_EXPORT(ProductTasks);
HWY_EXPORT(Size);
HWY_EXPORT(Unpack);

std::size_t packed_size(const WeightShape& shape) {
  return static_cast<std::size_t>(HWY_DYNAMIC_DISPATCH(Size)(shape, use_pairs())) * sizeof(float);
}

void pack_weight(const WeightShape& shape, const void* weight, void* packed) {
  HWY_DYNAMIC_DISPATCH(Pack)(shape, use_pairs(), weight, static_cast<float*>(packed));
}

void unpack_weight(const WeightShape& shape, const void* packed, void* weight) {
  HWY_DYNAMIC_DISPATCH(Unpack)(shape, use_pairs(), static_cast<const float*>(packed), weight);
}

std::int64_t product_tasks(const ProductArguments& arguments) {
  return HWY_DYNAMIC_DISPATCH(ProductTasks)(arguments);
}

std::size_t product_scratch(const ProductArguments& arguments) {
  return static_cast<std::size_t>(HWY_DYNAMIC_DISPATCH(ProductScratch)(arguments, use_pairs())) *
         sizeof(float);
}

void run_product(const ProductArguments& arguments, std::int64_t begin, std::int64_t end, void* scratch) {
  HWY_DYNAMIC_DISPATCH(MultiplyTasks)(arguments, use_pairs(), begin, end, static_cast<float*>(scratch));
}

}  // namespace mha::fused
#endif
