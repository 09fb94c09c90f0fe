// A few threads of the system that run the blocks of a grid.
#pragma once

#include <cstdint>

namespace emu {

// Runs piece(data, 0 .. pieces - 1), each once; returns when all are done. weight tells how much
// work a piece is, about: little work stays on the calling thread.
void pool_run(int64_t pieces, int64_t weight, void (*piece)(const void *data, int64_t index),
              const void *data);

} // namespace emu
