// Fibers (fiber.h). Under ThreadSanitizer this file is built without it, and PK_EMU_RACES says so.
#include "fiber.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef PK_EMU_RACES
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
#endif

namespace emu {

enum : size_t { STACK_BYTES = 256 << 10, GUARD_BYTES = 64 << 10 };

#ifndef EMU_USES_UCONTEXT
extern "C" void pk_emu_switch(void **save, void *load);
asm(R"(.text
.globl pk_emu_switch
.hidden pk_emu_switch
.type pk_emu_switch,@function
pk_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pk_emu_switch, .-pk_emu_switch
)");
#endif

// Lays out the stack so that the first switch "returns" into entry, with 8 bytes modulo 16 as after
// a call.
static void prepare(Fiber *fiber, void (*entry)()) {
#ifdef EMU_USES_UCONTEXT
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = fiber->size;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, entry, 0);
#else
  void **top = reinterpret_cast<void **>(fiber->stack + fiber->size);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(entry);
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  fiber->pointer = top;
#endif
}

Fiber *fiber_create(void (*entry)()) {
  Fiber *fiber = new Fiber;
  void *memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("emulation: no memory for a fiber's stack");
    abort();
  }
  mprotect(memory, GUARD_BYTES, PROT_NONE);
  fiber->stack = static_cast<char *>(memory) + GUARD_BYTES;
  fiber->size = STACK_BYTES;
#ifdef PK_EMU_RACES
  fiber->race = __tsan_create_fiber(0);
#endif
  prepare(fiber, entry);
  return fiber;
}

void fiber_adopt_thread(Fiber *fiber) {
#ifdef PK_EMU_RACES
  fiber->race = __tsan_get_current_fiber();
#endif
  if (fiber->stack) return;
  pthread_attr_t attributes;
  void *stack;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &stack, &fiber->size);
  pthread_attr_destroy(&attributes);
  fiber->stack = static_cast<char *>(stack);
}

void fiber_switch(Fiber *from, Fiber *to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from->fake, to->stack, to->size);
#endif
#ifdef PK_EMU_RACES
  __tsan_switch_to_fiber(to->race, 1);
#endif
#ifdef EMU_USES_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  pk_emu_switch(&from->pointer, to->pointer);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

void fiber_entered() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

#ifdef PK_EMU_RACES
void order_release(void *point) {
  __tsan_release(point);
}
void order_acquire(void *point) {
  __tsan_acquire(point);
}
void ignore_begin() {
  AnnotateIgnoreReadsBegin("", 0);
  AnnotateIgnoreWritesBegin("", 0);
}
void ignore_end() {
  AnnotateIgnoreReadsEnd("", 0);
  AnnotateIgnoreWritesEnd("", 0);
}
#else
void order_release(void *) {}
void order_acquire(void *) {}
void ignore_begin() {}
void ignore_end() {}
#endif

} // namespace emu
