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
[ -e "$image" ] || fail "$image is not there: imgbuild build small --format sif --output ${image##*/}; copy it to this path"

cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
gpus=1
# Libraries count the node's cores, not the job's, and would start a thread for each.
each=$((cpus / (gpus > 1 ? gpus : 1)))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((each > 1 ? each : 1))}

# Caches, /tmp and what is staged lie on the node's own disk, in SLURM_TMPDIR where the site sets it.
export scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/imgbuild-$SLURM_JOB_ID
export models=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
mkdir -p "$models"
for folder in "$models" "$PWD" "$scratch"; do
  case $folder in
    *[,:]*) fail "$folder: a list of binds cannot hold a comma or a colon: take another" ;;
  esac
done

# Variables whose value is a path (the table `paths` in imgbuild's data/variables.yaml): what is there is
# mounted at the same path, or the variable is not passed and the log says why. --env comes first.
export mounted='' withheld='' binds=''
visible=("$models" "$PWD") bound=('/models/my model' /data)
below() { # PATH FOLDER...
  local folder
  for folder in "${@:2}"; do
    folder=${folder%/}
    case $1/ in "$folder"/*) return 0 ;; esac
  done
  return 1
}
hides() {
  local folder
  for folder in /bin /dev /etc /lib /lib64 /opt/imgbuild /opt/venv /opt/venv/bin /proc /run /sbin /sys /tmp /usr /usr/bin /var/cache/imgbuild /var/tmp; do
    if below "$folder" "$1"; then return 0; fi
  done
  return 1
}
withhold() { # NAME REASON
  [ -n "${!1:-}" ] || return 0
  withheld+=" $1"
  echo "$SLURM_JOB_NAME: $1=${!1} is not passed: $2" >&2
}
host_only() { # REASON NAME...
  local name
  for name in "${@:2}"; do withhold "$name" "$1; to pass it: imgbuild slurm --bind ${!name:-} --env $name"; done
}
for item in \
  folder:HF_HUB_CACHE folder:HUGGINGFACE_HUB_CACHE folder:HF_ASSETS_CACHE folder:HUGGINGFACE_ASSETS_CACHE \
  folder:HF_XET_CACHE folder:HF_DATASETS_CACHE folder:HF_DATASETS_DOWNLOADED_DATASETS_PATH folder:HF_DATASETS_EXTRACTED_DATASETS_PATH \
  folder:HF_MODULES_CACHE folder:TRANSFORMERS_CACHE folder:PYTORCH_TRANSFORMERS_CACHE folder:PYTORCH_PRETRAINED_BERT_CACHE \
  folder:SENTENCE_TRANSFORMERS_HOME folder:KERNELS_CACHE folder:HF_KERNELS_CACHE file:HF_TOKEN_PATH \
  file:RAY_AUTH_TOKEN_PATH folder:TORCH_HOME folder:MODELSCOPE_CACHE folder:NLTK_DATA \
  folder:TIKTOKEN_CACHE_DIR folder:DATA_GYM_CACHE_DIR folder:TIKTOKEN_RS_CACHE_DIR folder:VLLM_ASSETS_CACHE \
  folder:VLLM_MEDIA_CACHE folder:VLLM_LORA_RESOLVER_CACHE_DIR folder:VLLM_CONFIG_ROOT folder:VLLM_TUNED_CONFIG_FOLDER \
  file:VLLM_LOGGING_CONFIG_PATH file:VLLM_MODEL_REDIRECT_PATH folder:FLASHINFER_CUBIN_DIR folder:OUTLINES_CACHE_DIR \
  folder:CUDA_CACHE_PATH folder:WANDB_DIR folder:WANDB_CACHE_DIR folder:WANDB_CONFIG_DIR \
  folder:WANDB_DATA_DIR folder:WANDB_ARTIFACT_DIR folder:MLFLOW_TRACKING_URI folder:TENSORBOARD_DIR \
  folder:TENSORBOARD_LOGGING_DIR folder:VERL_FILE_LOGGER_ROOT folder:SWANLAB_LOG_DIR new:VERL_FILE_LOGGER_PATH \
  new:TORCH_LOGS_OUT folder:TORCH_TRACE folder:TORCH_COMPILE_DEBUG_DIR folder:TRITON_DUMP_DIR \
  folder:VLLM_DEBUG_DUMP_PATH folder:VLLM_TORCH_PROFILER_DIR folder:SGLANG_TORCH_PROFILER_DIR folder:SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR \
  file:NCCL_CONF_FILE file:NCCL_TOPO_FILE file:NCCL_GRAPH_FILE new:NCCL_DEBUG_FILE \
  new:NCCL_TOPO_DUMP_FILE new:NCCL_GRAPH_DUMP_FILE file:SSL_CERT_FILE file:REQUESTS_CA_BUNDLE \
  file:CURL_CA_BUNDLE; do
  name=${item#*:} path='' reason=''
  case ${!name:-} in
    "") continue ;;
    file:/*) path=/${!name#file:} ;;
    sqlite:////*) path=$(dirname -- "${!name#sqlite:///}") ;;
    file:* | *://*) continue ;;  # an address
    \~/*) path=$HOME/${!name#\~/}; export "$name=$path" ;;
    /*) path=${!name} ;;
    *) path=$PWD/${!name}; export "$name=$path" ;;
  esac
  [ "${item%%:*}" != new ] || path=$(dirname -- "$path")
  path=$(realpath -ms -- "$path")
  if ! below "$path" "${bound[@]}"; then
    bind=$path
    [ "${item%%:*}" != file ] || bind=$path:$path:ro
    if below "$path" "${visible[@]}"; then bind=
    elif [[ $path == *[,:]* || $path == *$'\n'* ]]; then
      reason="a list of binds cannot hold this path: take another"
    elif hides "$path"; then
      reason="a mount there hides folders of the image: imgbuild slurm --bind $path:/mnt/x --env $name=/mnt/x${!name##*"$path"}"
    fi
    if [ -n "$reason" ]; then :
    elif [ "${item%%:*}" = file ]; then
      [ -e "$path" ] || reason="there is no such file: correct or unset the variable"
    elif ! mkdir -p -- "$path"; then
      reason="the folder cannot be made: create it, or unset the variable"
    fi
    if [ -n "$reason" ]; then withhold "$name" "$reason"; continue; fi
    if [ -n "$bind" ]; then visible+=("$path") binds+=$bind$'\n'; fi
  fi
  mounted+=" $name"
done
host_only 'the files in it are links to other folders; set SSL_CERT_FILE to one file instead' \
  SSL_CERT_DIR
host_only 'code compiled on the host may not load in the image, which has its own folder' \
  TRITON_CACHE_DIR TRITON_HOME TRITON_OVERRIDE_DIR TORCHINDUCTOR_CACHE_DIR \
  TORCH_EXTENSIONS_DIR PYTORCH_KERNEL_CACHE_PATH VLLM_CACHE_ROOT VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR \
  FLASHINFER_WORKSPACE_BASE DG_JIT_CACHE_DIR NUMBA_CACHE_DIR CUPY_CACHE_DIR \
  TILELANG_CACHE_DIR SGLANG_CACHE_DIR SGLANG_DG_CACHE_DIR SGLANG_JIT_CACHE_DIR \
  SGLANG_CUTE_AOT_CACHE_DIR UNSLOTH_COMPILE_LOCATION UNSLOTH_MEGA_CACHE_DIR
host_only 'caches and settings of programs on the host; only the folder huggingface in XDG_CACHE_HOME is mounted, as HF_HOME' \
  XDG_CACHE_HOME MPLCONFIGDIR
host_only 'temporary files and sockets belong in the /tmp of the container' \
  RAY_TMPDIR VLLM_RPC_BASE_PATH
host_only 'libraries of the host; the image has its own libraries' \
  VLLM_NCCL_SO_PATH VLLM_CUDART_SO_PATH TRITON_LIBCUDA_PATH TRITON_LIBDEVICE_PATH \
  TRITON_CUDART_PATH TRITON_CUDACRT_PATH
# Others are passed as they are: nothing says what is at their path.
for name in $(compgen -e); do
  case $name in
    HF_* | HUGGING_FACE_* | WANDB_* | MLFLOW_* | NCCL_* | GLOO_* | UCX_* | FI_* | \
    TORCH_* | PYTORCH_* | VLLM_* | RAY_* | TRITON_* | OMP_* | MKL_* | OPENBLAS_*) ;;
    *) continue ;;
  esac
  case " $mounted $withheld " in *" $name "*) continue ;; esac
  case ${!name} in /*) ;; *) continue ;; esac
  if ! below "${!name}" "${visible[@]}" "${bound[@]}" && [ -e "${!name}" ]; then
    echo "$SLURM_JOB_NAME: $name=${!name}: nothing mounts this path; to mount it: imgbuild slurm --bind ${!name}" >&2
  fi
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
  while IFS= read -r folder; do
    case $folder in "" | *:ro) ;; *) mkdir -p -- "$folder" ;; esac
  done <<<"$binds"
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
  [ "$status" -eq 0 ] || [ -n "$told" ] || explain >&2
  exit "$status"
}

# What this shell writes is the job's log: one sentence on the cause, if it is likely.
explain() {
  local log
  log=$(readlink "/proc/$$/fd/1")
  [ -f "$log" ] || return 0
  if command -v imgbuild >/dev/null; then timeout 60 imgbuild diagnose --short -- "$log"
  else echo "$SLURM_JOB_NAME: for the cause: imgbuild diagnose $log"; fi
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
  local bind more=()
  while IFS= read -r bind; do [ -z "$bind" ] || more+=(--bind "$bind"); done <<<"$binds"
  for name in $mounted; do export "APPTAINERENV_$name=${!name}"; done
  for name in $(compgen -e); do
    case " $withheld " in *" $name "*) continue ;; esac
    case $name in
      HF_* | HUGGING_FACE_* | WANDB_* | MLFLOW_* | NCCL_* | GLOO_* | UCX_* | FI_* | \
      TORCH_* | PYTORCH_* | VLLM_* | RAY_* | TRITON_* | OMP_* | MKL_* | OPENBLAS_* | \
        CUDA_VISIBLE_DEVICES | SLURM_* | SLURMD_NODENAME | http_proxy | https_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY)
        export "APPTAINERENV_$name=${!name}" ;;
    esac
  done
  # The image's own caches and /tmp lie on the node's disk; a path of a socket below /tmp is short.
  # ~/.local stays out of sight of Python; gcc finds the driver that --nv brings (-lcuda).
  exec apptainer exec --cleanenv --no-privs --nv \
    --env PYTHONNOUSERSITE=1,TMPDIR=/tmp,LIBRARY_PATH=/.singularity.d/libs --env HF_HOME="$models" \
    --bind "$scratch/$SLURMD_NODENAME/cache:/var/cache/imgbuild" --bind "$scratch/$SLURMD_NODENAME/tmp:/tmp" \
    --bind "$models" --bind "$PWD" "${more[@]}" --pwd "$PWD" \
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
