#!/usr/bin/env bash
# Kills training runs at random moments, resumes them, and compares what they leave with an uninterrupted run:
#   scripts/kill_resume.sh [TIMES] [packlua]
# A run saves a state every step and keeps one, so that most kills come while it saves. Prints one line per
# kill; fails at the first difference.
set -euo pipefail
cd "$(dirname "$0")/.."

times=${1:-50}
program=${2:-build/packlua}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for ((i = 1; i <= 400; i++)); do echo "worker $((i * 7 % 11)) mixes with worker $((i * 5 % 7)), line $i"; done \
  > "$folder/text.txt"
settings=(
  --set "data.text=$folder/text.txt" --set model.layers=2 --set model.width=32 --set model.heads=2
  --set model.ffn_width=48 --set model.context_length=16 --set training.batch_tokens=256
  --set training.micro_batch_size=4 --set training.max_tokens=10240 --set training.epoch_tokens=2560
  --set evaluation.subset_blocks=8 --set evaluation.batch_size=8 --set training.checkpoint_steps=1
  --set training.keep=1
)

# What must be equal: metrics without times, and the final weights without the header.
outcome() {
  sed -E 's/,"(step_seconds|tokens_per_second|memory_bytes)":[^,}]*//g' "$1/metrics.jsonl"
  for file in "$1"/epoch-004.safetensors "$1"/node-*/epoch-004.safetensors; do tail -c 100000 "$file" | sha256sum; done
}

"$program" recipes/train.lua --sample 0 --output "$folder/whole" "${settings[@]}" > /dev/null
outcome "$folder/whole" > "$folder/expected"

for ((i = 1; i <= times; i++)); do
  run=$folder/run
  rm -rf "$run"
  "$program" recipes/train.lua --sample 0 --output "$run" "${settings[@]}" > /dev/null 2>&1 &
  kills=0
  until [[ -e $run/result.json ]]; do
    pid=$!
    # There is something to continue from once the first state is there.
    until compgen -G "$run/*.state.safetensors.zst" > /dev/null || ! kill -0 "$pid" 2> /dev/null; do sleep 0.01; done
    sleep "0.$((RANDOM % 5))$((RANDOM % 10))"
    if kill -9 "$pid" 2> /dev/null; then kills=$((kills + 1)); fi
    wait "$pid" 2> /dev/null || true
    if [[ -e $run/result.json ]]; then break; fi
    if [[ $kills -lt 3 ]]; then
      "$program" recipes/resume.lua "$run" > /dev/null 2>&1 &
    else
      "$program" recipes/resume.lua "$run" > /dev/null
      break
    fi
  done
  outcome "$run" > "$folder/got"
  if ! cmp -s "$folder/expected" "$folder/got"; then
    echo "run $i, killed $kills times: DIFFERS"
    diff "$folder/expected" "$folder/got" | head -5
    exit 1
  fi
  leftover=$(find "$run" -name '*.tmp-*')
  if [[ -n $leftover ]]; then
    echo "run $i left $leftover"
    exit 1
  fi
  echo "run $i, killed $kills times: the same"
done
