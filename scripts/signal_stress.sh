#!/usr/bin/env bash
# Sends signals at random moments of all that packlua does, and looks that each time happens what docs/runs.md promises:
#   scripts/signal_stress.sh [TIMES] [packlua]
# TIMES of each kind of signal: two thirds in training runs, their evaluations and savings, by scripts/kill_resume.sh,
# which compares what they leave; the rest in sweeps, benchmarks, evaluations and at the prompt. Fails at the first
# crash, exit code that is not promised, or number that differs.
set -euo pipefail
cd "$(dirname "$0")/.."
# What this script's caller ignores, as nohup does SIGHUP, its programs would ignore too.
if [[ $(trap -p) == *"trap -- '' "* ]]; then
  env --default-signal true 2> /dev/null || { echo "signals are ignored here; run it without nohup" && exit 3; }
  exec env --default-signal "scripts/${0##*/}" "$@"
fi
set -m # a job of its own for each program, or it would ignore SIGINT

times=${1:-10}
program=$(realpath "${2:-build/packlua}")
signals=(TERM INT USR1 USR2 HUP XCPU PIPE)
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
)

die() {
  echo "$1"
  tail -n 5 "$folder/printed"
  exit 1
}

# disturb SIGNAL COMMAND...: runs it, sends the signal at some moment, and leaves its exit code in code. The moment
# is within the time that the last undisturbed one took, in span.
disturb() {
  local signal=$1 pid
  shift
  "$@" > "$folder/printed" 2>&1 < /dev/null &
  pid=$!
  sleep "$(printf '%d.%03d' $((RANDOM % span / 1000)) $((RANDOM % (span < 1000 ? span : 1000))))"
  kill -s "$signal" "$pid" 2> /dev/null || true
  code=0
  wait "$pid" 2> /dev/null || code=$?
}

# measure COMMAND...: runs it undisturbed; its time goes into span, milliseconds.
measure() {
  local began
  began=$(date +%s%N)
  "$@" > "$folder/printed" 2>&1 < /dev/null || die "$*: exit code $?"
  span=$((($(date +%s%N) - began) / 1000000))
}

# expect NAME SIGNAL CODE...: fails unless code is one of them, or what ends a program that has no handler yet.
expect() {
  local name=$1 signal=$2 one
  shift 2
  for one in "$@" $((128 + $(kill -l "$signal"))); do
    if [[ $code == "$one" ]]; then return 0; fi
  done
  die "$name, SIG$signal: exit code $code"
}

# --- what is disturbed ---

sweep=("$program" recipes/sweep.lua "${settings[@]}" --over "runtime.seed=1,2" --jobs 2 --output)
losses() {
  grep -ho '"loss":[^,}]*' "$1"/*/result.json
}

disturb_sweep() {
  rm -rf "$folder/sweep"
  disturb "$1" "${sweep[@]}" "$folder/sweep"
  expect sweep "$1" 0 75 130
  "${sweep[@]}" "$folder/sweep" > "$folder/printed" 2>&1 || die "the sweep does not go on after SIG$1: exit code $?"
  losses "$folder/sweep" > "$folder/got"
  cmp -s "$folder/losses" "$folder/got" || die "sweep, SIG$1: DIFFERS"
}

benchmark=("$program" recipes/benchmark.lua "${settings[@]}" --set runtime.memory_limit_mib=64 --num-models 4
  --executions compiled --warmup 1 --steps 2 --repeats 1 --output)
disturb_benchmark() {
  rm -rf "$folder/benchmark"
  disturb "$1" "${benchmark[@]}" "$folder/benchmark"
  expect benchmark "$1" 0 130
}

evaluate=("$program" recipes/evaluate.lua --checkpoint "$folder/run/epoch-004.safetensors" --text "$folder/text.txt"
  --full --output)
disturb_evaluation() {
  disturb "$1" "${evaluate[@]}" "$folder/evaluation.json"
  expect evaluate "$1" 0 130
}

# Steps and evaluations without end at the prompt, which SIGINT alone ends and goes on after; the trainer is whole then.
cat > "$folder/lines" <<'END'
open = pack.trainer.open
while not run do pcall(function() run = open(arg[1], {"training.max_tokens=25600000"}) end) end
io.write("runs\n") io.flush() while true do run:step() run:evaluate {blocks = 8} end
io.write(run:cursor() == run.step_number * run.batches.batch_samples and "whole\n" or "torn\n")
END
disturb_prompt() {
  local pid code=0
  : > "$folder/printed"
  "$program" -i -e "arg[1] = '$folder/run/resolved.json'" < "$folder/lines" > "$folder/printed" 2>&1 &
  pid=$!
  until grep -q runs "$folder/printed" || ! kill -0 "$pid" 2> /dev/null; do sleep 0.02; done
  sleep "$(printf '0.%03d' $((RANDOM % 300)))"
  while kill -s "$1" "$pid" 2> /dev/null; do sleep 0.2; done
  wait "$pid" 2> /dev/null || code=$?
  if [[ $1 == INT ]]; then
    if [[ $code != 0 ]] || ! grep -q whole "$folder/printed"; then die "prompt, SIGINT: exit code $code"; fi
  else
    expect prompt "$1"
  fi
}

# --- the runs ---

if ((times * 2 / 3 > 0)); then
  LEAST=$((times * 2 / 3)) scripts/kill_resume.sh 1 "$program" "${signals[@]}" > "$folder/printed" ||
    die "training"
  tail -n ${#signals[@]} "$folder/printed"
fi

measure "$program" recipes/train.lua --sample 0 --output "$folder/run" "${settings[@]}"
measure "${sweep[@]}" "$folder/whole"
sweep_span=$span
losses "$folder/whole" > "$folder/losses"
measure "${benchmark[@]}" "$folder/benchmark"
benchmark_span=$span
measure "${evaluate[@]}" "$folder/evaluation.json"
evaluation_span=$span
kinds=(sweep benchmark evaluation prompt)
for ((i = 0; i < times - times * 2 / 3; i++)); do
  for ((s = 0; s < ${#signals[@]}; s++)); do
    kind=${kinds[(i + s) % 4]}
    case $kind in
      sweep) span=$sweep_span ;;
      benchmark) span=$benchmark_span ;;
      evaluation) span=$evaluation_span ;;
    esac
    "disturb_$kind" "${signals[s]}" 2> /dev/null # where the shell would say how jobs ended
  done
done
echo "$((7 * (times - times * 2 / 3))) signals to sweeps, benchmarks, evaluations and prompts: as promised"
