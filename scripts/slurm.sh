#!/usr/bin/env bash
# Submits a recipe to Slurm: scripts/slurm.sh [options] RECIPE [ARGUMENTS of the recipe...]
# The job builds packlua for the node's architecture if need be, saves and requeues itself before its time is
# up, and then goes on where it was; scripts/slurm_job.sh is what runs there. docs/guide.md shows a whole study.
set -euo pipefail

usage() {
  cat << 'END_OF_USAGE'
usage: scripts/slurm.sh [options] RECIPE [ARGUMENTS...]

  --account NAME     whom the job is charged to
  --partition NAME
  --qos NAME
  --time LIMIT       such as 4:00:00; a run that needs longer goes on in the next job
  --cpus N           cores
  --mem SIZE
  --gpus N           GPUs (default 1)
  --cpu              no GPU
  --array LIST       one job for each number, such as 1-12 or 1-12%4 (at most four at once);
                     %a in ARGUMENTS is the number; numbers from Slurm's MaxArraySize on become
                     further arrays, one after the other if there is a %
  --name NAME        of the job (default: the recipe's)
  --grace SECONDS    from the signal to save until the end of the time limit (default 120)
  --setup FILE       bash code that the job starts with, such as 'module load ...'
  --program FILE     a packlua that is there already; nothing is built
  --resume RECIPE    what continues a run after a requeue (default recipes/resume.lua)
  --sbatch OPTION    a further option of sbatch; may be repeated
  --dry-run          prints the command that would be run, and ends
  --help             shows this text

In ARGUMENTS, %j is the number of the job, and %A and %a those of an array and of the job in it.
PACKLUA_SLURM_ACCOUNT, _PARTITION, _QOS, _TIME, _CPUS, _MEM, _GPUS (0: none), _GRACE, _SETUP and _PROGRAM stand for
options that are not given; sbatch's own variables (SBATCH_ACCOUNT ...) hold for what is left open then.
END_OF_USAGE
}

refuse() {
  echo "slurm.sh: $1 (--help says more)" >&2
  exit 2
}

account=${PACKLUA_SLURM_ACCOUNT-} partition=${PACKLUA_SLURM_PARTITION-} qos=${PACKLUA_SLURM_QOS-}
time=${PACKLUA_SLURM_TIME-} cpus=${PACKLUA_SLURM_CPUS-} mem=${PACKLUA_SLURM_MEM-} gpus=${PACKLUA_SLURM_GPUS-1}
grace=${PACKLUA_SLURM_GRACE-120} setup=${PACKLUA_SLURM_SETUP-} program=${PACKLUA_SLURM_PROGRAM-}
array='' name='' resume=recipes/resume.lua dry_run='' further=()

while [[ ${1-} == -* ]]; do
  option=$1
  shift
  case $option in
    --help | -h)
      usage
      exit 0
      ;;
    --cpu) gpus=0 && continue ;;
    --dry-run) dry_run=yes && continue ;;
    --) break ;;
    --*=*)
      set -- "${option#*=}" "$@"
      option=${option%%=*}
      ;;
  esac
  [[ $# != 0 ]] || refuse "$option needs a value, or is not known"
  case $option in
    --account) account=$1 ;;
    --partition) partition=$1 ;;
    --qos) qos=$1 ;;
    --time) time=$1 ;;
    --cpus) cpus=$1 ;;
    --mem) mem=$1 ;;
    --gpus) gpus=$1 ;;
    --array) array=$1 ;;
    --name) name=$1 ;;
    --grace) grace=$1 ;;
    --setup) setup=$1 ;;
    --program) program=$1 ;;
    --resume) resume=$1 ;;
    --sbatch) further+=("$1") ;;
    *) refuse "there is no option $option; options of the recipe come after its name" ;;
  esac
  shift
done
[[ $# != 0 ]] || refuse "a recipe is missing"
[[ $grace =~ ^[0-9]+$ ]] || refuse "--grace $grace: expected seconds"

# The job runs in the folder that it is submitted from, where recipes and files are looked for as packlua does.
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for file in "$1" "$resume"; do
  [[ -e $file || -e $home/$file ]] || refuse "$file: there is no such recipe, nor under $home"
done
if [[ $setup ]]; then setup=$(realpath -e "$setup") || exit 2; fi
if [[ $program ]]; then program=$(realpath -e "$program") || exit 2; fi
recipe=$1
shift
[[ $name ]] || name=$(basename "$recipe" .lua)

# train.lua names its folder after the time, which the next job could not know.
number=%j
if [[ $array ]]; then number=%A-%a; fi
if [[ $(basename "$recipe") == train.lua && " $*" != *" --output"* ]]; then
  set -- "$@" --output "runs/$name-$number"
fi

options=("--job-name=$name" "--output=runs/slurm-$name-${number/-/_}.log" --open-mode=append
  --nodes=1 --ntasks=1 --requeue "--signal=B:USR1@$grace")
if [[ $gpus != 0 ]]; then options+=("--gpus=$gpus"); fi
if [[ $account ]]; then options+=("--account=$account"); fi
if [[ $partition ]]; then options+=("--partition=$partition"); fi
if [[ $qos ]]; then options+=("--qos=$qos"); fi
if [[ $time ]]; then options+=("--time=$time"); fi
if [[ $cpus ]]; then options+=("--cpus-per-task=$cpus"); fi
if [[ $mem ]]; then options+=("--mem=$mem"); fi

# submit OFFSET ARGUMENTS...: one job or array; %a is then the number in the array and OFFSET. Sets job to its number.
job=''
submit() {
  local offset=$1 own=() command
  shift
  if [[ $offset != 0 ]]; then own=(--offset "$offset"); fi
  command=(sbatch "${options[@]}" "${part[@]}" "${further[@]}" "$home/scripts/slurm_job.sh" "${own[@]}"
    "$home" "$setup" "$program" "$resume" "$recipe" "$@")
  if [[ $dry_run ]]; then
    printf '%q ' "${command[@]}" | sed 's/ $//'
    echo
    job=JOB
  else
    local answer
    answer=$("${command[@]}") || exit
    echo "$answer"
    job=${answer##* }
  fi
}

# The numbers of a list such as 1-3,7,10-20:5, one per line.
numbers_of() {
  local range first last step
  for range in ${1//,/ }; do
    [[ $range =~ ^([0-9]+)(-([0-9]+)(:([0-9]+))?)?$ ]] || return 1
    first=$((10#${BASH_REMATCH[1]})) last=$((10#${BASH_REMATCH[3]:-${BASH_REMATCH[1]}})) step=$((10#${BASH_REMATCH[5]:-1}))
    [[ $step != 0 ]] || return 1
    for ((; first <= last; first += step)); do echo "$first"; done
  done
}

# Numbers in order, one per line, as a list with ranges.
ranges() {
  awk 'function show() { printf "%s%s", separator, first == last ? first : first "-" last; separator = "," }
    any && $1 == last + 1 { last = $1; next }
    { if (any) show(); first = last = $1; any = 1 }
    END { if (any) show() }'
}

# Where the system limits them, indices of an array are less than MaxArraySize.
most=$(scontrol show config 2> /dev/null | awk '$1 == "MaxArraySize" { print $3 }') || true

if [[ ! $dry_run ]]; then mkdir -p runs; fi # sbatch does not make the folder of its log
part=()
if [[ ! $array ]]; then
  submit 0 "$@"
  exit
fi
list=${array%%%*} at_once=''
if [[ $array == *%* ]]; then at_once=%${array#*%}; fi
numbers=$(numbers_of "$list") || refuse "--array $array: expected a list such as 1-12 or 1,4,9-12%4"
if [[ ! $most =~ ^[0-9]+$ || $most -lt 2 ]] || ! awk -v most="$most" '$1 >= most { high = 1 } END { exit !high }' <<< "$numbers"; then
  part=("--array=$array")
  submit 0 "$@"
  exit
fi
numbers=$(sort -nu <<< "$numbers")
largest=$(tail -n 1 <<< "$numbers")
for ((offset = 0; offset < largest; offset += most - 1)); do
  list=$(awk -v low="$offset" -v step="$((most - 1))" \
    '$1 > low && $1 <= low + step || $1 == 0 && low == 0 { print $1 - low }' <<< "$numbers" | ranges)
  if [[ ! $list ]]; then continue; fi
  part=("--array=$list$at_once")
  if [[ $at_once && $job ]]; then part+=("--dependency=afterany:$job"); fi
  submit "$offset" "$@"
done
