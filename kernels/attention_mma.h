// Attention on tensor cores: bf16 operands, head widths 64 and 128.
#pragma once

#include "device.h"

#include "attention.h"

// Whether a call can be served: operands are bf16, rows lie at multiples of 16 bytes, and K is 64
// or 128.
bool pk_attention_mma_fits(const pk_attention_job *job);

// Bytes for the gradients: dO in bf16, and dO . O of every row.
int64_t pk_attention_mma_workspace(const pk_attention_job *job);

cudaError_t pk_launch_attention_mma(const pk_attention_job *job, cudaStream_t stream);
cudaError_t pk_launch_attention_mma_grad(const pk_attention_job *job, cudaStream_t stream);
