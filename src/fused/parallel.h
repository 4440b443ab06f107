// The kernels, shared out among LibTorch's threads.
#pragma once

#include "fused/core.h"
#include "fused/product.h"

namespace mha::fused {

void attend(const CoreArguments& arguments);

void multiply(const ProductArguments& arguments);

}  // namespace mha::fused
