#!/usr/bin/env bash
# Lints over the whole tree: scripts/lint.sh [luacheck|clang-format|shellcheck|clang-tidy|lua-docs|rooms]...
# Without a name, all of them. Exit code 0 clean, 1 findings, 3 the tool is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

# The C files that the build compiles; a kernel is checked in one of its instruction sets.
compiled_files() {
  find host spec/fuzz -name '*.c' | sort | while read -r file; do
    if grep -qF "/$file\"" build/compile_commands.json; then echo "$file"; fi
  done
}

lint() {
  local tool=$1
  if [[ $1 == lua-docs || $1 == rooms ]]; then tool=build/packlua; fi
  if ! command -v "$tool" > /dev/null; then
    echo "lint.sh: $tool is not there"
    return 3
  fi
  case $1 in
    lua-docs) build/packlua scripts/lua_docs.lua --check ;;
    rooms) build/packlua scripts/rooms.lua ;;
    luacheck) luacheck --quiet --codes . ;;
    clang-format) find host spec kernels -name '*.[ch]' -print0 -o -name '*.cpp' -print0 -o -name '*.cu' -print0 |
      xargs -0 clang-format --dry-run --Werror ;;
    shellcheck) find scripts spec -name '*.sh' -print0 | xargs -0 shellcheck .ci/run ;;
    clang-tidy) compiled_files | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build \
      --extra-arg=-Wno-unknown-warning-option ;;
  esac
}

if [[ $# == 0 ]]; then set -- luacheck clang-format shellcheck clang-tidy lua-docs rooms; fi
code=0
for name in "$@"; do
  case $name in
    luacheck | clang-format | shellcheck | clang-tidy | lua-docs | rooms) lint "$name" || code=$? ;;
    *)
      echo "lint.sh: there is no lint '$name'" >&2
      exit 2
      ;;
  esac
done
if [[ $code == 0 || $code == 3 ]]; then exit "$code"; fi
exit 1
