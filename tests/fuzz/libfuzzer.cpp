// libFuzzer's entry into the target MHA_FUZZ_TARGET.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const mha::fuzz::Target* const kTarget = mha::fuzz::find_target(MHA_FUZZ_TARGET);
  kTarget->run({data, size});
  return 0;
}
