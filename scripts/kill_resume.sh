#!/usr/bin/env bash
# Ends training runs at random moments, resumes them, and compares what they leave with an uninterrupted run:
#   scripts/kill_resume.sh [TIMES] [packlua] [SIGNAL...]
# TIMES runs, each ended up to five times, by signals drawn from the list: kill -9, or one that the run saves on. A run
# saves a state every step and keeps one, so that many come while it saves; where workers do not average completely, a
# wrong one shows. Prints one line per run, and how often each signal came; fails at the first difference, crash or code
# that docs/runs.md does not promise. With LEAST=N in the environment there are more runs, until each signal has come N times.
set -euo pipefail
cd "$(dirname "$0")/.."
# What this script's caller ignores, as nohup does SIGHUP, its programs would ignore too.
if [[ $(trap -p) == *"trap -- '' "* ]]; then
  env --default-signal true 2> /dev/null || { echo "signals are ignored here; run it without nohup" && exit 3; }
  exec env --default-signal "scripts/${0##*/}" "$@"
fi
set -m # a job of its own for each run, or it would ignore SIGINT

times=${1:-50}
program=${2:-build/packlua}
if [[ $# -gt 2 ]]; then signals=("${@:3}"); else signals=(KILL KILL TERM INT USR1 HUP); fi
topologies=(ring one_peer_ring disconnected)
folder=$(mktemp -d)
# A child that a signal ends before it becomes the program would do this too.
trap '[[ $BASHPID != "$$" ]] || rm -rf "$folder"' EXIT

for ((i = 1; i <= 400; i++)); do echo "worker $((i * 7 % 11)) mixes with worker $((i * 5 % 7)), line $i"; done \
  > "$folder/text.txt"
settings=(
  --set "data.text=$folder/text.txt" --set model.layers=2 --set model.width=32 --set model.heads=2
  --set model.ffn_width=48 --set model.context_length=16 --set training.batch_tokens=256
  --set decentralized.num_models=4 --set training.micro_batch_size=4 --set training.max_tokens=10240
  --set training.epoch_tokens=2560 --set evaluation.subset_blocks=8 --set evaluation.batch_size=8
  --set training.checkpoint_steps=1 --set training.keep=1
)

# What must be equal: metrics without times, and the final weights without the header.
outcome() {
  sed -E 's/,"(step_seconds|tokens_per_second|memory_bytes)":[^,}]*//g' "$1/metrics.jsonl"
  for file in "$1"/epoch-004.safetensors "$1"/node-*/epoch-004.safetensors; do tail -c 100000 "$file" | sha256sum; done
}

for topology in "${topologies[@]}"; do
  began=$(date +%s%N)
  "$program" recipes/train.lua --sample 0 --output "$folder/$topology" "${settings[@]}" \
    --set "decentralized.topology=$topology" > /dev/null
  span=$((($(date +%s%N) - began) / 1000000)) # milliseconds of a whole run
  outcome "$folder/$topology" > "$folder/$topology.expected"
done

# rows RUN: its lines of metrics.
rows() {
  if [[ -e $1/metrics.jsonl ]]; then wc -l < "$1/metrics.jsonl"; else echo 0; fi
}

# promised CODE SIGNAL RUN ROWS: whether a process that had ROWS lines before it may end so.
promised() {
  local code=$1 signal=$2 run=$3 number
  number=$(kill -l "$signal")
  if [[ $code == 75 ]]; then compgen -G "$run/*.state.safetensors.zst" > /dev/null && return; fi
  if [[ -e $run/result.json ]]; then [[ $code == 0 || $code == $((128 + number)) ]] && return; fi
  # Before the training begins there is nothing to save.
  if [[ $code == $((128 + number)) ]]; then [[ $signal == KILL || $(rows "$run") -le $4 ]] && return; fi
  return 1
}

declare -A sent=()

# Whether some signal has not come LEAST times yet.
lacks_some() {
  local one
  for one in "${signals[@]}"; do
    if ((${sent[$one]:-0} < ${LEAST:-0})); then return 0; fi
  done
  return 1
}

for ((i = 1; ; i++)); do
  if ((i > times)) && ! lacks_some; then break; fi
  run=$folder/run
  topology=${topologies[i % 3]}
  rm -rf "$run"
  ends=""
  before=0
  command=(recipes/train.lua --sample 0 --output "$run" "${settings[@]}" --set "decentralized.topology=$topology")
  for ((life = 1; life <= 5; life++)); do
    signal=${signals[RANDOM % ${#signals[@]}]}
    "$program" "${command[@]}" > "$folder/printed" 2>&1 &
    pid=$!
    # There is something to continue from once the first state is there.
    until compgen -G "$run/*.state.safetensors.zst" > /dev/null || ! kill -0 "$pid" 2> /dev/null; do sleep 0.01; done
    sleep "$(printf '0.%03d' $((RANDOM % (span < 1000 ? span : 1000))))"
    if kill -s "$signal" "$pid" 2> /dev/null; then
      ends="$ends $signal"
      sent[$signal]=$((${sent[$signal]:-0} + 1))
    fi
    code=0
    wait "$pid" 2> /dev/null || code=$?
    if [[ $code != 0 ]] && ! promised "$code" "$signal" "$run" "$before"; then
      echo "run $i ($topology,$ends): exit code $code"
      tail -n 5 "$folder/printed"
      exit 1
    fi
    before=$(rows "$run")
    command=(recipes/resume.lua "$run")
    if [[ -e $run/result.json ]]; then break; fi
  done
  if [[ ! -e $run/result.json ]]; then "$program" "${command[@]}" > /dev/null; fi
  outcome "$run" > "$folder/got"
  if ! cmp -s "$folder/$topology.expected" "$folder/got"; then
    echo "run $i ($topology,$ends): DIFFERS"
    diff "$folder/$topology.expected" "$folder/got" | head -5
    exit 1
  fi
  leftover=$(find "$run" -name '*.tmp-*')
  if [[ -n $leftover ]]; then
    echo "run $i left $leftover"
    exit 1
  fi
  echo "run $i ($topology,$ends): the same"
done
for signal in "${!sent[@]}"; do echo "$signal ${sent[$signal]} times"; done
