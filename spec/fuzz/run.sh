#!/usr/bin/env bash
# Builds every spec/fuzz/fuzz_NAME.c with the sanitizers and gives it seeds/NAME and mutations of them:
#   spec/fuzz/run.sh [RUNS]
# The mutations are the same every time. Fails on a crash, a sanitizer's report, a leak or a hang.
set -euo pipefail
cd "$(dirname "$0")/../.."

runs=${1:-20000}
seconds=300 # per harness; a hang ends here
build=${PACKLUA_FUZZ_BUILD:-build-asan}

if [[ ! -e $build/CMakeCache.txt ]]; then
  generator=()
  if command -v ninja > /dev/null; then generator=(-G Ninja); fi
  cmake --preset asan -B "$build" "${generator[@]}"
fi
cmake --build "$build" --target fuzz --parallel "$(nproc)"

export UBSAN_OPTIONS=print_stacktrace=1
failed=0
for source in spec/fuzz/fuzz_*.c; do
  harness=$(basename "$source" .c)
  seeds=spec/fuzz/seeds/${harness#fuzz_}
  timeout "$seconds" "$build/$harness" "-runs=$runs" "$seeds" || {
    echo "$harness: FAILED with exit code $?"
    failed=1
  }
done
exit "$failed"
