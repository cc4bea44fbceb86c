#!/bin/bash
# small: a command on one node.
#
# Made by `imgbuild slurm small` for the image
# sha256:1111111111111111111111111111111111111111111111111111111111111111;
# it needs nothing of imgbuild any more: read it, change it, keep it beside your code. To start it:
# sbatch FILE
#
#SBATCH --job-name=small-single
#SBATCH --nodes=1
# One task a node: what runs in it (Ray, accelerate, vLLM) starts its own processes.
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
# The shell is told before the end, so that it can end what it started.
#SBATCH --signal=B:TERM@60
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=1
#SBATCH --mem=200G
#SBATCH --time=4:00:00
#SBATCH --account=lab
#SBATCH --partition=gpu
#SBATCH --qos=high

set -euo pipefail
fail() { echo "$SLURM_JOB_NAME: $*" >&2; exit 1; }

# --- the node ---------------------------------------------------------------------------------------

# Soft limits come from where sbatch ran, and a login node's are small: too few threads
# (pthread_create: Resource temporarily unavailable), files, or locked memory for RDMA.
for limit in n u l; do ulimit -S -"$limit" "$(ulimit -H -"$limit")" 2>/dev/null || true; done
ulimit -S -c 0  # a core of a training process would fill the disk

export image=/images/small.sif
[ -e "$image" ] || fail "$image is not there: imgbuild build small --format sif"

cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
gpus=1
# Libraries count the node's cores, not the job's, and would start a thread for each.
each=$((cpus / (gpus > 1 ? gpus : 1)))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((each > 1 ? each : 1))}

# Caches, /tmp and what is staged lie on the node's own disk, in SLURM_TMPDIR where the site sets it.
export scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/imgbuild-$SLURM_JOB_ID
export models=${HF_HOME:-$HOME/.cache/huggingface}
mkdir -p "$models"
for folder in "$models" "$PWD" "$scratch"; do
  case $folder in
    *[,:]*) fail "$folder: a list of binds cannot hold a comma or a colon: take another" ;;
  esac
done

# On every node, as long as the job lasts: folders, copies of what a network disk would give slowly,
# and their removal at the end. The shell tells the end over stdin, as does its own death: a job that
# is cancelled can start no step any more, and programs still write while they end.
keep() {
  trap : TERM
  trap remove EXIT
  prepare
  trap '' TERM
  echo ready
  read -r _ || true
}
prepare() {
  umask 077
  mkdir -p "$scratch"
  # The name can be guessed, and others may write there: compiled code is loaded from this folder.
  [ -O "$scratch" ] && [ ! -L "$scratch" ] ||
    { echo "$SLURMD_NODENAME: $scratch is not yours: another --scratch" >&2; exit 1; }
  chmod 700 "$scratch"
  mkdir -p "$scratch/$SLURMD_NODENAME/cache" "$scratch/$SLURMD_NODENAME/tmp"
  mkdir -p "$scratch/$SLURMD_NODENAME/stage1"
  copy '/models/my model' "$scratch/$SLURMD_NODENAME/stage1"
  shared=$(df -m --output=avail /dev/shm | tail -n 1)
  [ "$shared" -ge 1024 ] ||
    echo "$SLURMD_NODENAME: $shared MB free in /dev/shm: NCCL, Ray and data loaders need more" >&2
}
# What a folder links to elsewhere is copied too: the snapshots of a model cache hold nothing else.
copy() {
  local from to=$2 link target
  from=$(realpath -- "$1")
  cp -a -- "$from/." "$to/"
  find "$from" -type l -printf '%P\0' | while IFS= read -r -d '' link; do
    target=$(realpath -e -- "$from/$link" 2>/dev/null) || continue  # it leads nowhere
    case $target/ in "$from"/*) continue ;; esac
    case $from/ in "$target"/*) continue ;; esac
    cp -aL --remove-destination -- "$from/$link" "$to/$link"
  done
}
remove() {
  if [ -O "$scratch" ] && [ ! -L "$scratch" ]; then
    for _ in 1 2 3 4 5; do
      rm -rf -- "$scratch" 2>/dev/null && break
      sleep 1  # somebody still writes there
    done
  fi
  echo removed
}

# At the end all steps are told, and have a while: servers end in good order, and where Slurm ends the
# job, trainers save what they have. After a warning it leaves a minute, after scancel KillWait, of
# which half is for files.
leave() {
  local status=$? grace=10 late
  set +e
  trap - EXIT TERM INT
  trap '' PIPE
  if [ -z "$told" ]; then :
  elif scontrol show job "$SLURM_JOB_ID" 2>/dev/null | grep -q 'JobState=RUNNING'; then grace=45
  else grace=$(scontrol show config | awk '$1 == "KillWait" {print int($3 / 2)}'); fi
  scancel --quiet --signal=TERM "$SLURM_JOB_ID"
  for ((second = 0; second < ${grace:-10}; second++)); do
    [ -n "$(steps)" ] || break
    sleep 1
  done
  mapfile -t late < <(steps)
  [ ${#late[@]} -eq 0 ] || kill -TERM "${late[@]}"  # of srun: what is left of its step is killed
  [ -z "${KEEP_PID:-}" ] || echo end >&"${KEEP[1]}"
  wait
  exit "$status"
}
steps() { jobs -rp | grep -vx "${KEEP_PID:-}"; }
told=
trap leave EXIT
trap 'told=1; echo "$SLURM_JOB_NAME: told to end by Slurm: time is over, or scancel" >&2; exit 143' TERM INT

# All of this shell's variables go to the steps, whatever sbatch was told (--export=NONE).
coproc KEEP { exec srun --export=ALL --overlap --ntasks-per-node=1 \
  bash -euc "$(declare -f keep prepare copy remove); keep"; }
exec {ready}<&"${KEEP[0]}"
for ((number = 0; number < SLURM_JOB_NUM_NODES; number++)); do
  # A site's prolog may say something first. A node that could not prepare says "removed".
  while read -r line; do
    [ "$line" != removed ] || exit 1
    [ "$line" != ready ] || continue 2
  done
  exit 1
done <&"$ready" &
wait $! || fail "a node has no place for the job's files"

# --- the image --------------------------------------------------------------------------------------

enter=()

# Runs on each node of a step. Nothing of the host's environment comes along (--cleanenv) but what
# is named here: as APPTAINERENV_…, so that no key or token stands in a command line. Ray's workers
# have the environment of `ray start`, not of the command: so every step gets the same.
in_image() {
  for name in $(compgen -e); do
    case $name in
      HF_* | HUGGING_FACE_* | WANDB_* | MLFLOW_* | NCCL_* | GLOO_* | UCX_* | FI_* | TORCH_* | PYTORCH_* | \
        VLLM_* | RAY_* | TRITON_* | OMP_* | MKL_* | OPENBLAS_* | CUDA_VISIBLE_DEVICES | SLURM_* | \
        SLURMD_NODENAME | http_proxy | https_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY)
        export "APPTAINERENV_$name=${!name}" ;;
    esac
  done
  # The image's own caches and /tmp lie on the node's disk; a path of a socket below /tmp is short.
  # ~/.local stays out of sight of Python; gcc finds the driver that --nv brings (-lcuda).
  exec apptainer exec --cleanenv --no-privs --nv \
    --env PYTHONNOUSERSITE=1,TMPDIR=/tmp,LIBRARY_PATH=/.singularity.d/libs --env HF_HOME="$models" \
    --bind "$scratch/$SLURMD_NODENAME/cache:/var/cache/imgbuild" --bind "$scratch/$SLURMD_NODENAME/tmp:/tmp" \
    --bind "$models" --bind "$PWD" --pwd "$PWD" \
    --bind "$scratch/$SLURMD_NODENAME/stage1:"'/models/my model' \
    --bind /data:/data:ro \
    "$image" /opt/imgbuild/entrypoint "$@"
}

# step SRUN-OPTIONS… -- COMMAND…: COMMAND in the image, as a step that may share the job's CPUs with
# others. srun takes --cpus-per-task no more from sbatch (since Slurm 22.05). No step but KEEP gets
# stdin: a node whose task ends before it has read what srun sends resets the connection, and srun
# loses output, or kills the step on the other nodes (_server_read: unexpected eof). Always in a subshell
# (`&`), which becomes srun: a shell around it would end at once by scancel, and `leave` would not wait.
step() {
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  exec srun --export=ALL --overlap --input=none --kill-on-bad-exit=1 --cpus-per-task="$cpus" \
    "${enter[@]}" "${options[@]}" \
    bash -c "$(declare -f in_image); in_image \"\$@\"" in_image "$@"
}

# --- the work ---------------------------------------------------------------------------------------

# In the background, since the shell hears a signal only while it waits.
step -- python train.py --name 'two words' &
wait $!
