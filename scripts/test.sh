#!/usr/bin/env bash
# Builds, then checks: scripts/test.sh [SPEC...]
# With specs, only those, on the release build. Without: all specs on the release build and under the
# sanitizers, those of arithmetic as other processors and builds do it, the fuzzers' smoke run, and the lints. The last line is "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

passed=0 failed=0 skipped=0
failures=()
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

finish() {
  if [[ $failed != 0 ]]; then printf '\nfailed: %s\n' "${failures[*]}"; fi
  echo "$passed passed, $failed failed, $skipped skipped"
  [[ $failed == 0 ]]
  exit
}

fail() {
  failed=$((failed + 1))
  failures+=("$1")
}

# check NAME COMMAND...: one check by its exit code (3: skipped), its output shown if it failed.
check() {
  local name=$1 code=0
  shift
  echo "== $name"
  "$@" > "$folder/output" 2>&1 || code=$?
  case $code in
    0) passed=$((passed + 1)) ;;
    3)
      skipped=$((skipped + 1))
      cat "$folder/output"
      ;;
    *)
      fail "$name"
      cat "$folder/output"
      ;;
  esac
  return "$code"
}

# ThreadSanitizer of some compilers cannot work where addresses are much randomised.
launcher=()
if setarch "$(uname -m)" -R true 2> /dev/null; then launcher=(setarch "$(uname -m)" -R); fi

# busted_under COUNTS PROGRAM ARGUMENTS...: its cases, their numbers left in the file COUNTS.
busted_under() {
  local counts=$1 program=$2
  shift 2
  rm -f "$counts"
  PACKLUA_COUNTS=$counts "${launcher[@]}" "$program" spec/support/busted.lua "$@"
}

# tally NAME COUNTS CODE: counts the cases of a busted that ended with CODE.
tally() {
  local name=$1 code=$3 good bad pending
  if ! read -r good bad pending 2> /dev/null < "$2"; then
    good=0 bad=0 pending=0
    echo "test.sh: $name ended with exit code $code before its end"
  fi
  # A process that fails after its last case, such as by a leak, is a failure too.
  if [[ $code != 0 && $bad == 0 ]]; then bad=1; fi
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + pending))
  if [[ $bad != 0 ]]; then failures+=("$name"); fi
}

# specs NAME PROGRAM ARGUMENTS...: busted under PROGRAM; every case counts.
specs() {
  local name=$1 code=0
  shift
  echo "== $name"
  busted_under "$folder/counts" "$@" || code=$?
  tally "$name" "$folder/counts" "$code"
}

# halves NAME PROGRAM ARGUMENTS...: the same of all spec files, every second one in a process beside, whose output
# comes last: most of them use one thread.
halves() {
  local name=$1 code=0 files=(spec/*_spec.lua) one=() other=() i beside
  shift
  for i in "${!files[@]}"; do
    if ((i % 2 == 0)); then one+=("${files[i]}"); else other+=("${files[i]}"); fi
  done
  echo "== $name"
  busted_under "$folder/beside" "$@" "${other[@]}" > "$folder/output" 2>&1 &
  beside=$!
  busted_under "$folder/counts" "$@" "${one[@]}" || code=$?
  tally "$name" "$folder/counts" "$code"
  code=0
  wait "$beside" || code=$?
  cat "$folder/output"
  tally "$name" "$folder/beside" "$code"
}

# build_with PRESET: invoked through check.
# shellcheck disable=SC2317
build_with() {
  local generator=()
  if [[ ! -e build-$1/CMakeCache.txt ]] && command -v ninja > /dev/null; then
    generator=(-G Ninja)
  fi
  cmake --preset "$1" "${generator[@]}" -DPACKLUA_WERROR=ON &&
    cmake --build "build-$1" --parallel "$(nproc)"
}

# build_without LIBRARIES: a build in build-plain without them, invoked through check.
# shellcheck disable=SC2317
build_without() {
  local generator=()
  if [[ ! -e build-plain/CMakeCache.txt ]] && command -v ninja > /dev/null; then
    generator=(-G Ninja)
  fi
  cmake --preset release -B build-plain "${generator[@]}" -DPACKLUA_WERROR=ON -DPACKLUA_CUDA=OFF \
    -DPACKLUA_EMU=OFF "-DPACKLUA_WITHOUT=$1" &&
    cmake --build build-plain --parallel "$(nproc)"
}

if [[ $# != 0 ]]; then
  scripts/setup.sh || exit
  specs specs build/packlua "$@"
  finish
fi

check setup scripts/setup.sh --all -DPACKLUA_WERROR=ON || finish
halves specs build/packlua

# Runs and more, ended at random moments: what they promise holds wherever that is.
check "runs killed and resumed" scripts/kill_resume.sh 5
check "signals at random moments" scripts/signal_stress.sh 3

# The emulated CUDA device, where its library is part of the builds (CUDA's headers are there): its specs are among those
# above; here its kernels under sanitizers, with fewer shapes.
check "failing allocations and files" scripts/faults.sh --sample
check "planted faults" build/packlua scripts/emu_faults.lua build
check "kernels by nvcc" scripts/cuda_resources.sh

# Older processors, the products that processors with bf16 use, no libraries of products, and another processor.
arithmetic=(spec/{matmul,attention,loss,norm,rope,elementwise,reduce,embedding,move,train_ops,fusion,golden}_spec.lua)
if [[ $(uname -m) == x86_64 ]]; then
  PACKLUA_ISA=v2 ONEDNN_MAX_CPU_ISA=SSE41 specs "arithmetic of SSE4.2" build/packlua "${arithmetic[@]}"
  if grep -qw avx2 /proc/cpuinfo; then
    PACKLUA_ISA=v3 ONEDNN_MAX_CPU_ISA=AVX2 PACKLUA_PRODUCTS=primitives \
      specs "arithmetic of AVX2, by primitives" build/packlua "${arithmetic[@]}"
  fi
  if grep -qw avx512_bf16 /proc/cpuinfo; then
    PACKLUA_PRODUCTS=primitives specs "arithmetic by bf16 instructions" build/packlua "${arithmetic[@]}"
  fi
else
  PACKLUA_PRODUCTS=primitives specs "arithmetic by primitives" build/packlua "${arithmetic[@]}"
fi
for libraries in "dnnl;cblas" dnnl; do
  if check "build without $libraries" build_without "$libraries"; then
    specs "without $libraries" build-plain/packlua spec/{matmul,attention,loss,fusion,golden,trainer,products}_spec.lua
  fi
done
check "C for aarch64" scripts/aarch64_check.sh

# A sanitizer's report ends the process with a code of its own, so that no spec takes it for an
# ordinary failure. Leaks are watched by the specs themselves: LuaJIT's memory is closed to LSan.
export UBSAN_OPTIONS=print_stacktrace=1:exitcode=99
if check "asan build" build_with asan; then
  ASAN_OPTIONS=detect_leaks=0:exitcode=99 PACKLUA_TEST_CASES=2 PACKLUA_TEST_PROGRAMS=200 halves "specs under ASan and UBSan" build-asan/packlua --exclude-tags=slow
  check "failing allocations under ASan and UBSan" scripts/faults.sh --sample --build build-asan --kinds memory,lua,ENOSPC
fi
if check "tsan build" build_with tsan; then
  TSAN_OPTIONS=exitcode=99:halt_on_error=1:ignore_noninstrumented_modules=1 \
    specs "threaded specs under TSan" build-tsan/packlua --tags=threads
  # OpenBLAS guards its buffers by locks that ThreadSanitizer does not see.
  TSAN_OPTIONS=exitcode=99:halt_on_error=1:ignore_noninstrumented_modules=1 PACKLUA_TEST_CASES=1 \
    specs "kernels under TSan" build-tsan/packlua spec/cuda_parity_spec.lua
fi
if [[ -x spec/fuzz/run.sh ]]; then check "fuzz smoke" spec/fuzz/run.sh; fi
check "cuDNN's plans" scripts/cudnn_check.sh
for lint in luacheck clang-format shellcheck clang-tidy lua-docs rooms; do
  check "$lint" scripts/lint.sh "$lint"
done
finish
