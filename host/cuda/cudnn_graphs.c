/* Causal attention and its gradients as graphs of cuDNN's operations, in the form that its
 * attention engines recognise. */
#include "cuda/cudnn.h"

#ifdef PK_HAVE_CUDNN

static const cudnnDataType_t BF16 = CUDNN_DATA_BFLOAT16, F32 = CUDNN_DATA_FLOAT;

/* [batch, length, heads, width] as [batch, heads, length, width], or with the last two turned. */
static pk_dnn heads(pk_dnn_graph *graph, int64_t number, cudnnDataType_t type,
                    const pk_dnn_attention *s, bool turned) {
  int64_t row = s->heads * s->width;
  int64_t dimensions[4] = {s->batch, s->heads, turned ? s->width : s->length,
                           turned ? s->length : s->width};
  int64_t strides[4] = {s->length * row, s->width, turned ? 1 : row, turned ? row : 1};
  return pk_dnn_tensor(graph, number, type, dimensions, strides);
}

/* A value inside of the graph for each two positions. */
static pk_dnn pairs(pk_dnn_graph *graph, cudnnDataType_t type, const pk_dnn_attention *s,
                    bool turned) {
  int64_t square = s->length * s->length;
  int64_t dimensions[4] = {s->batch, s->heads, s->length, s->length};
  int64_t strides[4] = {s->heads * square, square, turned ? 1 : s->length, turned ? s->length : 1};
  return pk_dnn_tensor(graph, 0, type, dimensions, strides);
}

/* A number for each position. */
static pk_dnn rows(pk_dnn_graph *graph, int64_t number, const pk_dnn_attention *s) {
  int64_t dimensions[4] = {s->batch, s->heads, s->length, 1};
  int64_t strides[4] = {s->heads * s->length, s->length, 1, 1};
  return pk_dnn_tensor(graph, number, F32, dimensions, strides);
}

static pk_dnn combine(pk_dnn_graph *graph, cudnnPointwiseMode_t mode, pk_dnn x, pk_dnn b,
                      pk_dnn y) {
  pk_dnn_pointwise(graph, mode, F32, -1, x, b, NULL, y);
  return y;
}

/* q k' scale */
static pk_dnn scaled_scores(pk_dnn_graph *graph, const pk_dnn_attention *s, pk_dnn q,
                            pk_dnn scale) {
  pk_dnn k = heads(graph, PK_DNN_K, BF16, s, true), scores = pairs(graph, F32, s, false);
  pk_dnn_matmul(graph, q, k, scores);
  return combine(graph, CUDNN_POINTWISE_MUL, scores, scale, pairs(graph, F32, s, false));
}

/* Minus infinity where the column is past the row. */
static pk_dnn masked(pk_dnn_graph *graph, const pk_dnn_attention *s, pk_dnn scores) {
  pk_dnn row = pairs(graph, CUDNN_DATA_INT32, s, false);
  pk_dnn column = pairs(graph, CUDNN_DATA_INT32, s, false);
  pk_dnn seen = pairs(graph, CUDNN_DATA_BOOLEAN, s, false), y = pairs(graph, F32, s, false);
  pk_dnn_pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, F32, 2, scores, NULL, NULL, row);
  pk_dnn_pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, F32, 3, scores, NULL, NULL, column);
  pk_dnn_pointwise(graph, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, seen);
  pk_dnn_pointwise(graph, CUDNN_POINTWISE_BINARY_SELECT, F32, -1, scores,
                   pk_dnn_scalar(graph, PK_DNN_MASKED), seen, y);
  return y;
}

void pk_dnn_attention_forward(pk_dnn_graph *graph, const pk_dnn_attention *s) {
  pk_dnn q = heads(graph, PK_DNN_Q, BF16, s, false);
  pk_dnn scores = masked(graph, s, scaled_scores(graph, s, q, pk_dnn_scalar(graph, PK_DNN_SCALE)));
  pk_dnn top = rows(graph, 0, s), sum = rows(graph, 0, s);
  pk_dnn_reduce(graph, CUDNN_REDUCE_TENSOR_MAX, scores, top);
  pk_dnn less = combine(graph, CUDNN_POINTWISE_SUB, scores, top, pairs(graph, F32, s, false));
  pk_dnn powers = combine(graph, CUDNN_POINTWISE_EXP, less, NULL, pairs(graph, F32, s, false));
  pk_dnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  pk_dnn logarithm = combine(graph, CUDNN_POINTWISE_LOG, sum, NULL, rows(graph, 0, s));
  combine(graph, CUDNN_POINTWISE_ADD, top, logarithm, rows(graph, PK_DNN_LSE, s));
  pk_dnn weights = combine(graph, CUDNN_POINTWISE_DIV, powers, sum, pairs(graph, BF16, s, false));
  pk_dnn_matmul(graph, weights, heads(graph, PK_DNN_V, BF16, s, false),
                heads(graph, PK_DNN_O, BF16, s, false));
}

/* The sums over width of g o, for each position. */
static pk_dnn row_sums(pk_dnn_graph *graph, const pk_dnn_attention *s, pk_dnn g) {
  pk_dnn o = heads(graph, PK_DNN_O, BF16, s, false), sums = rows(graph, 0, s);
  pk_dnn both = combine(graph, CUDNN_POINTWISE_MUL, g, o, heads(graph, 0, F32, s, false));
  pk_dnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, both, sums);
  return combine(graph, CUDNN_POINTWISE_MUL, sums, pk_dnn_scalar(graph, PK_DNN_ONE),
                 rows(graph, PK_DNN_ROW_SUMS, s));
}

/* y = x' z in bf16 of f32 x. */
static void turned_product(pk_dnn_graph *graph, const pk_dnn_attention *s, pk_dnn x, pk_dnn z,
                           pk_dnn y) {
  pk_dnn turned = pairs(graph, BF16, s, true);
  pk_dnn_reshape(graph, x, turned);
  pk_dnn_matmul(graph, turned, z, y);
}

void pk_dnn_attention_backward(pk_dnn_graph *graph, const pk_dnn_attention *s, bool deterministic) {
  pk_dnn q = heads(graph, PK_DNN_Q, BF16, s, false), g = heads(graph, PK_DNN_G, BF16, s, false);
  pk_dnn scale = pk_dnn_scalar(graph, PK_DNN_SCALE), sums = row_sums(graph, s, g);
  /* the weights again */
  pk_dnn scores = combine(graph, CUDNN_POINTWISE_SUB, scaled_scores(graph, s, q, scale),
                          rows(graph, PK_DNN_LSE, s), pairs(graph, F32, s, false));
  pk_dnn weights = combine(graph, CUDNN_POINTWISE_EXP, masked(graph, s, scores), NULL,
                           pairs(graph, F32, s, false));
  turned_product(graph, s, weights, g, heads(graph, PK_DNN_V_GRAD, BF16, s, false));
  /* the scores' gradient: (g v' - sums) weights scale */
  pk_dnn slopes = pairs(graph, F32, s, false);
  pk_dnn_matmul(graph, g, heads(graph, PK_DNN_V, BF16, s, true), slopes);
  slopes = combine(graph, CUDNN_POINTWISE_SUB, slopes, sums, pairs(graph, F32, s, false));
  slopes = combine(graph, CUDNN_POINTWISE_MUL, slopes, weights, pairs(graph, F32, s, false));
  slopes = combine(graph, CUDNN_POINTWISE_MUL, slopes, scale, pairs(graph, F32, s, false));
  turned_product(graph, s, slopes, q, heads(graph, PK_DNN_K_GRAD, BF16, s, false));
  pk_dnn k = heads(graph, 0, F32, s, false);
  pk_dnn_reshape(graph, heads(graph, PK_DNN_K, BF16, s, true), k);
  pk_dnn q_grad = heads(graph, PK_DNN_Q_GRAD, BF16, s, false);
  if (deterministic) {
    pk_dnn_matmul(graph, slopes, k, q_grad);
    return;
  }
  int64_t dimensions[4] = {s->batch, s->heads, s->length, s->width};
  int64_t strides[4] = {s->heads * s->length * s->width, s->length * s->width, s->width, 1};
  pk_dnn sums_of_q = pk_dnn_tensor(graph, PK_DNN_Q_SUMS, F32, dimensions, strides);
  pk_dnn_matmul(graph, slopes, k, sums_of_q);
  combine(graph, CUDNN_POINTWISE_IDENTITY, sums_of_q, NULL, q_grad);
}

int64_t pk_dnn_attention_workspace(const pk_dnn_attention *s, bool backward, bool deterministic,
                                   int sm) {
  enum { SOME = 1 << 20 };
  int64_t length = (s->length + 127) / 128 * 128, rows = s->batch * s->heads * length;
  if (backward && deterministic) return SOME + 2 * rows * length; /* the scores' gradients */
  return SOME + (backward && sm < 90 ? 4 * rows * s->width : 0);  /* sums of its own */
}

#endif
