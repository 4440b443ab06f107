// Which instruction sets the kernels are compiled for. Before <hwy/foreach_target.h>.
#pragma once

// Left out: what gives these kernels nothing over the next older set, and vectors of unknown size.
#define HWY_DISABLED_TARGETS \
  (HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

namespace mha::fused {

/// Whether the processor multiplies pairs of bfloat16, and the kernels in use can have it do so.
bool use_pairs();

}  // namespace mha::fused
