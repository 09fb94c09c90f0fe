// The emulated cuDNN.
#pragma once

namespace emu {

// The address of one of its functions; nullptr where PACKLUA_EMU_CUDNN is not 1.
void *cudnn_symbol(const char *name);

} // namespace emu
