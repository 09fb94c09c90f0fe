#!/usr/bin/env bash
# What a job submitted by scripts/slurm.sh runs on its node:
#   slurm_job.sh [--offset N] HOME SETUP PROGRAM RESUME RECIPE [ARGUMENTS...]    (SETUP and PROGRAM may be empty)
# N is added to the number of a job in an array, as %a in ARGUMENTS.
# Builds packlua for this architecture if need be and runs the recipe. When Slurm warns that the time is nearly up,
# packlua saves and ends with 75, and the job goes back into the queue. Started again, it continues the run.
set -euo pipefail

offset=0
if [[ $1 == --offset ]]; then
  offset=$2
  shift 2
fi
home=$1 setup=$2 program=$3 resume=$4
shift 4

say() { echo "slurm_job.sh: $(date -u +%Y-%m-%dT%H:%M:%SZ) $*"; }

# USR1 is the warning, after which this script requeues the job. TERM comes from a cancellation, after which it
# must not, or from a preemption, where Slurm does that itself. Packlua saves in any case.
warned='' ended='' child=''
# shellcheck disable=SC2317
forward() {
  say "got SIG$1"
  if [[ $child ]]; then kill -USR1 "$child" 2> /dev/null || true; fi
}
trap 'warned=yes; forward USR1' USR1
trap 'ended=yes; forward TERM' TERM

restarts=${SLURM_RESTART_COUNT:-0}
say "job $SLURM_JOB_ID on $(uname -n) ($(uname -m)), start $((restarts + 1))"

# A setup is written for interactive shells, where unset variables are no errors.
if [[ $setup ]]; then
  set +u
  # shellcheck disable=SC1090
  source "$setup"
  set -u
fi

# One build folder per architecture, as login and compute nodes differ; one job at a time makes it, or brings it up
# to date. It is configured each time, as only nodes with a GPU have what the CUDA device needs.
if [[ ! $program ]]; then
  build=$home/build-$(uname -m)
  program=$build/packlua
  mkdir -p "$build"
  {
    flock 9 || { say "$build cannot be locked; --program names a packlua that is there already" && exit 1; }
    cmake -S "$home" -B "$build" -DCMAKE_BUILD_TYPE=Release -DPACKLUA_EMU=OFF
    cmake --build "$build" --parallel "$(nproc)"
  } 9> "$build/job.lock"
fi

# The recipe's arguments, with the job's numbers in them, and the folder that they name.
arguments=() output='' previous='' index=%a
if [[ ${SLURM_ARRAY_TASK_ID-} ]]; then index=$((SLURM_ARRAY_TASK_ID + offset)); fi
for argument in "$@"; do
  argument=${argument//%j/$SLURM_JOB_ID}
  argument=${argument//%A/${SLURM_ARRAY_JOB_ID-%A}}
  argument=${argument//%a/$index}
  if [[ $previous == --output ]]; then output=$argument; fi
  if [[ $argument == --output=* ]]; then output=${argument#*=}; fi
  arguments+=("$argument")
  previous=$argument
done

# A job that is started again continues the run in its folder. Recipes whose folder is not a run, such as a
# sweep, are started as before and know what is done.
if [[ $restarts != 0 && $output ]]; then
  if [[ -e $output/result.json && -e $output/run.lock ]]; then
    say "the run in $output is finished"
    exit 0
  elif compgen -G "$output/*.state.safetensors.zst" > /dev/null; then
    say "continuing the run in $output"
    arguments=("$resume" "$output")
  elif [[ -e $output/run.lock ]] && grep -qE "\"job\": *\"$SLURM_JOB_ID\"" "$output/environment.json"; then
    say "the run in $output had saved nothing yet; keeping what it left as $output.attempt-$restarts"
    mv -T "$output" "$output.attempt-$restarts"
  fi
fi

code=75 # the warning came while packlua was being built
if [[ ! $warned && ! $ended ]]; then
  say "$program ${arguments[*]}"
  "$program" "${arguments[@]}" &
  child=$!
  # A signal ends wait early, so it is called until the program is gone.
  while kill -0 "$child" 2> /dev/null; do wait "$child" || true; done
  code=0
  wait "$child" || code=$?
fi

# 138: the warning came while packlua did not heed it, before or after training. A recipe that never does would
# only begin again.
has_runs() { [[ $output ]] && { [[ -e $output/run.lock ]] || compgen -G "$output/*/run.lock" > /dev/null; }; }
if [[ $warned && $code == 138 ]] && has_runs; then code=75; fi
say "exit code $code"
if [[ $code == 75 && ! ($ended && ! $warned) ]]; then
  # Slurm ends this script when it has the job back in the queue.
  scontrol requeue "$SLURM_JOB_ID" || say "the job cannot be requeued"
fi
exit "$code"
