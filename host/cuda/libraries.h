/* Libraries of CUDA that are opened when they are first wanted, so that the device works without
 * them as far as it can. */
#ifndef PK_CUDA_LIBRARIES_H
#define PK_CUDA_LIBRARIES_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pk_cuda_library { PK_CUBLASLT, PK_CUDNN, PK_CUPTI, PK_CUDA_LIBRARIES } pk_cuda_library;

/* The address of a function in a library, which is opened at the first call. NULL if there is no
 * such library or function; pk_error_message says which. The emulation has functions of its own. */
void *pk_cuda_symbol(pk_cuda_library library, const char *name);

/* Fails with PK_UNSUPPORTED as a library is not there (errors.c). */
void pk_cuda_no_library(const char *file, const char *why);

#ifdef __cplusplus
}
#endif
#endif
