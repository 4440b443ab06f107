/// All of mha.
#pragma once

#include "mha/attention.h"
#include "mha/cache.h"
#include "mha/error.h"
#include "mha/fused.h"
#include "mha/masks.h"
#include "mha/parity.h"
#include "mha/report.h"
#include "mha/state_dict.h"
#include "mha/weights.h"
