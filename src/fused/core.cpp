#include "fused/core.h"

#include <string>

#include "fused/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fused/core.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set
#include <hwy/highway.h>

#include "fused/head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mha::fused::HWY_NAMESPACE {
namespace {

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

/// Whether these are kernels for the processor's own products of bfloat16 too.
bool HasPairs() {
  return MHA_FUSED_HAVE_PAIRS != 0;
}

std::int64_t Tasks(const CoreArguments& arguments) {
  return arguments.batch * arguments.num_heads * QueryBlocks(arguments);
}

const char* Name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace
}  // namespace mha::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mha::fused {

HWY_EXPORT(HasPairs);
HWY_EXPORT(Name);
HWY_EXPORT(Run);
HWY_EXPORT(Scratch);
HWY_EXPORT(Tasks);

bool use_pairs() {
#if HWY_ARCH_X86
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0;
  return supported && HWY_DYNAMIC_DISPATCH(HasPairs)();
#else
  return false;
#endif
}

std::int64_t core_tasks(const CoreArguments& arguments) {
  return HWY_DYNAMIC_DISPATCH(Tasks)(arguments);
}

std::size_t core_scratch(const CoreArguments& arguments) {
  return static_cast<std::size_t>(HWY_DYNAMIC_DISPATCH(Scratch)(arguments, use_pairs())) * sizeof(float);
}

void run_core(const CoreArguments& arguments, std::int64_t begin, std::int64_t end, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Run)(arguments, use_pairs(), begin, end, static_cast<float*>(scratch));
}

std::string core_target(Element element) {
  std::string name = HWY_DYNAMIC_DISPATCH(Name)();
  if (element == Element::bfloat16) {
    name += use_pairs() ? " with products of bfloat16" : ", bfloat16 widened to float32";
  }
  return name;
}

}  // namespace mha::fused
#endif
