#!/usr/bin/env bash
# Fails every allocation and every call on a file of some scenarios in turn, and looks at what becomes of it:
#   scripts/faults.sh [--sample] [--build BUILD] [--kinds NAME,...] [--scenario NAME]
# --sample: some tens of each, in a minute. Prints how many there were of each kind in each scenario, and those that
# end wrongly: in a crash, a hang, an error without its cause, a damaged file, other results. spec/faults/run.lua says more.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build options=()
while [[ $# != 0 ]]; do
  case $1 in
    --sample) options+=(--points 16) ;;
    --build)
      build=$2
      shift
      ;;
    --kinds | --scenario)
      options+=("$1" "$2")
      shift
      ;;
    *)
      echo "faults.sh: unknown option $1" >&2
      exit 2
      ;;
  esac
  shift
done
cmake --build "$build" --target packfaults > /dev/null
build=$(cd "$build" && pwd)

# AddressSanitizer keeps count of memory below the shim.
sanitizer=$(ldd "$build/packlua" | sed -n 's/.*=> \(.*libasan[^ ]*\).*/\1/p')
if [[ -n $sanitizer ]]; then
  export PACKLUA_FAULT_PRELOAD="$build/libpackfaults.so $sanitizer"
  export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1:exitcode=99
fi

# The scenarios wait for the disk again and again: where there is one in memory, they use that.
if [[ -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi

# Every process takes its part of the calls.
parts=$(nproc) pids=() failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((i = 1; i <= parts; i++)); do
  "$build/packlua" spec/faults/run.lua --shim "$build/libpackfaults.so" --part "$i/$parts" "${options[@]}" \
    > "$folder/$i" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done

# What went wrong, then the counts of all parts together, in the order of the scenarios.
grep -hv '^COUNT ' "$folder"/* || true
sed -n 's/^COUNT //p' "$folder"/* | awk -F '|' '
  { key = sprintf("%-22s %-9s", $1, $2) }
  !(key in calls) { order[++rows] = key }
  { calls[key] = $3; failed[key] += $4; tolerated[key] += $5; wrong[key] += $6 }
  { all += $4; bad += $6 }
  END {
    for (i = 1; i <= rows; i++) {
      key = order[i]
      printf "%s %6d calls, %5d failed in turn: %5d end with an error, %5d are tolerated, %d WRONG\n", key, calls[key],
        failed[key], failed[key] - tolerated[key] - wrong[key], tolerated[key], wrong[key]
    }
    printf "%d faults, %d end wrongly\n", all, bad
  }'
exit "$failed"
