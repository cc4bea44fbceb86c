# Functions of a script that `imgbuild ci script` wrote; values and jobs follow below. State:
#   $results/JOB/STEP.json         how a step ended: digest, key, exit code, seconds
#   $results/JOB/STEP.answer.json  the JSON of its command, with the first error
#   $results/JOB/STEP.log          the messages of its command
#   $results/JOB/job.json          the same as STEP.json for all steps of the job
# A step with a key that has passed under this key is not repeated.

status=0 # that of the first step that failed
running= # the process of a step
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

say() { printf 'ci: %s\n' "$*" >&2; }

# stop STATUS: end the running step, and the script
stop() {
  trap '' INT TERM HUP
  if [ -n "$running" ]; then
    kill -TERM "$running" 2> /dev/null
    wait "$running" "$tee"
  fi
  say "interrupted; run this script again to continue"
  exit "$1"
}

# ended FILE KEY STATUS SECONDS: write how a step or job ended
ended() {
  printf '{"digest":"%s","key":"%s","exit_code":%d,"seconds":%d}\n' "$digest" "$2" "$3" "$4" > "$1.new"
  mv -f -- "$1.new" "$1"
}

# passed FILE KEY: whether a step or job has passed under this key
passed() { [ -e "$1" ] && grep -qF -- "\"key\":\"$2\",\"exit_code\":0," "$1"; }

# target NAME: find out which of its jobs are not published yet
target() {
  pending=every
  if [ "${#published[@]}" -gt 0 ]; then
    pending=$("${imgbuild[@]}" ci jobs "$1" --quiet "${published[@]}" < /dev/null | awk 'NR > 1 { print $1 }') || pending=every
  fi
  # Only a folder that this script makes is removed by `drop`, also after an interruption.
  [ -e "build/$1" ] || : > "$results/$1.drop"
}

# is_pending JOB: whether it has to be done for the image to be published
is_pending() { [ "$pending" = every ] || grep -qxF -- "$1" <<< "$pending"; }

# drop NAME: remove the files of its image from build/
drop() {
  [ ! -e "$results/$1.drop" ] || rm -rf -- "build/$1" "build/$1.sif" "$results/$1.drop"
}

# begin JOB DIGEST KEY MACHINE [JOB KEY]...: start a job for this kind of machine (any: for all); it needs the others
begin() {
  job=$1 digest=$2 job_key=$3 job_start=$SECONDS
  if ! is_pending "$job"; then
    say "$job: published"
    return 1
  fi
  if [ "$4" != any ] && [ "$4" != "$(uname -m)" ]; then
    if passed "$results/$job/job.json" "$3"; then
      say "$job has passed on another machine"
    else
      say "$job needs a machine of $4; run this script there with the same results: $results"
      wait_for_job
    fi
    return 1
  fi
  mkdir -p -- "$results/$job"
  exec 9> "$results/$job/.lock"
  flock --nonblock 9 || { say "$job: waiting for another run of it" && flock 9; }
  rm -f -- "$results/$job/job.json"
  shift 4
  while [ $# -gt 0 ]; do
    passed "$results/$1/job.json" "$2" || ! is_pending "$1" || { say "$job waits for $1" && wait_for_job && return 1; }
    shift 2
  done
}

# wait_for_job: the script has not done all that it is for
wait_for_job() { [ "$status" -ne 0 ] || status=1; }

# has STEP KEY: whether a step of this job has passed
has() { passed "$results/$job/$1.json" "$2"; }

# has_image NAME: whether its image lies in build/
has_image() { [ -n "$digest" ] && grep -qsF -- "$digest" "build/$1/index.json"; }

# step NAME KEY ARGUMENT...: run a command of imgbuild, unless it has passed; "-": always
step() {
  local name=$1 key=$2 place=$results/$job/$1 code log tee start=$SECONDS
  if [ "$key" != - ] && has "$name" "$key"; then
    say "$job: $name has passed before"
    return 0
  fi
  shift 2
  rm -f -- "$place.json" "$place.answer.json"
  say "$job: $name"
  # In the background, since the shell hears a signal only while it waits.
  exec {log}> >(trap '' TERM HUP && exec tee -i -- "$place.log" >&2)
  tee=$!
  NO_COLOR=1 "${imgbuild[@]}" "$@" --json < /dev/null > "$place.part" 2>&"$log" &
  running=$!
  exec {log}>&-
  wait "$running"
  code=$?
  running=
  wait "$tee"
  mv -f -- "$place.part" "$place.answer.json"
  case $code in 129 | 130 | 143) exit "$code" ;; esac # interrupted
  end "$name" "$key" "$code" $((SECONDS - start))
}

# refuse NAME STATUS ANSWER MESSAGE: a step that fails without a command
refuse() {
  printf '%s\n' "$3" > "$results/$job/$1.answer.json"
  say "$job: $4"
  end "$1" - "$2" 0
}

# end STEP KEY STATUS SECONDS
end() {
  ended "$results/$job/$1.json" "$2" "$3" "$4"
  [ "$3" -ne 0 ] || return 0
  say "$job: $1 failed with exit status $3"
  [ "$status" -ne 0 ] || status=$3
  ended "$results/$job/job.json" - "$3" $((SECONDS - job_start))
  return 1
}

# same NAME: whether the lock still has the digest for which this script was written
same() {
  [ "$("${imgbuild[@]}" digest "$1" "${matrix[@]}" < /dev/null)" = "$digest" ] || refuse check 5 "$changed" "$1 was locked again; write this script anew"
}

# submit ARGUMENT...: put tests into the queue of Slurm, for a later step that waits for them
submit() { "${imgbuild[@]}" "$@" --no-wait --quiet < /dev/null > /dev/null || true; }

# finish: all steps of the job have passed
finish() {
  ended "$results/$job/job.json" "$job_key" 0 $((SECONDS - job_start))
  say "$job passed"
}
