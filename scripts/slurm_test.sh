#!/usr/bin/env bash
# Runs scripts/slurm.sh against a Slurm of its own: scripts/slurm_test.sh [packlua]
# Needs Debian's slurmctld, slurmd, slurm-client and munge; no root. The daemons listen on the loopback alone, keep
# everything in a temporary folder, and are gone at the end. Without a packlua, the jobs build it, as they would on
# a cluster. Takes some minutes, so scripts/test.sh leaves it out; exit code 3 says that Slurm is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

for tool in slurmctld slurmd sbatch munged; do
  if ! command -v "$tool" > /dev/null; then
    echo "slurm_test.sh: $tool is not installed (apt-get install slurmctld slurmd slurm-client munge)" >&2
    exit 3
  fi
done

folder=$(mktemp -d)
export SLURM_CONF=$folder/slurm.conf
daemons=()
kept=''

# Ids of living processes that were started with this test's configuration: the daemons and what jobs run.
own_processes() {
  local file pid
  for file in /proc/[0-9]*/environ; do
    pid=${file//[!0-9]/}
    if [[ $pid != "$$" && $pid != "$BASHPID" ]] && grep -qsF "SLURM_CONF=$SLURM_CONF" "$file"; then echo "$pid"; fi
  done
}

# shellcheck disable=SC2317
finish() {
  local code=$? pid
  if [[ ${#daemons[@]} -gt 1 ]]; then scancel --quiet --user="$(id -un)" 2> /dev/null || true; fi
  if [[ ${#daemons[@]} -gt 1 ]]; then wait_until 20 no_jobs || true; fi
  for pid in "${daemons[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait "${daemons[@]}" 2> /dev/null || true
  for pid in $(own_processes); do kill -KILL "$pid" 2> /dev/null || true; done
  if [[ $code != 0 ]]; then kept=yes; fi
  if [[ $kept ]]; then
    echo "slurm_test.sh: FAIL; everything is kept in $folder" >&2
  else
    rm -rf "$folder"
  fi
  exit "$code"
}
trap finish EXIT

fail() {
  echo "FAIL: $*" >&2
  tail -n 25 "$folder"/work/runs/*.log >&2 || true
  exit 1
}

# wait_until SECONDS CONDITION...: the condition is a command. Fails when it does not come true.
wait_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    if ((SECONDS > end)); then return 1; fi
    sleep 0.2
  done
}

expect_within() { wait_until "$@" || fail "did not happen within $1 s: ${*:2}"; }

free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then break; fi
  done
  echo "$port"
}

# --- one node with four processors and a GPU in name, whatever the machine has ---

user=$(id -un) host=$(uname -n)
host=${host%%.*}
mkdir -p "$folder"/{state,spool,munge,work}
chmod 700 "$folder/munge"
cat > "$SLURM_CONF" << END_OF_CONF
ClusterName=packlua
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=30
MinJobAge=3600
MpiDefault=none
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:1 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=high Nodes=$host MaxTime=INFINITE PriorityTier=10 State=UP
END_OF_CONF
echo "NodeName=$host Name=gpu File=/dev/null" > "$folder/gres.conf"

head -c 1024 /dev/urandom > "$folder/munge/key"
chmod 600 "$folder/munge/key"
munged --foreground --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
  --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" --log-file="$folder/munge/log" \
  > "$folder/munged.out" 2>&1 &
daemons+=($!)
expect_within 20 test -S "$folder/munge/socket"
slurmctld -D > "$folder/slurmctld.out" 2>&1 &
daemons+=($!)
slurmd -D -N "$host" > "$folder/slurmd.out" 2>&1 &
daemons+=($!)

# --- what the checks look at ---

node_is_idle() { [[ $(sinfo --noheader --format=%t 2> /dev/null | head -1) == idle ]]; }
no_jobs() { [[ -z $(squeue --noheader 2> /dev/null) ]]; }
field() { scontrol --oneliner show job "$1" | grep -oE "(^| )$2=[^ ]*" | head -1 | cut -d= -f2; }
state_is() { [[ $(field "$1" JobState) == "$2" ]]; }
steps() { if [[ -e $1/metrics.jsonl ]]; then grep -c '"step_seconds"' "$1/metrics.jsonl" || true; else echo 0; fi; }
has_steps() { (($(steps "$1") > $2)); }
restarted() { [[ $(field "$1" Restarts) == "$2" ]]; }

# A requeued job is held back for two minutes; here it need not be.
start_now() {
  expect_within 60 state_is "$1" PENDING
  scontrol update JobId="$1" StartTime=now
  expect_within 60 state_is "$1" RUNNING
}

# What must be equal: metrics without times, the evaluations, and all weights without the header.
outcome() {
  sed -E 's/,"(step_seconds|tokens_per_second|memory_bytes)":[^,}]*//g' "$1/metrics.jsonl"
  grep -vE '"(run_seconds|finished|step_seconds|tokens_per_second|memory_bytes)"' "$1/result.json"
  (cd "$1" && for file in epoch-*.safetensors node-*/epoch-*.safetensors; do
    echo "$file $(tail -c "$weight_bytes" "$file" | sha256sum)"
  done)
}

pass() { echo "PASS $*"; }

expect_within 60 node_is_idle
pass "a Slurm of one node: $(sinfo --version), $host"

# --- jobs build the program, all at once, and run as an array ---

home=$PWD
cd "$folder/work"
for ((i = 1; i <= 400; i++)); do echo "worker $((i * 7 % 11)) mixes with worker $((i * 5 % 7)), line $i"; done > text.txt
program=()
if [[ ${1-} ]]; then program=(--program "$(cd "$OLDPWD" && realpath -e "$1")"); fi
submit() { "$home/scripts/slurm.sh" "${program[@]}" "$@" | grep -oE '[0-9]+$'; }

# The smoke configuration, longer. Its states are large beside its steps.
settings=(--sample 0 --config "$home/configs/smoke.lua" --set data.text=text.txt --set data.tokenizer=bytes
  --set runtime.threads=1 --set training.checkpoint_steps=400 --set training.checkpoint_policy=final)
weight_bytes=400000 # of more than this, the header is a small part

# The settings of a run of so many steps, in two epochs.
length() {
  echo "--set training.max_tokens=$((2048 * $1)) --set training.epoch_tokens=$((1024 * $1))" \
    "--set training.tokens_per_parameters=100000"
}

# shellcheck disable=SC2046
array=$(submit --cpu --cpus 1 --array 1-3 --name seeds "$home/recipes/train.lua" "${settings[@]}" $(length 20) \
  --set runtime.seed=%a --output runs/seed-%a)
finished() { [[ $(find "$1" -name result.json | wc -l) == "$2" ]]; }
expect_within 900 finished runs 3
expect_within 60 no_jobs
for i in 1 2 3; do
  grep -q "\"seed\": $i" "runs/seed-$i/resolved.json" || fail "run $i has another seed"
  [[ -e runs/slurm-seeds-${array}_$i.log ]] || fail "job $i of the array has no log"
done
pass "an array of three runs, each with its seed, folder and log"
if [[ ${#program[@]} == 0 ]]; then
  program=(--program "$home/build-$(uname -m)/packlua")
  pass "three jobs at once built ${program[1]} once"
fi

# --- one run, undisturbed and interrupted in every way ---

# Long enough for three interruptions on any machine: about a hundred seconds.
per_step=$(grep -oE '"step_seconds":[0-9.e-]+' runs/seed-1/metrics.jsonl | cut -d: -f2 | sort -g | sed -n 10p)
total=$(awk -v each="$per_step" 'BEGIN { print 2 * int(50 / each) }')
echo "     $total steps of $per_step s"

# shellcheck disable=SC2046
command=$("$home/scripts/slurm.sh" "${program[@]}" --dry-run --cpus 1 --time 1 --grace 60 "$home/recipes/train.lua" \
  "${settings[@]}" $(length "$total"))
job=$(eval "$command" | grep -oE '[0-9]+$')
run=runs/train-$job
scontrol update JobId="$job" TimeLimit=60
pass "what --dry-run prints can be submitted: job $job with $(field "$job" TresPerJob)"

expect_within 60 has_steps "$run" 20
urgent=$(sbatch --parsable --partition=high --exclusive --output=/dev/null --wrap='sleep 1')
expect_within 60 state_is "$urgent" COMPLETED
expect_within 60 restarted "$job" 1
compgen -G "$run/step-*.state.safetensors.zst" > /dev/null || fail "the preempted run saved nothing"
before=$(steps "$run")
start_now "$job"
pass "preempted by job $urgent after $before steps, saved, requeued and started again"

expect_within 60 has_steps "$run" $((before + 20))
scontrol update JobId="$job" TimeLimit=1
expect_within 120 restarted "$job" 2
grep -q 'got SIGUSR1' "runs/slurm-train-$job.log" || fail "Slurm's warning did not arrive"
before=$(steps "$run")
((before < total)) || fail "the run was over before Slurm's warning came"
scontrol update JobId="$job" TimeLimit=60
start_now "$job"
pass "warned of the time limit, saved after $before steps, requeued itself and started again"

expect_within 60 has_steps "$run" $((before + 20))
scontrol requeue "$job"
expect_within 60 restarted "$job" 3
before=$(steps "$run")
((before < total)) || fail "the run was over before it was requeued"
start_now "$job"
pass "requeued by hand after $before steps, and started again"

expect_within 900 state_is "$job" COMPLETED
[[ $(grep -c 'continuing the run' "runs/slurm-train-$job.log") == 3 ]] || fail "not continued three times"
# shellcheck disable=SC2046
"${program[1]}" "$home/recipes/train.lua" "${settings[@]}" $(length "$total") --output whole > whole.log
outcome whole > expected
outcome "$run" > got
diff expected got || fail "the interrupted run differs from an undisturbed one"
pass "$(grep -c . got) lines of metrics, results and digests of weights are those of an undisturbed run"

# --- a job that is cancelled stays away ---

# shellcheck disable=SC2046
cancelled=$(submit --cpu --cpus 1 "$home/recipes/train.lua" "${settings[@]}" $(length "$total"))
expect_within 60 has_steps "runs/train-$cancelled" 5
scancel "$cancelled"
expect_within 60 no_jobs
state_is "$cancelled" CANCELLED || fail "the cancelled job is $(field "$cancelled" JobState)"
compgen -G "runs/train-$cancelled/step-*.state.safetensors.zst" > /dev/null || fail "the cancelled run saved nothing"
pass "cancelled, saved, and not requeued"

# --- a sweep as an array, one of its jobs preempted ---

# shellcheck disable=SC2054,SC2207
sweep=("${program[1]}" recipes/sweep.lua --config "$home/configs/smoke.lua" --set data.text=text.txt
  --set data.tokenizer=bytes --set runtime.threads=1 --set training.checkpoint_policy=final $(length 100)
  --over decentralized.topology=complete,one_peer_ring --over runtime.seed=42,43 --output sweep)
array=$(PACKLUA_SLURM_GPUS=0 PACKLUA_SLURM_CPUS=1 PACKLUA_SLURM_PROGRAM=${program[1]} "${sweep[@]}" --slurm --jobs 2 |
  grep -oE '[0-9]+$')
has_started() { compgen -G 'sweep/*/metrics.jsonl' > /dev/null && has_steps "$(dirname sweep/*/metrics.jsonl | head -1)" 5; }
expect_within 60 has_started
scontrol requeue "${array}_1"
expect_within 60 restarted "${array}_1" 1
start_now "${array}_1"
expect_within 300 finished sweep 4
expect_within 60 no_jobs
"${sweep[@]}" --collect > collect.log
[[ $(tail -n +2 sweep/summary.csv | grep -c complete) == 4 ]] || fail "summary.csv has not four complete runs"
pass "a sweep of four runs, as an array of two jobs at a time, one of them requeued: $(head -1 collect.log)"

cd "$home"
scancel --quiet --user="$user" || true
for pid in "${daemons[@]}"; do kill "$pid"; done
wait "${daemons[@]}" 2> /dev/null || true
daemons=()
left() { [[ -z $(own_processes) ]]; }
expect_within 20 left
pass "no daemon and no job is left"
