/* The operation matmul on a CUDA device. */
#include "cuda/products.h"

/* Rows of a matrix of rank 2 are apart by the stride of dimension 0, those of a batch lie dense. */
static pk_operand operand_of(const pk_tensor *tensor) {
  bool batched = tensor->rank == 3;
  int64_t width = tensor->shape[tensor->rank - 1];
  /* A single row may have any stride. */
  bool apart = !batched && tensor->shape[0] > 1;
  return (pk_operand){.at = pk_tensor_data(tensor),
                      .ld = apart ? tensor->stride : width,
                      .stride = batched ? tensor->stride : 0};
}

static pk_product product_of(const pk_call *call) {
  const pk_tensor *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
  int row = a->rank - 2, column = a->rank - 1;
  pk_product product = {.a = operand_of(a),
                        .b = operand_of(b),
                        .c = operand_of(c),
                        .m = c->shape[row],
                        .p = c->shape[column],
                        .batch = a->rank == 3 ? a->shape[0] : 1,
                        .dtype = a->dtype,
                        .c_dtype = c->dtype,
                        .transpose_a = call->attributes.integers[0] != 0,
                        .transpose_b = call->attributes.integers[1] != 0,
                        .accumulate = call->attributes.accumulate & 1};
  product.k = a->shape[product.transpose_a ? row : column];
  return product;
}

int64_t pk_cuda_workspace_matmul(const pk_call *call) {
  const pk_tensor *c = call->outputs[0];
  pk_product extents = {.m = c->shape[c->rank - 2],
                        .p = c->shape[c->rank - 1],
                        .batch = c->rank == 3 ? c->shape[0] : 1};
  return pk_cuda_product_workspace(pk_cuda_of(call), &extents);
}

pk_status pk_cuda_matmul(const pk_call *call) {
  pk_product product = product_of(call);
  return pk_cuda_product(call, &product, call->workspace);
}
