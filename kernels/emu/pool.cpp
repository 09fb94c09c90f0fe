// The threads that run blocks (pool.h). They live as long as the process.
#include "pool.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace emu {

namespace {

struct Pool {
  std::mutex mutex, running; // running: one grid at a time
  std::condition_variable begins, ends;
  int helpers = -1; // not started yet
  uint64_t round = 0;
  int busy = 0;
  int64_t next = 0, pieces = 0;
  void (*piece)(const void *, int64_t) = nullptr;
  const void *data = nullptr;
};

// Never destroyed: helpers may outlive static objects.
Pool &pool() {
  static Pool *made = new Pool;
  return *made;
}

// Takes pieces in small groups, so that the lock is rarely taken.
void work(Pool &p, std::unique_lock<std::mutex> &lock) {
  int64_t group = std::max<int64_t>(1, p.pieces / (8 * (p.helpers + 1)));
  while (p.next < p.pieces) {
    int64_t first = p.next, last = std::min(p.pieces, first + group);
    p.next = last;
    lock.unlock();
    for (int64_t i = first; i < last; i++) p.piece(p.data, i);
    lock.lock();
  }
}

void help() {
  Pool &p = pool();
  std::unique_lock<std::mutex> lock(p.mutex);
  uint64_t seen = 0;
  for (;;) {
    p.begins.wait(lock, [&] { return p.round != seen; });
    seen = p.round;
    work(p, lock);
    if (--p.busy == 0) p.ends.notify_one();
  }
}

void start(Pool &p) {
  const char *text = getenv("PACKLUA_EMU_THREADS");
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  int wanted = text && *text ? atoi(text) : std::min(cores, 4);
  p.helpers = std::max(0, std::min(wanted, 64) - 1);
  sigset_t all, before; // which the helpers inherit: the program's main thread alone takes signals
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < p.helpers; i++) std::thread(help).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace

void pool_run(int64_t pieces, int64_t weight, void (*piece)(const void *, int64_t),
              const void *data) {
  if (pieces < 2 || pieces * weight < 2048) {
    for (int64_t i = 0; i < pieces; i++) piece(data, i);
    return;
  }
  Pool &p = pool();
  std::lock_guard<std::mutex> alone(p.running);
  std::unique_lock<std::mutex> lock(p.mutex);
  if (p.helpers < 0) start(p);
  p.piece = piece;
  p.data = data;
  p.pieces = pieces;
  p.next = 0;
  p.busy = p.helpers;
  p.round++;
  p.begins.notify_all();
  work(p, lock);
  p.ends.wait(lock, [&] { return p.busy == 0; });
}

} // namespace emu
