#!/usr/bin/env bash
# Checks the CUDA device on a machine with a GPU, and measures it: scripts/gpu_check.sh [--quick] [options]
# Builds, runs the specs and golden cases on the device, looks for memory errors and races, measures the 20m
# benchmark, and leaves a folder with report.md and all logs. The last line is PASS or FAIL.
# shellcheck disable=SC2317 # the checks are functions called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
  cat << 'END_OF_USAGE'
usage: scripts/gpu_check.sh [options]

  --quick          a few minutes: fewer cases, 5 timed steps, no peer
  --device NAME    cuda:0 (default), another one, or emu to rehearse the script without a GPU
  --output DIR     folder of the report (default runs/gpu-check-UTCTIME)
  --build DIR      build folder (default build-gpu)
  --golden DIR     folder of golden cases (default ../shared/golden, else spec/fixtures)
  --carry          only gathers the libraries that another machine may lack into .carry/, and ends
  --help           shows this text

Needed: the CUDA toolkit (nvcc), a C and C++ compiler, CMake 3.25, and the libraries of docs/dependencies.md.
Where those cannot be installed: run `scripts/gpu_check.sh --carry` on a Debian machine of the same architecture,
copy the source tree with its .carry/ folder, and run this script there; .carry/ is used by itself.
END_OF_USAGE
}

refuse() {
  echo "gpu_check.sh: $1 (--help says more)" >&2
  exit 2
}

quick='' device=cuda:0 output='' build=build-gpu golden='' carry=''
while [[ $# != 0 ]]; do
  case $1 in
    --quick) quick=yes ;;
    --carry) carry=yes ;;
    --help | -h)
      usage
      exit 0
      ;;
    --device | --output | --build | --golden)
      [[ $# -ge 2 ]] || refuse "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    *) refuse "there is no option $1" ;;
  esac
  shift
done

# --- what another machine may lack ---

packages=(libluajit-5.1-dev libluajit-5.1-2 libluajit-5.1-common libcjson-dev libcjson1 libzstd-dev libzstd1
  libyaml-dev libyaml-0-2 nettle-dev libnettle8 libedit-dev libedit2 libbsd0 libmd0 libtinfo6
  libopenblas-openmp-dev libopenblas0-openmp libgfortran5 libgomp1 libdnnl-dev libdnnl2 zlib1g-dev zlib1g
  lua-busted lua-argparse lua-cliargs lua-luassert lua-say lua-mediator lua-penlight lua-system lua-term lua-filesystem)
if [[ $carry ]]; then
  mkdir -p .carry/packages
  (cd .carry/packages && apt-get download "${packages[@]}") || exit 1
  for package in .carry/packages/*.deb; do dpkg -x "$package" .carry || exit 1; done
  rm -r .carry/packages
  find .carry -name '*.a' -delete # programs are linked with the shared ones
  # shellcheck disable=SC2016 # expanded by pkg-config
  sed -i 's|=/usr|=${pcfiledir}/../../..|' .carry/usr/lib/*/pkgconfig/*.pc
  du -sh .carry
  exit 0
fi
prefix=()
if [[ -d .carry/usr ]]; then
  triplet=$(uname -m)-linux-gnu
  root=$PWD/.carry/usr
  blas=$root/lib/$triplet/openblas-openmp
  export LD_LIBRARY_PATH=$root/lib/$triplet:$blas:$PWD/.carry/lib/$triplet${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LUA_PATH="$root/share/lua/5.1/?.lua;$root/share/lua/5.1/?/init.lua;;"
  export LUA_CPATH="$root/lib/$triplet/lua/5.1/?.so;;"
  prefix=("-DCMAKE_PREFIX_PATH=$root" "-DCMAKE_LIBRARY_ARCHITECTURE=$triplet"
    "-Dpacklua_cblas_INCLUDE=$root/include/$triplet/openblas-openmp" "-Dpacklua_cblas_LIBRARY=$blas/libopenblas.so")
fi

# --- the report ---

if [[ ! $output ]]; then output=runs/gpu-check-$(date -u +%Y%m%dT%H%M%SZ); fi
if [[ -e $output ]]; then refuse "$output: is there already"; fi
mkdir -p "$output" || exit 1
report=$output/report.md
passed=0 failed=0 skipped=0
started=$SECONDS

say() {
  printf '%s\n' "$1" | tee -a "$report"
}

# check NAME COMMAND...: one row of the report by its exit code (3: skipped); its output is in NAME.log.
check() {
  local name=$1 code=0 verdict began=$SECONDS
  shift
  "$@" > "$output/$name.log" 2>&1 || code=$?
  case $code in
    0) verdict=PASS passed=$((passed + 1)) ;;
    3) verdict=skipped skipped=$((skipped + 1)) ;;
    *) verdict=FAIL failed=$((failed + 1)) ;;
  esac
  say "| $name | $verdict | $((SECONDS - began)) s | $(tail -n 1 "$output/$name.log" | tr -d '\r|' | cut -c1-100) |"
  return "$code"
}

finish() {
  say ""
  say "$passed passed, $failed failed, $skipped skipped in $((SECONDS - started)) s; logs are in $output"
  if [[ $failed == 0 ]]; then say PASS; else say FAIL; fi
  [[ $failed == 0 ]]
  exit
}

packlua=$build/packlua
busted() { "$packlua" spec/support/busted.lua "$@"; }

# --- the checks ---

machine() {
  uname -a
  git describe --always --dirty 2> /dev/null
  nvidia-smi 2> /dev/null
  "${CUDACXX:-nvcc}" --version 2> /dev/null
  lscpu 2> /dev/null | head -n 20
  true
}

build_it() {
  local options=("${prefix[@]}") capability
  if [[ $device == emu ]]; then
    options+=(-DPACKLUA_CUDA=OFF -DPACKLUA_EMU=ON)
  else
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1 | tr -d .)
    options+=(-DPACKLUA_CUDA=ON)
    if [[ $capability ]]; then options+=("-DPACKLUA_CUDA_ARCHITECTURES=$capability"); fi
  fi
  if [[ ! -e $build/CMakeCache.txt ]] && command -v ninja > /dev/null; then options+=(-G Ninja); fi
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release "${options[@]}" && cmake --build "$build" --parallel "$(nproc)"
}

describe_device() {
  "$packlua" --devices
  "$packlua" -e "print(require('pack.core.context').create({device = '$device'}):describe())"
}

# The specs that compute something, with the device where they name none; those tagged #cpu say what the CPU alone does,
# such as refusing ids that are out of range, which other devices do not read before they compute.
specs_on_device() {
  local specs=(elementwise reduce move matmul embedding norm rope attention loss train_ops grad gradcheck second_order
    model optim trainer program recorded)
  if [[ $quick ]]; then specs=(matmul attention loss model trainer recorded); fi
  if [[ $quick && $device == emu ]]; then specs=(matmul loss recorded); fi
  specs=("${specs[@]/#/spec/}")
  PACKLUA_DEVICE=$device busted --exclude-tags=cpu "${specs[@]/%/_spec.lua}"
}

golden_cases() {
  local dtype=$1 cases
  if [[ ! $golden && -d ../shared/golden ]]; then golden=../shared/golden; fi
  cases=("${golden:-spec/fixtures}"/*.safetensors)
  [[ -e ${cases[0]} ]] || cases=("${golden:-spec/fixtures}"/*/*.safetensors)
  "$packlua" recipes/verify.lua --device "$device" --dtype "$dtype" "${cases[@]}"
}

sanitize() {
  if [[ $device == emu ]] || ! command -v compute-sanitizer > /dev/null; then
    echo "compute-sanitizer is not there"
    return 3
  fi
  PACKLUA_TEST_CASES=1 compute-sanitizer --tool "$1" --error-exitcode 9 --kernel-regex-exclude 'kns=cudnn' \
    "$packlua" spec/support/busted.lua spec/cuda_parity_spec.lua
}

steps=50 warmup=10 config=configs/20m.lua workers=(4 8)
repeats=3
if [[ $quick ]]; then steps=5 warmup=2 repeats=1; fi
if [[ $device == emu ]]; then steps=1 warmup=1 config=configs/smoke.lua; fi

measure() {
  "$packlua" recipes/benchmark.lua --config "$config" --num-models "${workers[@]}" --warmup "$warmup" --steps "$steps" \
    --dtype amp --device "$device" --repeats "$repeats" --set training.max_tokens=off --output "$output/benchmark"
}

# Kernels' times against their bytes and operations.
profile() {
  "$packlua" recipes/profile.lua --config "$config" --set runtime.amp=true --device "$device" --top 40 --warmup 3 --steps "$((steps > 3 ? 3 : steps))" \
    --set "decentralized.num_models=$1" --set "training.micro_batch_size=$2" --output "$output/profile-n$1"
}

peer() {
  if [[ $quick || $device == emu ]] || ! python3 -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
    echo "no PyTorch with this GPU, or --quick"
    return 3
  fi
  scripts/peers/compare.sh --device "$device" --packlua "$packlua" --output "$output/peer"
}

say "# packlua on $device"
say ""
say "| check | | time | last line |"
say "|---|---|---|---|"
check machine machine
check build build_it || finish
check device describe_device || finish
PACKLUA_TEST_DEVICE=$device PACKLUA_TEST_CASES=${quick:+3} check parity busted spec/cuda_parity_spec.lua
PACKLUA_TEST_DEVICE=$device check training busted spec/cuda_training_spec.lua
check specs specs_on_device
for dtype in f64 f32 amp; do check "golden-$dtype" golden_cases "$dtype"; done
for tool in memcheck racecheck initcheck synccheck; do check "$tool" sanitize "$tool"; done
check benchmark measure
if [[ $device == emu ]]; then
  check profile profile 4 4
else
  check profile-4 profile 4 8
  check profile-8 profile 8 4
fi
check peer peer
if [[ -e $output/benchmark/summary.md ]]; then
  say ""
  cat "$output/benchmark/summary.md" >> "$report"
fi
finish
