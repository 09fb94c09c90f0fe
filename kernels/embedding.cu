// Looking rows and entries up by number, and the gradients that put them back.
//
// The gradient of a table adds the rows of g that have the same id. The positions are sorted by id,
// stably, so that each id's are a run of them in order. A run is added up by a warp for every 32
// columns, or by several in pieces if it is long. No order depends on timing.
#include <string.h>

#include "device.h"
#include "embedding.h"
#include "pack.h"

static constexpr int THREADS = 256, WARPS = THREADS / 32;

typedef pk_pack<uint64_t, 2> Bits16;

// All bits set: a NaN of every type.
template <class T> static __device__ __forceinline__ T all_ones() {
  T value;
  memset(&value, 0xff, sizeof value);
  return value;
}

// --- embedding: a warp per row ---

template <class Unit>
static __global__ void __launch_bounds__(THREADS) gather(pk_embedding_job job) {
  int64_t step = static_cast<int64_t>(gridDim.x) * WARPS, total = job.workers * job.count;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; index < total;
       index += step) {
    int64_t worker = index / job.count, position = index % job.count;
    int32_t id = pk_row<const int32_t>(job.ids, worker)[position];
    bool there = id >= 0 && id < job.vocabulary;
    const Unit *from = pk_row<const Unit>(job.table, worker) + (there ? id * job.width : 0);
    Unit *to = pk_row<Unit>(job.rows, worker) + position * job.width;
    for (int64_t c = threadIdx.x % 32; c < job.width; c += 32)
      to[c] = there ? from[c] : all_ones<Unit>();
  }
}

// The job with rows of units of `ratio` elements. False if they do not consist of such.
static bool widen(pk_embedding_job *job, int ratio) {
  if (job->width % ratio || !pk_rows_fit(job->table, job->element_bytes, ratio) ||
      !pk_rows_fit(job->rows, job->element_bytes, ratio))
    return false;
  job->width /= ratio;
  job->table.stride /= ratio;
  job->rows.stride /= ratio;
  return true;
}

extern "C" cudaError_t pk_launch_embedding(const pk_embedding_job *job, cudaStream_t stream) {
  pk_embedding_job wide = *job;
  auto kernel = widen(&wide, static_cast<int>(16 / job->element_bytes)) ? gather<Bits16>
                : job->element_bytes == 8                               ? gather<uint64_t>
                : job->element_bytes == 4                               ? gather<uint32_t>
                                                                        : gather<uint16_t>;
  return pk_launch(kernel, dim3(pk_grid_for(job->workers * job->count, WARPS)), dim3(THREADS), 0,
                   stream, wide);
}

// --- embedding_grad: sorting the positions by id, a digit of 8 bits at a time ---

static constexpr int DIGITS = THREADS;           // a thread for each
static constexpr int ROUNDS = 8;                 // of 32 positions that a warp has of a tile
static constexpr int TILE = WARPS * 32 * ROUNDS; // positions of a block

struct Keys {
  pk_rows ids;
  const int32_t *order; // [N, count] positions so far; NULL: as they are
  int64_t count, vocabulary;

  // The key of place i: its id, or the vocabulary for an id that is not in it.
  __device__ int32_t at(int64_t worker, int64_t i) const {
    int32_t id = pk_row<const int32_t>(ids, worker)[position(worker, i)];
    return id >= 0 && id < vocabulary ? id : static_cast<int32_t>(vocabulary);
  }
  __device__ int32_t position(int64_t worker, int64_t i) const {
    return order ? order[worker * count + i] : static_cast<int32_t>(i);
  }
};

// The place of this lane in a round of its warp.
static __device__ __forceinline__ int64_t place_of(int64_t tile, int round) {
  return tile * TILE + (threadIdx.x / 32 * ROUNDS + round) * 32 + threadIdx.x % 32;
}

// The lanes with this lane's digit, for lanes that have one.
static __device__ __forceinline__ unsigned lanes_like(bool valid, unsigned digit) {
  unsigned like = __ballot_sync(0xffffffffu, valid);
#pragma unroll
  for (int bit = 0; bit < 8; bit++) {
    unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
    like &= digit >> bit & 1 ? set : ~set;
  }
  return like;
}

// How often each digit is among the positions of each warp of a tile.
static __device__ void count_digits(const Keys &keys, int64_t worker, int64_t tile, int shift,
                                    int (&counts)[WARPS][DIGITS]) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int w = 0; w < WARPS; w++) counts[w][threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < ROUNDS; round++) {
    int64_t i = place_of(tile, round);
    bool valid = i < keys.count;
    unsigned digit = valid ? static_cast<unsigned>(keys.at(worker, i)) >> shift & 255 : 0;
    unsigned like = lanes_like(valid, digit);
    if (valid && lane == __ffs(static_cast<int>(like)) - 1) counts[warp][digit] += __popc(like);
    __syncwarp();
  }
  __syncthreads();
}

// totals [N, tiles, DIGITS]
static __global__ void __launch_bounds__(THREADS)
    count_tiles(Keys keys, int64_t tiles, int shift, int32_t *totals) {
  PK_SHARED(int, counts, [WARPS][DIGITS]);
  count_digits(keys, blockIdx.x / tiles, blockIdx.x % tiles, shift, counts);
  int total = 0;
  for (int w = 0; w < WARPS; w++) total += counts[w][threadIdx.x];
  totals[static_cast<int64_t>(blockIdx.x) * DIGITS + threadIdx.x] = total;
}

// The sum of x over the threads before this one.
static __device__ int sum_before(int x, int (&sums)[WARPS]) {
  int lane = threadIdx.x % 32, sum = x;
  for (int apart = 1; apart < 32; apart *= 2) {
    int other = __shfl_up_sync(0xffffffffu, sum, apart);
    if (lane >= apart) sum += other;
  }
  if (lane == 31) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  for (unsigned w = 0; w < threadIdx.x / 32; w++) sum += sums[w];
  return sum - x;
}

// Puts a tile's positions behind those of smaller digits, and those of the tiles before.
static __global__ void __launch_bounds__(THREADS)
    sort_tiles(Keys keys, int64_t tiles, int shift, const int32_t *totals, int32_t *sorted) {
  PK_SHARED(int, starts, [WARPS][DIGITS]);
  PK_SHARED(int, sums, [WARPS]);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t worker = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  count_digits(keys, worker, tile, shift, starts);
  int total = 0, before = 0;
  for (int64_t t = 0; t < tiles; t++) {
    int there = totals[(worker * tiles + t) * DIGITS + threadIdx.x];
    total += there;
    if (t < tile) before += there;
  }
  int start = sum_before(total, sums) + before;
  for (int w = 0; w < WARPS; w++) {
    int there = starts[w][threadIdx.x];
    starts[w][threadIdx.x] = start;
    start += there;
  }
  __syncthreads();
  for (int round = 0; round < ROUNDS; round++) {
    int64_t i = place_of(tile, round);
    bool valid = i < keys.count;
    unsigned digit = valid ? static_cast<unsigned>(keys.at(worker, i)) >> shift & 255 : 0;
    unsigned like = lanes_like(valid, digit);
    if (valid) {
      int to = starts[warp][digit] + __popc(like & ((1u << lane) - 1));
      sorted[worker * keys.count + to] = keys.position(worker, i);
    }
    __syncwarp();
    if (valid && lane == __ffs(static_cast<int>(like)) - 1) starts[warp][digit] += __popc(like);
    __syncwarp();
  }
}

// --- embedding_grad: adding up the runs ---

struct Runs {
  Keys keys;
  int32_t *starts, *ends; // [N, vocabulary], of the ids that there are
  int64_t piece;          // positions in a piece; the last of a run has up to twice as many
  int64_t slots;          // for the sums of pieces, of a worker
  pk_rows rows, table;
  int64_t workers, packs; // of a row
  void *partial;          // [N, slots, row]
};

// Where the runs are.
static __global__ void __launch_bounds__(THREADS) find_runs(Runs runs) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS, count = runs.keys.count;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
       item < runs.workers * count; item += step) {
    int64_t worker = item / count, i = item % count;
    int32_t key = runs.keys.at(worker, i);
    if (key == runs.keys.vocabulary) continue;
    int64_t place = worker * runs.keys.vocabulary + key;
    if (i == 0 || runs.keys.at(worker, i - 1) != key) runs.starts[place] = static_cast<int32_t>(i);
    if (i == count - 1 || runs.keys.at(worker, i + 1) != key)
      runs.ends[place] = static_cast<int32_t>(i + 1);
  }
}

// What a warp does: 32 packs of columns of the run that place i belongs to.
struct Part {
  int64_t worker, i, pack, start, end;
  int32_t key;
};

static __device__ __forceinline__ Part part_of(const Runs &runs, int64_t item, int64_t places,
                                               int64_t apart) {
  int64_t slabs = (runs.packs + 31) / 32, of_worker = places * slabs;
  Part part;
  part.worker = item / of_worker;
  part.i = item % of_worker / slabs * apart;
  part.pack = item % slabs * 32 + threadIdx.x % 32;
  part.key = runs.keys.at(part.worker, part.i);
  if (part.key == runs.keys.vocabulary) {
    part.start = part.end = 0;
    return part;
  }
  int64_t place = part.worker * runs.keys.vocabulary + part.key;
  part.start = runs.starts[place];
  part.end = runs.ends[place];
  return part;
}

template <class T, int width>
static __device__ __forceinline__ void add(pk_pack<T, width> &sum, const pk_pack<T, width> &x) {
#pragma unroll
  for (int e = 0; e < width; e++) sum.at[e] += x.at[e];
}

template <class T, int width>
static __device__ __forceinline__ pk_pack<T, width> *
pack_of(const Runs &runs, const pk_rows &rows, int64_t worker, int64_t row, int64_t pack) {
  return reinterpret_cast<pk_pack<T, width> *>(pk_row<T>(rows, worker)) + row * runs.packs + pack;
}

// A run that is not cut is added to the table, in order; of others, the sums of pieces are kept.
template <class T, int width>
static __global__ void __launch_bounds__(THREADS) add_pieces(Runs runs, int64_t items) {
  int64_t step = static_cast<int64_t>(gridDim.x) * WARPS;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; item < items;
       item += step) {
    Part part = part_of(runs, item, runs.keys.count, 1);
    int64_t length = part.end - part.start, from = part.i - part.start;
    int64_t pieces = length < 2 * runs.piece ? 1 : length / runs.piece;
    if (length == 0 || from % runs.piece || from / runs.piece >= pieces) continue;
    if (part.pack >= runs.packs) continue;
    int64_t end = from / runs.piece == pieces - 1 ? part.end : part.i + runs.piece;
    pk_pack<T, width> *to = pack_of<T, width>(runs, runs.table, part.worker, part.key, part.pack),
                      sum = {};
    if (pieces == 1) {
      sum = *to;
    } else {
      to = static_cast<pk_pack<T, width> *>(runs.partial) +
           (part.worker * runs.slots + part.i / runs.piece) * runs.packs + part.pack;
    }
#pragma unroll 4
    for (int64_t j = part.i; j < end; j++)
      add(sum, *pack_of<T, width>(runs, runs.rows, part.worker, runs.keys.position(part.worker, j),
                                  part.pack));
    *to = sum;
  }
}

// Adds the pieces' sums to the table, in order. A run of two pieces or more has a place that is a
// multiple of twice their length: the first one stands for it.
template <class T, int width>
static __global__ void __launch_bounds__(THREADS)
    join_pieces(Runs runs, int64_t places, int64_t items) {
  int64_t step = static_cast<int64_t>(gridDim.x) * WARPS;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; item < items;
       item += step) {
    Part part = part_of(runs, item, places, 2 * runs.piece);
    int64_t length = part.end - part.start;
    if (length < 2 * runs.piece || part.i - part.start >= 2 * runs.piece) continue;
    if (part.pack >= runs.packs) continue;
    pk_pack<T, width> *to = pack_of<T, width>(runs, runs.table, part.worker, part.key, part.pack);
    pk_pack<T, width> sum = *to;
#pragma unroll 8
    for (int64_t p = 0; p < length / runs.piece; p++)
      add(sum,
          static_cast<const pk_pack<T, width> *>(
              runs.partial)[(part.worker * runs.slots + part.start / runs.piece + p) * runs.packs +
                            part.pack]);
    *to = sum;
  }
}

// --- embedding_grad: the workspace and the launches ---

static int64_t aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Positions in a piece: few enough that a warp is soon done, and not too many pieces to join.
static int64_t piece_for(int64_t count) {
  int64_t piece = 32;
  while (4 * piece * piece < count) piece *= 2;
  return piece;
}

struct Layout {
  int64_t order[2], totals, starts, ends, partial, bytes; // from the workspace's start
  int64_t tiles, piece, slots;
};

static Layout layout_of(const pk_embedding_job &job) {
  Layout made;
  made.tiles = (job.count + TILE - 1) / TILE;
  made.piece = piece_for(job.count);
  made.slots = job.count / made.piece + 1;
  int64_t at = 0;
  for (int i = 0; i < 2; i++) {
    made.order[i] = at;
    at += aligned(job.workers * job.count * 4);
  }
  made.totals = at;
  at += aligned(job.workers * made.tiles * DIGITS * 4);
  made.starts = at;
  at += aligned(job.workers * job.vocabulary * 4);
  made.ends = at;
  at += aligned(job.workers * job.vocabulary * 4);
  made.partial = at;
  made.bytes = at + aligned(job.workers * made.slots * job.width * job.element_bytes);
  return made;
}

extern "C" int64_t pk_embedding_grad_workspace(const pk_embedding_job *job) {
  return layout_of(*job).bytes;
}

// Sorts the positions; keys->order is where they are.
static cudaError_t sort(const pk_embedding_job &job, const Layout &layout, Keys *keys,
                        cudaStream_t stream) {
  char *memory = static_cast<char *>(job.workspace);
  int32_t *totals = reinterpret_cast<int32_t *>(memory + layout.totals);
  dim3 grid(static_cast<unsigned>(job.workers * layout.tiles)), block(THREADS);
  cudaError_t error = cudaSuccess;
  for (int shift = 0, into = 0; shift < 32 && job.vocabulary >> shift; shift += 8, into ^= 1) {
    int32_t *sorted = reinterpret_cast<int32_t *>(memory + layout.order[into]);
    error = pk_launch(count_tiles, grid, block, 0, stream, *keys, layout.tiles, shift, totals);
    if (error == cudaSuccess)
      error = pk_launch(sort_tiles, grid, block, 0, stream, *keys, layout.tiles, shift,
                        static_cast<const int32_t *>(totals), sorted);
    if (error != cudaSuccess) break;
    keys->order = sorted;
  }
  return error;
}

template <class T, int width> static cudaError_t add_runs(const Runs &runs, cudaStream_t stream) {
  int64_t slabs = (runs.packs + 31) / 32, each = 2 * runs.piece;
  int64_t items = runs.workers * runs.keys.count * slabs;
  cudaError_t error = pk_launch(add_pieces<T, width>, dim3(pk_grid_for(items, WARPS)),
                                dim3(THREADS), 0, stream, runs, items);
  if (error != cudaSuccess || runs.keys.count < each) return error;
  int64_t places = (runs.keys.count + each - 1) / each;
  items = runs.workers * places * slabs;
  return pk_launch(join_pieces<T, width>, dim3(pk_grid_for(items, WARPS)), dim3(THREADS), 0, stream,
                   runs, places, items);
}

extern "C" cudaError_t pk_launch_embedding_grad(const pk_embedding_job *job, cudaStream_t stream) {
  Layout layout = layout_of(*job);
  char *memory = static_cast<char *>(job->workspace);
  Keys keys = {job->ids, nullptr, job->count, job->vocabulary};
  cudaError_t error = sort(*job, layout, &keys, stream);
  if (error != cudaSuccess) return error;
  Runs runs = {keys,
               reinterpret_cast<int32_t *>(memory + layout.starts),
               reinterpret_cast<int32_t *>(memory + layout.ends),
               layout.piece,
               layout.slots,
               job->rows,
               job->table,
               job->workers,
               job->width,
               memory + layout.partial};
  error = pk_launch(find_runs, dim3(pk_grid_for(job->workers * job->count, THREADS)), dim3(THREADS),
                    0, stream, runs);
  if (error != cudaSuccess) return error;
  int width = static_cast<int>(16 / job->element_bytes);
  bool packed = job->width % width == 0 && pk_rows_fit(job->rows, job->element_bytes, width) &&
                pk_rows_fit(job->table, job->element_bytes, width);
  if (packed) runs.packs /= width;
  if (job->element_bytes == 8)
    return packed ? add_runs<double, 2>(runs, stream) : add_runs<double, 1>(runs, stream);
  return packed ? add_runs<float, 4>(runs, stream) : add_runs<float, 1>(runs, stream);
}

// --- pick and unpick ---

template <class T> static __global__ void __launch_bounds__(THREADS) pick(pk_entries_job job) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS, total = job.workers * job.rows;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; item < total;
       item += step) {
    int64_t worker = item / job.rows, row = item % job.rows;
    int32_t index = pk_row<const int32_t>(job.index, worker)[row];
    T value = index == job.ignored ? T(0) : all_ones<T>();
    if (index >= 0 && index < job.vocabulary)
      value = pk_row<const T>(job.wide, worker)[row * job.vocabulary + index];
    pk_row<T>(job.narrow, worker)[row] = value;
  }
}

// A warp per row.
template <class T> static __global__ void __launch_bounds__(THREADS) unpick(pk_entries_job job) {
  int64_t step = static_cast<int64_t>(gridDim.x) * WARPS, total = job.workers * job.rows;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; item < total;
       item += step) {
    int64_t worker = item / job.rows, row = item % job.rows;
    int32_t index = pk_row<const int32_t>(job.index, worker)[row];
    T value = pk_row<const T>(job.narrow, worker)[row];
    T *wide = pk_row<T>(job.wide, worker) + row * job.vocabulary;
    for (int64_t c = threadIdx.x % 32; c < job.vocabulary; c += 32)
      wide[c] = c == index ? value : T(0);
  }
}

extern "C" cudaError_t pk_launch_pick(const pk_entries_job *job, cudaStream_t stream) {
  return pk_launch(job->element_bytes == 8 ? pick<uint64_t> : pick<uint32_t>,
                   dim3(pk_grid_for(job->workers * job->rows, THREADS)), dim3(THREADS), 0, stream,
                   *job);
}

extern "C" cudaError_t pk_launch_unpick(const pk_entries_job *job, cudaStream_t stream) {
  return pk_launch(job->element_bytes == 8 ? unpick<uint64_t> : unpick<uint32_t>,
                   dim3(pk_grid_for(job->workers * job->rows, WARPS)), dim3(THREADS), 0, stream,
                   *job);
}
