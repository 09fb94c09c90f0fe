// A tool that NVTX finds where NVTX_INJECTION64_PATH names this library: it writes down the ranges
// of all domains, for tests.
#include "control.h"

#if __has_include(<nvtx3/nvToolsExt.h>)

#include <mutex>
#include <string>

#include <nvtx3/nvToolsExt.h>

namespace {

std::mutex lock;
std::string written;

void write(const char *what, const char *name) {
  std::lock_guard<std::mutex> guard(lock);
  written += what;
  written += name;
  written += '\n';
}

int domain;
nvtxDomainHandle_t NVTX_API create(const char *) {
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t *attributes) {
  write("push ", attributes->message.ascii);
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  write("pop", "");
  return 0;
}
nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t, const nvtxEventAttributes_t *attributes) {
  write("start ", attributes->message.ascii);
  return 1;
}
void NVTX_API end(nvtxDomainHandle_t, nvtxRangeId_t) {
  write("end", "");
}

template <class Function> void set(NvtxFunctionTable table, int place, Function function) {
  *table[place] = reinterpret_cast<NvtxFunctionPointer>(function);
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) const char *pk_emu_ranges(void) {
  std::lock_guard<std::mutex> guard(lock);
  return written.c_str();
}

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  auto callbacks = static_cast<const NvtxExportTableCallbacks *>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, create);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  set(table, NVTX_CBID_CORE2_DomainRangeStartEx, start);
  set(table, NVTX_CBID_CORE2_DomainRangeEnd, end);
  return 1;
}

} // extern "C"

#else

extern "C" __attribute__((visibility("default"))) const char *pk_emu_ranges(void) {
  return "";
}

#endif
