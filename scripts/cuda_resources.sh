#!/usr/bin/env bash
# Compiles every kernel for every architecture with nvcc, warnings as errors, and compares what it takes of a GPU with
# scripts/cuda_limits.txt: scripts/cuda_resources.sh [--update] [--table] [ARCHITECTURE...]
# --table shows each kernel; --update writes the limits anew. Architectures: 80 90 100. No GPU or driver is needed; what
# has not changed since the last time is not compiled again. Exit code 1: beyond a limit, 3: there is no nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."

limits=scripts/cuda_limits.txt
update='' table=''
architectures=()
for option in "$@"; do
  case $option in
    --update) update=yes ;;
    --table) table=yes ;;
    80 | 90 | 100) architectures+=("$option") ;;
    *)
      echo "cuda_resources.sh: unknown option '$option'; known: --update, --table, 80, 90, 100" >&2
      exit 2
      ;;
  esac
done
if [[ ${#architectures[@]} == 0 ]]; then architectures=(80 90 100); fi

nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
if [[ ! -x $nvcc ]]; then
  echo "cuda_resources.sh: nvcc is not there"
  exit 3
fi

# Limits are what one release of nvcc makes; another one's kernels are only compiled.
release=$("$nvcc" --version | sed -n 's/^.*release \([0-9.]*\),.*$/\1/p')

cache=${PACKLUA_BUILD:-build}/cuda-resources
mkdir -p "$cache"
flags=(-std=c++17 -O3 --fmad=false -cubin -I. -Ihost -Xptxas -v -Werror=all-warnings)
shared=$(cat kernels/*.h host/pack.h <("$nvcc" --version) <(echo "${flags[@]}") | sha256sum)

# One family for one architecture, unless it was compiled before: what ptxas says is in the file that is printed.
compile() {
  local family=$1 architecture=$2 key log
  key=$(cat "kernels/$family.cu" <(echo "$shared") | sha256sum | cut -c1-16)
  log=$cache/$family-$architecture-$key.log
  if [[ ! -e $log ]]; then
    rm -f "$cache/$family-$architecture-"*
    if ! "$nvcc" "${flags[@]}" -arch="sm_$architecture" -o "$cache/$family-$architecture.cubin" "kernels/$family.cu" \
      > "$log.new" 2>&1; then
      cat "$log.new" >&2
      return 1
    fi
    mv "$log.new" "$log"
  fi
  echo "$log"
}
export -f compile
export nvcc cache shared

families=()
for file in kernels/*.cu; do families+=("$(basename "$file" .cu)"); done
jobs=()
for family in "${families[@]}"; do
  for architecture in "${architectures[@]}"; do jobs+=("$family $architecture"); done
done
export flags_text="${flags[*]}"
# shellcheck disable=SC2016 # expanded by the shells that run it
logs=$(printf '%s\n' "${jobs[@]}" |
  xargs -P "$(nproc)" -L 1 bash -c 'read -ra flags <<< "$flags_text"; compile "$1" "$2" || exit 255' _ | sort)

# A line per kernel: family, architecture, registers, static shared memory, bytes spilled (stores and loads), name.
kernels=$(for log in $logs; do
  name=$(basename "$log" .log)
  name=${name%-*}
  awk -v family="${name%-*}" -v architecture="${name##*-}" '
    /Compiling entry function/ { split($0, part, "\x27"); kernel = part[2] }
    /bytes spill stores/ {
      for (i = 1; i <= NF; i++) {
        if ($i == "spill" && $(i + 1) ~ /^stores/) stores = $(i - 2)
        if ($i == "spill" && $(i + 1) ~ /^loads/) loads = $(i - 2)
      }
    }
    /Used [0-9]+ registers/ {
      registers = shared = 0
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^registers/) registers = $(i - 1)
        if ($i ~ /^smem/) shared = $(i - 2)
      }
      print family, architecture, registers, shared, stores + loads, kernel
    }' "$log"
done | c++filt | sed 's/(anonymous namespace):://g; s/_INTERNAL_[0-9a-zA-Z_]*:://g')

if [[ $table ]]; then
  echo "family architecture registers shared spilled kernel"
  echo "$kernels"
fi

# The largest of each family and architecture.
largest=$(echo "$kernels" | awk '
  { key = $1 " " $2; seen[key] = 1
    for (i = 3; i <= 5; i++) if ($i + 0 > most[key, i] + 0) most[key, i] = $i }
  END { for (key in seen) print key, most[key, 3] + 0, most[key, 4] + 0, most[key, 5] + 0 }' | sort -k1,1 -k2,2n)

if [[ $update ]]; then
  {
    echo "# The most that a kernel of a family may take: registers, bytes of static shared memory, bytes spilled."
    echo "# nvcc $release"
    echo "# scripts/cuda_resources.sh compares, and with --update writes it anew."
    echo "$largest"
  } > "$limits"
  exit
fi

if ! grep -qxF "# nvcc $release" "$limits"; then
  echo "$(echo "$kernels" | wc -l) kernels for sm_${architectures[*]} compile; the limits are of another nvcc than $release"
  exit
fi
awk '
  FNR == NR { if ($1 != "#") limit[$1 " " $2] = $3 " " $4 " " $5; next }
  { key = $1 " " $2
    if (!(key in limit)) { print key ": no limit in the file"; bad = 1; next }
    split(limit[key], most, " ")
    split("registers|bytes of shared memory|bytes spilled", what, "|")
    for (i = 1; i <= 3; i++) if ($(i + 2) > most[i] + 0) {
      printf "%s for sm_%s: %d %s, the limit is %d\n", $1, $2, $(i + 2), what[i], most[i]; bad = 1 } }
  END { exit bad }' "$limits" <(echo "$largest") || exit 1
echo "$(echo "$kernels" | wc -l) kernels for sm_${architectures[*]}: within their limits"
