#!/usr/bin/env bash
# Whether cuDNN has plans for the graphs of attention, without a GPU: scripts/cudnn_check.sh
# Exit code 3: skipped, as there is no cuDNN, no toolkit or no compiler.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

for cuda in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
  [[ -n $cuda && -e $cuda/include/cudnn.h && -e $cuda/lib64/stubs/libcuda.so ]] && break
  cuda=''
done
compiler=$(command -v cc || command -v gcc || command -v clang)
if [[ -z $cuda || -z $compiler ]] || ! command -v nm > /dev/null; then
  echo "cudnn_check.sh: no cuDNN beside a CUDA toolkit, no C compiler or no nm: skipped"
  exit 3
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# cuDNN asks the driver for little when it makes a plan: to load the code and to find a kernel in it. This stands in for
# it: these are told that all is well, all else fails (34: a stub).
{
  echo 'static int done(void **made) { *made = made; return 0; }'
  nm -D --defined-only "$cuda/lib64/stubs/libcuda.so" | while read -r _ kind name; do
    case $kind$name in
      TcuLibraryLoadData | TcuLibraryGetKernel) echo "int $name(void **made) { return done(made); }" ;;
      TcuLibraryUnload | TcuKernelSetAttribute | TcuKernelGetAttribute) echo "int $name(void) { return 0; }" ;;
      T*) echo "int $name(void) { return 34; }" ;;
    esac
  done
} > "$folder/driver.c"
"$compiler" -shared -fPIC -o "$folder/libcuda.so.1" "$folder/driver.c" || exit 1
"$compiler" -std=gnu11 -Wall -Wextra -Werror -Ihost -isystem "$cuda/include" spec/cudnn/check_plans.c \
  host/cuda/cudnn.c host/cuda/cudnn_graphs.c -ldl -o "$folder/check_plans" || exit 1
LD_LIBRARY_PATH=$folder:$cuda/lib64:${LD_LIBRARY_PATH:-} "$folder/check_plans"
