#!/usr/bin/env bash
# Installs what is missing, configures and builds into build/.
#   scripts/setup.sh [--all] [-DNAME=VALUE...]
# --all also installs what the tests and lints need; -D options go to cmake.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" > /dev/null 2>&1; }
have_header() { echo "#include <$1>" | "${CC:-cc}" -E -x c - > /dev/null 2>&1; }
have_module() { have pkg-config && pkg-config --exists "$1"; }

all=
options=()
for option in "$@"; do
  case $option in
    --all) all=yes ;;
    -D*) options+=("$option") ;;
    *)
      echo "setup.sh: unknown option '$option'; known: --all, -DNAME=VALUE" >&2
      exit 2
      ;;
  esac
done

# Packages whose content is not there, however it may have come there.
missing=()
need() {
  local package=$1
  shift
  "$@" || missing+=("$package")
}
need gcc have "${CC:-cc}"
need libc6-dev have_header stdio.h
need cmake have cmake
need ninja-build have ninja
need pkg-config have pkg-config
need libluajit-5.1-dev have_module luajit
need libcjson-dev have_module libcjson
need libzstd-dev have_module libzstd
need zlib1g-dev have_module zlib
need libyaml-dev have_module yaml-0.1
need nettle-dev have_module nettle
need libopenblas-openmp-dev have_module openblas
need libdnnl-dev have_header dnnl.h
need libedit-dev have_module libedit
need g++ have "${CXX:-c++}"
need libsentencepiece-dev have_module sentencepiece
need gnuplot-nox have gnuplot
if [[ $all ]]; then
  need lua-busted have busted
  need lua-check have luacheck
  need clang-format have clang-format
  need clang-tidy have clang-tidy
  need shellcheck have shellcheck
  need sentencepiece have spm_train
  need clang have clang
  if [[ $(uname -m) != aarch64 ]]; then
    need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
  fi
fi

# The libraries of own builds are known to CMAKE_PREFIX_PATH alone; then cmake has the last word.
install_missing() {
  local root=()
  if ! have apt-get; then
    echo "setup.sh: this system has no apt-get." >&2
    return 1
  fi
  if [[ $(id -u) != 0 ]]; then
    if ! have sudo || ! { sudo -n true 2> /dev/null || [[ -t 0 ]]; }; then
      echo "setup.sh: installing packages needs root." >&2
      return 1
    fi
    root=(sudo)
  fi
  local install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "${missing[@]}")
  echo "setup.sh: installing ${missing[*]}"
  "${install[@]}" || { "${root[@]}" apt-get update && "${install[@]}"; }
}
if [[ ${#missing[@]} != 0 ]] && ! install_missing; then
  cat >&2 << END
setup.sh: not found: ${missing[*]}
  With root:  apt-get install ${missing[*]}
  Without:    docs/install.md shows a build against libraries in a folder of your own.
Going on with what is there.
END
fi

# Ninja notices changed files and options itself, so a second run has nothing to do here.
if [[ ! -e build/CMakeCache.txt || ${#options[@]} != 0 ]]; then
  generator=()
  if [[ ! -e build/CMakeCache.txt ]] && have ninja; then generator=(-G Ninja); fi
  cmake --preset release "${generator[@]}" "${options[@]}"
fi
cmake --build build --parallel "$(nproc)"
echo "setup.sh: build/packlua is ready"
