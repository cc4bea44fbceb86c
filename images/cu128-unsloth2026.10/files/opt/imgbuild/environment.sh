# Sourced by the entry point, and by runtimes that skip it. It mends what a container's runtime may
# have left unfit, and changes nothing that works.

# A user id that has no entry in /etc/passwd: getpass.getuser() fails, and with it torch.
if ! id -un >/dev/null 2>&1; then
  export USER="${USER:-imgbuild}" LOGNAME="${LOGNAME:-imgbuild}"
fi

# The first folder of a list that is there, or can be made, and can be written.
imgbuild_writable() {
  for imgbuild_folder in "$@"; do
    if (umask 077 && mkdir -p "$imgbuild_folder") 2>/dev/null && [ -w "$imgbuild_folder" ] && [ "$(stat -Lc %u "$imgbuild_folder" "${imgbuild_folder%/*}" | sort -u)" = "$(id -u)" ]; then
      printf '%s' "$imgbuild_folder"
      return 0
    fi
  done
  return 1
}

# No home that can be written: a read-only root, or a random user id whose home is "/".
if [ -z "${HOME:-}" ] || [ "$HOME" = / ] || [ ! -w "$HOME" ]; then
  if imgbuild_home=$(imgbuild_writable "/var/cache/imgbuild/home-$(id -u)" "${TMPDIR:-/tmp}/imgbuild-$(id -u)/home"); then
    export HOME="$imgbuild_home"
  fi
fi

# Caches go to /var/cache/imgbuild, unless this user cannot write there: then they move, and
# a variable that the user has set to another place stays as it is.
if [ ! -w "/var/cache/imgbuild" ]; then
  if imgbuild_cache=$(imgbuild_writable "${XDG_CACHE_HOME:-$HOME/.cache}/imgbuild" "${TMPDIR:-/tmp}/imgbuild-$(id -u)/cache"); then
    for imgbuild_name in PYTHONPYCACHEPREFIX TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR VLLM_CACHE_ROOT FLASHINFER_WORKSPACE_BASE NUMBA_CACHE_DIR; do
      eval "imgbuild_value=\${$imgbuild_name:-}"
      case "$imgbuild_value" in
        "/var/cache/imgbuild"|"/var/cache/imgbuild"/*) export "$imgbuild_name=$imgbuild_cache${imgbuild_value#"/var/cache/imgbuild"}" ;;
      esac
    done
  fi
fi
unset imgbuild_folder imgbuild_home imgbuild_cache imgbuild_name imgbuild_value

# Packages that a user adds (pip install) lie in /workspace, or where this user cannot write there,
# in the home folder.
case "${PYTHONUSERBASE:-}" in
  "/workspace"/.imgbuild-packages/*)
    imgbuild_folder="$PYTHONUSERBASE"
    while [ ! -e "$imgbuild_folder" ] && [ "$imgbuild_folder" != "/workspace" ]; do
      imgbuild_folder="${imgbuild_folder%/*}"
    done
    if [ ! -w "$imgbuild_folder" ]; then
      PATH="${PATH%":$PYTHONUSERBASE/bin"}"
      export PYTHONUSERBASE="$HOME/.local/share/imgbuild/${PYTHONUSERBASE##*/}"
      export PATH="$PATH:$PYTHONUSERBASE/bin"
    fi
    unset imgbuild_folder
    ;;
esac
