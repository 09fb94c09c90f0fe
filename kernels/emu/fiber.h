// Fibers: stacks of their own, switched by hand on x86-64 and by ucontext elsewhere, and made known
// to the sanitizers.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(EMU_UCONTEXT)
#define EMU_USES_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emu {

struct Fiber {
#ifdef EMU_USES_UCONTEXT
  ucontext_t context;
#endif
  void *pointer = nullptr; // its stack pointer while another one runs
  char *stack = nullptr;
  size_t size = 0;
  void *race = nullptr; // ThreadSanitizer's idea of it
  void *fake = nullptr; // AddressSanitizer's
};

// A fiber that starts in entry, which must never return, when it is first switched to.
Fiber *fiber_create(void (*entry)());

// Makes *fiber stand for the calling thread itself.
void fiber_adopt_thread(Fiber *fiber);

void fiber_switch(Fiber *from, Fiber *to);

// What an entry calls first.
void fiber_entered();

// For ThreadSanitizer: what happens before and after a point that fibers pass, and stretches in
// which the emulation's own accesses do not count.
void order_release(void *point);
void order_acquire(void *point);
void ignore_begin();
void ignore_end();

} // namespace emu
