#include "fused/core.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fused/core.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set
#include <hwy/highway.h>

#include "fused/core-inl.h"

#if HWY_ONCE
namespace mha::fused {

HWY_EXPORT(Tasks);
HWY_EXPORT(Scratch);
HWY_EXPORT(Run);

std::int64_t core_tasks(const CoreArguments& arguments) {
  return HWY_DYNAMIC_DISPATCH(Tasks)(arguments);
}

std::size_t core_scratch(const CoreArguments& arguments) {
  return HWY_DYNAMIC_DISPATCH(Scratch)(arguments);
}

void run_core(const CoreArguments& arguments, std::int64_t begin, std::int64_t end, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Run)(arguments, begin, end, scratch);
}

const char* core_target() {
  const std::int64_t supported = hwy::SupportedTargets();
  return hwy::TargetName(supported & -supported);
}

}  // namespace mha::fused
#endif
