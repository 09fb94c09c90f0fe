#!/usr/bin/env bash
# Runs packlua and the same training step in PyTorch alternately, and prints a table of medians, spread and ratios:
#   scripts/peers/compare.sh [--quick] [--config FILE] [--workers N] [--rounds R] ... (--help lists all)
# PYTHON is a Python that has torch (default python3), PACKLUA the program (default build/packlua).
#   python3 -m venv venv && venv/bin/pip install torch && PYTHON=venv/bin/python scripts/peers/compare.sh --quick
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} PACKLUA=${PACKLUA:-build/packlua}
if [[ ! -x $PACKLUA ]]; then
  echo "compare.sh: there is no $PACKLUA; run scripts/setup.sh, or set PACKLUA" >&2
  exit 2
fi
if [[ " $* " != *" --help "* ]] && ! "$PYTHON" -c 'import torch' 2> /dev/null; then
  echo "compare.sh: $PYTHON has no torch: python3 -m venv venv && venv/bin/pip install torch, then PYTHON=venv/bin/python" >&2
  exit 2
fi
export PYTHON PACKLUA
exec "$PACKLUA" scripts/peers/compare.lua "$@"
