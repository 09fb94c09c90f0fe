// Runs the blocks of a grid: the threads of a block are fibers on one thread of the system, which
// switch where a kernel waits for others. A kernel that never waits runs thread after thread on one
// fiber. Built without ThreadSanitizer, which learns from fiber.h what orders memory.
#include "emu.h"
#include "fiber.h"
#include "pool.h"
#include "shared_memory.h"

#include <cstdio>
#include <vector>

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace emu {

__thread Thread *thread;
__thread Block *block;

namespace {

enum class State : uint8_t { fresh, ready, at_barrier, at_exchange, done };

struct Copy {
  void *to;
  const void *from;
  int group;
  bool there;
};

struct Strand { // a CUDA thread
  Thread id;
  State state;
  Fiber *fiber;
  Place place;
  int group; // of asynchronous copies
  std::vector<Copy> copies;
};

// Lanes of a warp that name the same mask meet here. Two exchanges take turns: a lane may bring its
// words to the next one while others still look at the last.
struct Meeting {
  unsigned mask, arrived, generation;
  int kind;
  Place place;
  Exchange turns[2];
  char order[2];
};

struct Warp {
  unsigned present, ended;
  std::vector<Meeting *> meetings;
  size_t used; // of meetings, in this block
};

struct Shared {
  const void *key;
  size_t bytes;
  void *memory;
  bool live; // in this block
};

// What one thread of the system needs to run blocks.
struct Machine {
  Block block;
  std::vector<Strand> strands;
  std::vector<Warp> warps;
  std::vector<Shared> shared;
  std::vector<Fiber *> idle, retired; // retired: not for this block's strands again
  std::vector<unsigned> order, ready; // strands not begun, strands to go on
  size_t begun, ready_head;
  Fiber main, *current;
  unsigned count, done, at_barrier;
  unsigned generation; // of barriers
  struct Votes {
    bool any, all;
    int count;
  } votes[2];
  char barrier_order[2], start_order, end_order;
  void *dynamic = nullptr;
  size_t dynamic_bytes = 0;
  uint64_t random;
  Body body;
  const void *arguments;
};

__thread Machine *own_machine;

// The seed of random orders, or 0 for the natural one.
uint64_t order_seed() {
  static const uint64_t seed = [] {
    const char *text = getenv("PACKLUA_EMU_ORDER");
    return text && *text ? (strtoull(text, nullptr, 10) * 2 + 1) * 0x9e3779b97f4a7c15ull : 0;
  }();
  return seed;
}

uint64_t draw(uint64_t &state) { // xorshift64 (Marsaglia 2003)
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

const char *describe(State state) {
  switch (state) {
  case State::fresh:
    return "not begun";
  case State::ready:
    return "running";
  case State::at_barrier:
    return "at a barrier";
  case State::at_exchange:
    return "at a warp's intrinsic";
  default:
    return "ended";
  }
}

// Says where every thread of the block is, and ends the process.
[[noreturn]] void die(const char *message) {
  Machine &m = *own_machine;
  fprintf(stderr, "emulation: %s, in block (%u, %u, %u)\n", message, m.block.index.x,
          m.block.index.y, m.block.index.z);
  for (unsigned i = 0; i < m.count;) {
    const Strand &first = m.strands[i];
    bool waits = first.state == State::at_barrier || first.state == State::at_exchange;
    unsigned next = i + 1;
    while (next < m.count && m.strands[next].state == first.state &&
           (!waits || m.strands[next].place.line == first.place.line))
      next++;
    fprintf(stderr, "  threads %u to %u: %s", i, next - 1, describe(first.state));
    if (waits) fprintf(stderr, " at %s:%d", first.place.file, first.place.line);
    fprintf(stderr, "\n");
    i = next;
  }
  abort();
}

[[noreturn]] void die_at(State state, Place place, const char *message) {
  Strand &own = own_machine->strands[thread->linear];
  own.state = state;
  own.place = place;
  die(message);
}

void wake(Machine &m, unsigned strand) {
  m.strands[strand].state = State::ready;
  m.ready.push_back(strand);
}

// The next strand to run; false if none can.
bool pick(Machine &m, unsigned &strand) {
  size_t ready = m.ready.size() - m.ready_head, fresh = m.order.size() - m.begun;
  if (order_seed() && ready) {
    size_t chosen = draw(m.random) % (ready + (fresh ? 1 : 0));
    if (chosen < ready) std::swap(m.ready[m.ready_head], m.ready[m.ready_head + chosen]);
    if (chosen == ready) ready = 0;
  }
  if (ready) {
    strand = m.ready[m.ready_head++];
    if (m.ready_head == m.ready.size()) m.ready.clear(), m.ready_head = 0;
    return true;
  }
  if (!fresh) return false;
  strand = m.order[m.begun++];
  return true;
}

void go_to(Machine &m, Fiber *fiber) {
  Fiber *from = m.current;
  if (from == fiber) return;
  m.current = fiber;
  fiber_switch(from, fiber);
}

void run_strands();

Fiber *take_fiber(Machine &m) {
  if (m.idle.empty()) return fiber_create(run_strands);
  Fiber *fiber = m.idle.back();
  m.idle.pop_back();
  return fiber;
}

// Lets other strands run; returns when the calling one may go on.
void wait(Machine &m) {
  unsigned next;
  if (!pick(m, next)) die("deadlock: threads wait for others that never come");
  Strand &strand = m.strands[next];
  if (!strand.fiber) strand.fiber = take_fiber(m);
  thread = &strand.id;
  go_to(m, strand.fiber);
}

// Threads that wait at another barrier than this would meet the wrong ones.
void check_barrier(const Machine &m, Place place) {
  for (unsigned i = 0; i < m.count; i++) {
    const Strand &strand = m.strands[i];
    if (strand.state == State::at_barrier &&
        (strand.place.line != place.line || strcmp(strand.place.file, place.file) != 0))
      die("threads wait at different barriers");
  }
}

void release_barrier(Machine &m) {
  m.at_barrier = 0;
  m.generation++;
  m.votes[m.generation & 1] = {false, true, 0};
  for (unsigned i = 0; i < m.count; i++)
    if (m.strands[i].state == State::at_barrier) wake(m, i);
}

void release_meeting(Machine &m, Meeting &meeting, unsigned warp) {
  meeting.arrived = 0;
  meeting.generation++;
  for (unsigned lane = 0; lane < 32; lane++) {
    unsigned strand = warp * 32 + lane;
    if (meeting.mask >> lane & 1 && strand < m.count &&
        m.strands[strand].state == State::at_exchange)
      wake(m, strand);
  }
}

void strand_ends(Machine &m, Strand &strand) {
  if (!strand.copies.empty()) die("a thread ends without waiting for its asynchronous copies");
  strand.state = State::done;
  strand.fiber = nullptr;
  m.done++;
  m.warps[strand.id.warp].ended |= 1u << strand.id.lane;
  if (m.at_barrier && m.at_barrier == m.count - m.done) release_barrier(m);
}

// The life of a fiber: strand after strand, for ever.
void run_strands() {
  fiber_entered();
  for (;;) {
    ignore_begin();
    Machine &m = *own_machine;
    Strand &strand = m.strands[thread->linear];
    Fiber *own = m.current;
    strand.state = State::ready;
    strand.fiber = own;
    order_acquire(&m.start_order);
    ignore_end();
    m.body(m.arguments);
    ignore_begin();
    order_release(&m.end_order);
    strand_ends(m, strand);
    // A fresh strand takes over this very fiber; under ThreadSanitizer each needs one of its own.
#ifdef PK_EMU_RACES
    m.retired.push_back(own);
#else
    m.idle.push_back(own);
#endif
    unsigned next;
    if (pick(m, next)) {
      Strand &other = m.strands[next];
      thread = &other.id;
      if (!other.fiber) other.fiber = take_fiber(m);
      go_to(m, other.fiber);
    } else {
      if (m.done != m.count) die("deadlock: threads wait for others that never come");
      go_to(m, &m.main);
    }
    ignore_end();
  }
}

void reset(Machine &m, dim3 size, size_t dynamic_bytes) {
  unsigned count = size.x * size.y * size.z;
  if (m.strands.size() < count) m.strands.resize(count);
  m.count = count;
  m.done = m.at_barrier = m.generation = 0;
  m.votes[0] = {false, true, 0};
  m.begun = m.ready_head = 0;
  m.ready.clear();
  m.idle.insert(m.idle.end(), m.retired.begin(), m.retired.end());
  m.retired.clear();
  m.order.resize(count);
  m.warps.resize((count + 31) / 32);
  for (Warp &warp : m.warps) warp.present = warp.ended = 0, warp.used = 0;
  unsigned i = 0;
  for (unsigned z = 0; z < size.z; z++)
    for (unsigned y = 0; y < size.y; y++)
      for (unsigned x = 0; x < size.x; x++, i++) {
        Strand &strand = m.strands[i];
        strand.id = {make_uint3(x, y, z), i, i & 31, i >> 5};
        strand.state = State::fresh;
        strand.fiber = nullptr;
        strand.group = 0;
        m.warps[i >> 5].present |= 1u << (i & 31);
        m.order[i] = i;
      }
  for (Shared &shared : m.shared) shared.live = false;
  if (!m.dynamic || m.dynamic_bytes != dynamic_bytes) {
    free(m.dynamic);
    if (posix_memalign(&m.dynamic, 128, dynamic_bytes ? dynamic_bytes : 1) != 0) abort();
    m.dynamic_bytes = dynamic_bytes;
  }
  memset(m.dynamic, 0xff, dynamic_bytes); // NaN in every type
}

// That the block's shared memory is no more than pk_launch of device.h, which knows only the
// dynamic part, has asked for.
void check_shared(const Machine &m) {
  if (m.dynamic_bytes > PK_SHARED_UNASKED) return;
  size_t bytes = m.dynamic_bytes;
  for (const Shared &shared : m.shared)
    if (shared.live) bytes += (shared.bytes + 127) / 128 * 128;
  if (bytes > PK_SHARED_BOUND) die("a block with more shared memory than was asked for");
}

void shuffle_order(Machine &m, uint64_t seed) {
  m.random = seed;
  if (!order_seed()) return;
  for (unsigned i = m.count; i > 1; i--) std::swap(m.order[i - 1], m.order[draw(m.random) % i]);
}

struct Grid {
  dim3 grid, size;
  size_t shared;
  Body body;
  const void *arguments;
  const std::vector<uint32_t> *order; // of blocks, or none
};

void run_block(const void *data, int64_t piece) {
  const Grid &grid = *static_cast<const Grid *>(data);
  if (!own_machine) own_machine = new Machine;
  Machine &m = *own_machine;
  uint64_t index = grid.order ? (*grid.order)[piece] : piece;
  reset(m, grid.size, grid.shared);
  shuffle_order(m, order_seed() + index * 7919 + 1);
  m.block = {make_uint3(static_cast<unsigned>(index % grid.grid.x),
                        static_cast<unsigned>(index / grid.grid.x % grid.grid.y),
                        static_cast<unsigned>(index / grid.grid.x / grid.grid.y)),
             grid.size, grid.grid, m.dynamic};
  block = &m.block;
  m.body = grid.body;
  m.arguments = grid.arguments;
  fiber_adopt_thread(&m.main);
  m.current = &m.main;
  order_release(&m.start_order);
  Strand &first = m.strands[m.order[m.begun++]];
  first.fiber = take_fiber(m);
  thread = &first.id;
  go_to(m, first.fiber);
  order_acquire(&m.end_order);
  check_shared(m);
  thread = nullptr;
  block = nullptr;
}

} // namespace

void run_grid(dim3 grid, dim3 size, size_t shared, Body body, const void *arguments) {
  int64_t blocks = static_cast<int64_t>(grid.x) * grid.y * grid.z;
  std::vector<uint32_t> order;
  if (order_seed()) {
    uint64_t state = order_seed();
    order.resize(blocks);
    for (int64_t i = 0; i < blocks; i++) order[i] = static_cast<uint32_t>(i);
    for (int64_t i = blocks; i > 1; i--) std::swap(order[i - 1], order[draw(state) % i]);
  }
  Grid job = {grid, size, shared, body, arguments, order_seed() ? &order : nullptr};
  pool_run(blocks, static_cast<int64_t>(size.x) * size.y * size.z, run_block, &job);
}

int barrier_vote(Vote vote, bool value, Place place) {
  ignore_begin();
  Machine &m = *own_machine;
  Strand &own = m.strands[thread->linear];
  int turn = m.generation & 1;
  Machine::Votes &votes = m.votes[turn];
  votes.any |= value;
  votes.all &= value;
  votes.count += value;
  order_release(&m.barrier_order[turn]);
  own.state = State::at_barrier;
  own.place = place;
  m.at_barrier++;
  if (m.at_barrier == m.count - m.done) {
    check_barrier(m, place);
    release_barrier(m);
  }
  wait(m);
  order_acquire(&m.barrier_order[turn]);
  int result = vote == Vote::any ? votes.any : vote == Vote::all ? votes.all : votes.count;
  ignore_end();
  return result;
}

void barrier(Place place) {
  barrier_vote(Vote::any, false, place);
}

static Meeting &find_meeting(Warp &warp, unsigned mask, Place place) {
  for (size_t i = 0; i < warp.used; i++)
    if (warp.meetings[i]->mask == mask) return *warp.meetings[i];
  for (size_t i = 0; i < warp.used; i++)
    if (warp.meetings[i]->arrived & mask)
      die_at(State::at_exchange, place, "lanes of a warp do not agree on the mask");
  if (warp.used == warp.meetings.size()) warp.meetings.push_back(new Meeting);
  Meeting &meeting = *warp.meetings[warp.used++];
  meeting.mask = mask;
  meeting.arrived = meeting.generation = 0;
  return meeting;
}

const Exchange &exchange(unsigned mask, int kind, const uint64_t *words, int count, Finish finish,
                         bool orders_memory, Place place) {
  ignore_begin();
  Machine &m = *own_machine;
  unsigned lane = thread->lane, index = thread->warp;
  Warp &warp = m.warps[index];
  if (!(mask >> lane & 1))
    die_at(State::at_exchange, place, "a lane calls a warp's intrinsic with a mask that lacks it");
  if (mask & warp.ended) die_at(State::at_exchange, place, "a mask names a lane that has ended");
  Meeting &meeting = find_meeting(warp, mask, place);
  int turn = meeting.generation & 1;
  Exchange &all = meeting.turns[turn];
  if (!meeting.arrived) {
    meeting.kind = kind;
    meeting.place = place;
    all.lanes = 0;
  } else if (meeting.kind != kind || meeting.place.line != place.line) {
    die_at(State::at_exchange, place, "lanes of a warp are at different intrinsics");
  }
  meeting.arrived |= 1u << lane;
  all.lanes |= 1u << lane;
  for (int i = 0; i < count; i++) all.words[lane][i] = words[i];
  if (orders_memory) order_release(&meeting.order[turn]);
  Strand &own = m.strands[thread->linear];
  own.state = State::at_exchange;
  own.place = place;
  if (meeting.arrived == (mask & warp.present)) {
    if (finish) finish(all);
    release_meeting(m, meeting, index);
  }
  wait(m);
  if (orders_memory) order_acquire(&meeting.order[turn]);
  return all;
}

void exchange_done() {
  ignore_end();
}

void *shared_variable(const void *key, size_t bytes) {
  ignore_begin();
  Machine &m = *own_machine;
  Shared *found = nullptr;
  for (Shared &shared : m.shared)
    if (shared.key == key) found = &shared;
  if (!found) {
    void *memory;
    if (posix_memalign(&memory, 128, bytes) != 0) abort();
    m.shared.push_back({key, bytes, memory, false});
    found = &m.shared.back();
  }
  if (!found->live) memset(found->memory, 0xff, bytes);
  found->live = true;
  void *memory = found->memory;
  ignore_end();
  return memory;
}

// A copy is made as late as the rules allow, at the wait that covers it; until then its place holds
// NaN.
void copy_async(void *shared, const void *global, bool there) {
  Strand &own = own_machine->strands[thread->linear];
  if ((reinterpret_cast<uintptr_t>(shared) | (there ? reinterpret_cast<uintptr_t>(global) : 0)) &
      15)
    die("pk_copy_async of addresses that are not aligned to 16 bytes");
  memset(shared, 0xff, 16);
  own.copies.push_back({shared, global, own.group, there});
}

void copy_commit() {
  own_machine->strands[thread->linear].group++;
}

void copy_wait(int left) {
  Strand &own = own_machine->strands[thread->linear];
  size_t kept = 0;
  for (const Copy &copy : own.copies) {
    if (copy.group >= own.group - left) {
      own.copies[kept++] = copy;
    } else if (copy.there) {
      memcpy(copy.to, copy.from, 16);
    } else {
      memset(copy.to, 0, 16);
    }
  }
  own.copies.resize(kept);
}

// The last lane multiplies for the whole warp. Words 0 to 2 are a's and b's registers, 3 and 4 d.
void finish_mma(Exchange &all) {
  static __thread float a[16][16], b[16][8];
  auto wide = [](uint64_t word, int half) {
    return __uint_as_float(static_cast<unsigned>(word >> (16 * half) & 0xffff) << 16);
  };
  for (int lane = 0; lane < 32; lane++) {
    int group = lane >> 2, place = lane & 3;
    const uint64_t *words = all.words[lane];
    for (int i = 0; i < 8; i++) { // a's halves: register i / 2
      int row = group + (i / 2 & 1) * 8, column = place * 2 + (i / 4) * 8 + (i & 1);
      a[row][column] = wide(words[i / 4], i % 4);
    }
    for (int i = 0; i < 4; i++) b[place * 2 + (i / 2) * 8 + (i & 1)][group] = wide(words[2], i);
  }
  for (int lane = 0; lane < 32; lane++) {
    int group = lane >> 2, place = lane & 3;
    float d[4];
    memcpy(d, &all.words[lane][3], sizeof d);
    for (int i = 0; i < 4; i++) {
      int row = group + (i >> 1) * 8, column = place * 2 + (i & 1);
      float sum = d[i];
      for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
      d[i] = sum;
    }
    memcpy(&all.words[lane][3], d, sizeof d);
  }
}

} // namespace emu
