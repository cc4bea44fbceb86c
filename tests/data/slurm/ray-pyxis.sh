#!/bin/bash
# small: a command on a Ray cluster of 2 nodes.
#
# Made by `imgbuild slurm small` for the image
# sha256:1111111111111111111111111111111111111111111111111111111111111111;
# it needs nothing of imgbuild any more: read it, change it, keep it beside your code. To start it:
# sbatch FILE
#
#SBATCH --job-name=small-ray
#SBATCH --nodes=2
# One task a node: what runs in it (Ray, accelerate, vLLM) starts its own processes.
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
# The shell is told before the end, so that it can end what it started.
#SBATCH --signal=B:TERM@60
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
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

# What --env named is for the image alone: under a name of its own it changes nothing of this shell,
# of srun, or of the host's programs, and nothing here changes it.
export IMGBUILD_ENV_WORD='it'"'"'s'
[ -z "${TOKEN+set}" ] || export IMGBUILD_ENV_TOKEN="${TOKEN}"

cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
gpus=8
# Libraries count the node's cores, not the job's, and would start a thread for each.
each=$((cpus / (gpus > 1 ? gpus : 1)))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((each > 1 ? each : 1))}

# Caches, /tmp and what is staged lie on the node's own disk, in SLURM_TMPDIR where the site sets it.
export scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/imgbuild-$SLURM_JOB_ID
export models=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
mkdir -p "$models"
for folder in "$models" "$PWD" "$scratch"; do
  case $folder in
    *[,:[:space:]]*) fail "$folder: a list of binds cannot hold a comma, a colon or a space: take another" ;;
  esac
done

# Variables whose value is a path (the table `paths` in imgbuild's data/variables.yaml): what is there is
# mounted at the same path, or the variable is not passed and the log says why. --env comes first.
export mounted='' withheld='' binds=''
visible=("$models" "$PWD") bound=(/models /data)
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
  local given=IMGBUILD_ENV_$1
  [ -z "${!given+set}" ] || return 0
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
    elif [[ $path == *[,:[:space:]]* || $path == *$'\n'* ]]; then
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
    WORD) continue ;;  # set by --env
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
  mkdir -p "$scratch/cache" "$scratch/tmp"
  mkdir -p "$scratch/stage1"
  copy /models "$scratch/stage1"
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
# Not by `ray stop`: that ends every Ray of yours on the node, that of another job too.
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

# --- nodes and ports --------------------------------------------------------------------------------

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}  # where this shell runs

# The address by which the others reach a node: as Slurm itself does. Where a node has another
# network for the work, set HEAD_ADDRESS to the first node's address there.
address_of() {
  local name
  if [ "$1" = "$head" ] && [ -n "${HEAD_ADDRESS:-}" ]; then echo "$HEAD_ADDRESS"; return; fi
  name=$(scontrol show node "$1" | grep -o 'NodeAddr=[^ ]*' | cut -d = -f 2) ||
    fail "Slurm knows no address of $1"
  getent ahostsv4 "$name" | awk 'NR == 1 {print $1}' | grep . || fail "$name, of node $1, has no address"
}

# Ports follow from the job's number, so that jobs on one node do not meet; then the next one on which
# nothing listens, on any node of the job.
busy=" $(srun --export=ALL --overlap --input=none --ntasks-per-node=1 \
  bash -c 'cat /proc/net/tcp /proc/net/tcp6 2>/dev/null || true' |
  awk '$4 == "0A" {print substr($2, length($2) - 3)}' | tr '\n' ' ') "
port=$((20000 + SLURM_JOB_ID % 1000 * 10))
free_port() {
  while [[ $busy == *" $(printf %04X "$port") "* ]]; do port=$((port + 1)); done
  taken=$port port=$((port + 1))
}

# --- the image --------------------------------------------------------------------------------------

# pyxis unpacks the image on each node and enters it for a step.
mounts="$scratch/cache:/var/cache/imgbuild,$scratch/tmp:/tmp,$models,$PWD"
while IFS= read -r bind; do [ -z "$bind" ] || mounts+=",$bind"; done <<<"$binds"
mounts+=",$scratch/stage1:"/models
mounts+=,/data
enter=(--container-image='reg#rl:small' --container-mounts="$mounts" --container-workdir="$PWD"
  --no-container-mount-home)

# The host's environment comes along: what would reach into the image's Python and its libraries goes.
in_image() {
  for name in PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE LD_PRELOAD LD_LIBRARY_PATH $withheld; do unset "$name"; done
  export PYTHONNOUSERSITE=1 HF_HOME=$models TMPDIR=/tmp
  # Here, since of a variable that the image sets, too, the image's value would count.
  for IMGBUILD_ENV in "${!IMGBUILD_ENV_@}"; do
    export "${IMGBUILD_ENV#IMGBUILD_ENV_}=${!IMGBUILD_ENV}"
  done
  exec /opt/imgbuild/entrypoint "$@"
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

# --- Ray --------------------------------------------------------------------------------------------

head_address=$(address_of "$head")
free_port; export RAY_ADDRESS=$head_address:$taken
gcs_port=$taken
# A worker imports from a disk that may be slow, before it registers.
export RAY_worker_register_timeout_seconds=${RAY_worker_register_timeout_seconds:-300}
# --num-cpus from the allocation: by itself Ray counts the node's cores and starts a worker for each,
# more than Slurm lets run, and they fail to register with the raylet. The object store lies in
# /dev/shm: three tenths of the job's memory, and no more than is free there.
memory=${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * SLURM_CPUS_ON_NODE))}
[ "$memory" -gt 0 ] || memory=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
shared=$(df -m --output=avail /dev/shm | tail -n 1)
store=$((memory * 3 / 10 < shared * 8 / 10 ? memory * 3 / 10 : shared * 8 / 10))
start=(ray start --block --disable-usage-stats --num-cpus="$cpus" --num-gpus="$gpus"
  --object-store-memory="$((store * 1048576))" --min-worker-port=0 --max-worker-port=0)

free_port; client_port=$taken  # Ray's default is one port for all jobs
free_port
step --nodes=1 --ntasks=1 --nodelist="$head" -- "${start[@]}" --head --include-dashboard=false \
  --ray-client-server-port="$client_port" \
  --node-ip-address="$head_address" --port="$gcs_port" --dashboard-agent-listen-port="$taken" &
ray=($!)
# A worker gives up soon where no head answers, and the head may read a cold disk.
for ((second = 0; second < 600; second++)); do
  if (exec 3<>"/dev/tcp/$head_address/$gcs_port") 2>/dev/null; then break; fi
  kill -0 "${ray[0]}" 2>/dev/null || fail "Ray did not start on $head"
  sleep 1
done
for ((number = 1; number < ${#nodes[@]}; number++)); do
  free_port
  address=$(address_of "${nodes[number]}")
  step --nodes=1 --ntasks=1 --nodelist="${nodes[number]}" -- "${start[@]}" \
    --address="$RAY_ADDRESS" --node-ip-address="$address" \
    --dashboard-agent-listen-port="$taken" &
  ray+=($!)
done

# The command starts when every node has registered: 600 s are given to it.
registered='
import sys, time
import ray
wanted, end, seen, why = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), -1, ""
while time.monotonic() < end:
    try:
        if not ray.is_initialized():
            ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
        alive = sum(node["Alive"] for node in ray.nodes())
    except Exception as error:  # ConnectionError, RuntimeError: by what is not there yet
        alive, why = 0, f" ({error})"
    if alive != seen:
        print(f"Ray: {alive} of {wanted} nodes have registered", file=sys.stderr, flush=True)
    if alive >= wanted:
        sys.exit()
    seen = alive
    time.sleep(1)
sys.exit(f"Ray: a node has not registered{why}; its log lies in ray/ of the jobs /tmp there")
'
step --nodes=1 --ntasks=1 --nodelist="$head" -- python -c "$registered" "${#nodes[@]}" 600 &
waiting=$!
wait -n "$waiting" "${ray[@]}" || fail "Ray did not start on all ${#nodes[@]} nodes"
! kill -0 "$waiting" 2>/dev/null || fail "ray start ended on a node before all had registered"

# with_ray COMMAND…: the command on the head node, for as long as Ray runs on all of them.
with_ray() {
  step --nodes=1 --ntasks=1 --nodelist="$head" -- "$@" &
  command=$!
  status=0
  wait -n "$command" "${ray[@]}" || status=$?
  ! kill -0 "$command" 2>/dev/null || fail "Ray ended on a node while the command ran (status $status)"
  return "$status"
}

# --- the work ---------------------------------------------------------------------------------------

# RAY_ADDRESS leads ray.init() to this cluster; such a call must not name num_cpus itself.
with_ray python train.py --name 'two words'
