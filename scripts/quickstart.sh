#!/usr/bin/env bash
# From a fresh checkout to a trained model: scripts/quickstart.sh [options of recipes/train.lua]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
exec build/packlua recipes/train.lua "$@"
