#!/usr/bin/env bash
# Reads all C of the host as a compiler for aarch64 would, warnings being errors: what is there for x86 alone, without
# an alternative, is found. Needs clang and the headers of libc for aarch64 (Debian: libc6-dev-arm64-cross);
# exit code 3, skipped, without them.
set -euo pipefail
cd "$(dirname "$0")/.."
headers=/usr/aarch64-linux-gnu/include
if ! command -v clang > /dev/null || [[ ! -e $headers/stdio.h ]]; then
  echo "aarch64_check.sh: skipped, there is no clang or no $headers"
  exit 3
fi
# Other libraries' headers are the same for all processors; libc's come first from those for aarch64.
flags=(--target=aarch64-linux-gnu -fsyntax-only -std=c11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror
  -Wno-unused-command-line-argument -ffp-contract=off -D_GNU_SOURCE= -Ihost
  -nostdlibinc -isystem "$headers" -idirafter /usr/include
  -DPK_HAVE_DNNL=1 -DPK_HAVE_CBLAS=1 -DPK_HAVE_OPENBLAS=1 -DPK_CBLAS_LIBRARY='"libopenblas.so.0"' -DPK_VERSION='"0"' -DPK_REVISION='"0"'
  -DPK_DATA_FOLDER='"."' -DPK_LIBRARY_FOLDER='"."' -DPK_ISA=neon)
for module in luajit libcjson nettle openblas libedit; do
  for flag in $(pkg-config --cflags-only-I "$module" 2> /dev/null); do flags+=(-idirafter "${flag#-I}"); done
done
printf '%s\n' host/*.c host/{base,core,program,cpu,data,io}/*.c | xargs -P "$(nproc)" -n 8 clang "${flags[@]}"
