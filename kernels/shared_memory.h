// How much shared memory kernels may have without asking. CUDA's bound is on what a kernel declares
// and what its launch adds together, and pk_launch sees the latter alone: it asks early enough to
// leave room for the former.
#pragma once

#include <stddef.h>

static constexpr size_t PK_SHARED_BOUND = 48
                                          << 10; // declared and dynamic, unless more is asked for
static constexpr size_t PK_SHARED_UNASKED = 40 << 10; // dynamic, for which pk_launch does not ask
