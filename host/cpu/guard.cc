// Exceptions of C++ libraries end here: above are frames of C, where they would end the process.
#include "cpu/guard.h"

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#endif

#include <cstdio>
#include <exception>
#include <new>

extern "C" bool pk_cpu_guard(void (*function)(void *), void *argument,
                             char problem[PK_GUARD_TEXT]) {
  try {
    function(argument);
    return true;
  } catch (const std::bad_alloc &) {
    std::snprintf(problem, PK_GUARD_TEXT, "the system refused memory");
  } catch (const std::exception &caught) {
    std::snprintf(problem, PK_GUARD_TEXT, "%s", caught.what());
  }
  return false;
}

extern "C" void pk_cpu_guard_prepare(void) {
#if __has_include(<execinfo.h>)
  // glibc looks for the unwinder when it is first asked, and aborts if it has no memory for that.
  void *frame;
  backtrace(&frame, 1);
#endif
}
