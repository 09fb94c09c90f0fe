// Moving operations that are more than a copy: the causal mask, and transposing by tiles.
#include "device.h"

#include "move.h"
#include "pack.h"

static constexpr int THREADS = 256;

template <class T>
static __global__ void __launch_bounds__(THREADS)
    causal_mask(pk_rows y, pk_rows x, int64_t count, int64_t inner, int64_t length, T fill) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) {
    int64_t worker = i / inner, within = i % inner;
    bool masked = within % length > within / length % length;
    pk_row<T>(y, worker)[within] = masked ? fill : pk_row<T>(x, worker)[within];
  }
}

extern "C" cudaError_t pk_launch_causal_mask(int dtype, pk_rows y, pk_rows x, int64_t count,
                                             int64_t inner, int64_t length, double fill,
                                             cudaStream_t stream) {
  dim3 grid(pk_grid_for(count, THREADS)), block(THREADS);
  if (dtype == PK_F64)
    return pk_launch(causal_mask<double>, grid, block, 0, stream, y, x, count, inner, length, fill);
  return pk_launch(causal_mask<float>, grid, block, 0, stream, y, x, count, inner, length,
                   static_cast<float>(fill));
}

// --- transposing ---

static constexpr int TILE = 32, TILE_ROWS = THREADS / TILE;
// Narrower matrices leave most of a tile empty.
static constexpr int64_t LEAST_TURNED = 8;

// Matrices [rows, columns] as x has them, x[r + c * x_step], and as y does, y[r * y_step + c];
// outer says where each of them is in y and x.
struct turning {
  int64_t rows, columns, x_step, y_step, tiles_down, tiles_across;
  pk_strided outer;
};

// Both sides are read and written by neighbouring threads at neighbouring addresses: a tile is
// turned in shared memory, whose rows are an element longer, so that a column lies in all banks.
template <class T>
static __global__ void __launch_bounds__(THREADS) turn(T *y, const T *x, turning job) {
  PK_SHARED(T, tile, [TILE][TILE + 1]);
  int64_t tiles = job.outer.count * job.tiles_down * job.tiles_across;
  int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    int64_t column = t % job.tiles_across * TILE, down = t / job.tiles_across;
    int64_t row = down % job.tiles_down * TILE, at[2];
    pk_strided_offsets(job.outer, down / job.tiles_down, at);
    for (int i = first; i < TILE && column + i < job.columns; i += TILE_ROWS)
      if (row + lane < job.rows) tile[i][lane] = x[at[1] + row + lane + (column + i) * job.x_step];
    __syncthreads();
    for (int i = first; i < TILE && row + i < job.rows; i += TILE_ROWS)
      if (column + lane < job.columns)
        y[at[0] + (row + i) * job.y_step + column + lane] = tile[lane][i];
    __syncthreads();
  }
}

// The dimension of the walk along which neighbours in x follow each other.
static int dense_in_x(const pk_strided *walk) {
  int d = walk->rank - 1;
  while (d >= 0 && walk->strides[1][d] != 1) d--;
  return d;
}

extern "C" bool pk_turns(const pk_strided *walk) {
  int last = walk->rank - 1, other = dense_in_x(walk);
  return other >= 0 && other != last && walk->strides[0][last] == 1 &&
         walk->extents[last] >= LEAST_TURNED && walk->extents[other] >= LEAST_TURNED;
}

static turning turning_of(const pk_strided *walk) {
  int last = walk->rank - 1, other = dense_in_x(walk);
  turning job = {};
  job.rows = walk->extents[other];
  job.columns = walk->extents[last];
  job.x_step = walk->strides[1][last];
  job.y_step = walk->strides[0][other];
  job.tiles_down = (job.rows + TILE - 1) / TILE;
  job.tiles_across = (job.columns + TILE - 1) / TILE;
  job.outer.count = walk->count / (job.rows * job.columns);
  for (int d = 0; d < last; d++) {
    if (d == other) continue;
    int place = job.outer.rank++;
    job.outer.extents[place] = walk->extents[d];
    for (int o = 0; o < 2; o++) job.outer.strides[o][place] = walk->strides[o][d];
  }
  return job;
}

template <class T>
static cudaError_t run_turn(void *y, const void *x, const pk_strided *walk, cudaStream_t stream) {
  turning job = turning_of(walk);
  int64_t tiles = job.outer.count * job.tiles_down * job.tiles_across;
  return pk_launch(turn<T>, dim3(pk_grid_for(tiles, 1)), dim3(THREADS), 0, stream,
                   static_cast<T *>(y), static_cast<const T *>(x), job);
}

extern "C" cudaError_t pk_launch_turn(int64_t element_bytes, void *y, const void *x,
                                      const pk_strided *walk, cudaStream_t stream) {
  if (element_bytes == 8) return run_turn<uint64_t>(y, x, walk, stream);
  if (element_bytes == 4) return run_turn<uint32_t>(y, x, walk, stream);
  return run_turn<uint16_t>(y, x, walk, stream);
}
