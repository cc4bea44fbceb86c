"""Runs commands inside a root file system without any container engine, with or without root.

Comes in: a folder that `oci.unpack` made and a command. Goes out: what the command left. It has
namespaces of its own (mounts, processes, host name and, without root, a user namespace in which the
caller is root), so that nothing stays mounted or running when it ends or imgbuild is killed. This
keeps apart what should not mix; it is no wall against code that means harm.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.errors import InputError, ToolMissing, WorkFailed
from imgbuild.oci.tree import RootFolder
from imgbuild.system import process as processes

HOSTNAME = "imgbuild"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FAILED = 125  # status when the set-up fails, as Docker has it
MARK = "imgbuild sandbox: "
RESOLVER = Path("/etc/resolv.conf")
NAMESPACES = ("--mount", "--propagation", "private", "--uts", "--ipc", "--pid", "--kill-child")
REMEDY = (
    "run as root, or let users make namespaces: sysctl user.max_user_namespaces above 0,"
    " kernel.unprivileged_userns_clone=1 on older Debian,"
    " kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu;"
    " a container needs --privileged"
)

# Runs in the new namespaces as their root and first process, which waits for the command, since a
# first process ignores signals. Arguments: ROOT PROC DEV SYS TMP HOSTS NETWORK PYTHON READONLY,
# then triples of "rw" or "ro", SOURCE and TARGET, then "--" and the command. Where the kernel
# refuses a new /proc (a container's own is partly hidden), the old one is shown. Flags that the
# host has set must be named again by a user who is root in this namespace only.
SETUP = r"""
root=$1 proc=$2 dev=$3 sys=$4 tmp=$5 hosts=$6 network=$7 python=$8 readonly=$9
shift 9
fail() { echo "@MARK@cannot $*" >&2; exit @FAILED@; }
mount --rbind "$root" "$root" || fail "bind $root"
mount -t proc proc "$proc" 2>/dev/null || mount --rbind /proc "$proc" || fail "mount /proc"
mount --rbind /dev "$dev" || fail "bind /dev"
if [ -d "$dev/shm" ]; then
  mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$dev/shm" || fail "mount /dev/shm"
fi
mount --rbind /sys "$sys" || fail "bind /sys"
mount -o remount,bind,ro,nosuid,nodev,noexec "$sys" || fail "make /sys read-only"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$tmp" || fail "mount /tmp"
printf '127.0.0.1 localhost @HOSTNAME@\n::1 localhost\n' >"$tmp/hosts"
mount --bind "$tmp/hosts" "$hosts" || fail "bind /etc/hosts"
rm "$tmp/hosts"
"$python" -IS -c 'import fcntl, socket, struct, sys
socket.sethostname("@HOSTNAME@")
if sys.argv[1] == "no":  # SIOCSIFFLAGS: up and running
    fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0x41))
' "$network" || fail "set the host name and start the loopback"
while [ "$1" != -- ]; do
  if [ ! -e "$3" ]; then  # it was made, and the fresh /tmp hides it
    if [ -d "$2" ]; then mkdir -p "$3"; else mkdir -p "${3%/*}" && : >"$3"; fi
  fi
  mount --rbind "$2" "$3" || fail "bind $2"
  if [ "$1" = ro ]; then
    mount -o remount,bind,ro "$3" 2>/dev/null ||
      mount -o remount,bind,ro,nosuid,nodev "$3" || fail "bind $2 read-only"
  fi
  shift 3
done
shift
if [ "$readonly" = yes ]; then
  mount -o remount,bind,ro "$root" 2>/dev/null ||
    mount -o remount,bind,ro,nosuid,nodev "$root" || fail "make $root read-only"
fi
env -i "$@"
exit $?
"""


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of the host that the command sees at `target`, an absolute path."""

    source: Path
    target: str
    writable: bool = False


def run(
    root: Path,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[Bind] = (),
    cwd: str = "/",
    user: tuple[int, int] | None = None,
    network: bool = False,
    readonly: bool = False,
    stream: bool = False,
) -> processes.Result:
    """Run `command` with the folder `root` as its `/`, as root; its status is not judged.

    `user`, a user and a group id, makes it run as them. Without real root there is one user id to
    give, so that root's files seem to be that user's. With `readonly` the files of `root` itself
    cannot be written; `/tmp` and what is bound can.
    It sees `/proc`, the host's `/dev`, `/sys` read-only, fresh `/tmp` and `/dev/shm`, and nothing
    of the host's environment but `env`. Without `network` it has a loopback of its own and no more.
    `stream` lets it use the terminal. ToolMissing if the kernel or the machine's owner forbids
    namespaces, WorkFailed if the set-up fails, InputError if `root` cannot be used.
    """
    if not command:
        message = "the sandbox has no command to run"
        raise InputError(message)
    variables = {"PATH": PATH, "HOME": "/root", **(env or {})}
    full = [
        *_namespaces(network=network),
        *("sh", "-c", _script(), "sh"),
        *_arguments(root.resolve(), binds, network=network, readonly=readonly),
        "--",
        *(f"{name}={value}" for name, value in variables.items()),
        *_enter(root.resolve(), cwd, user, network=network),
        *command,
    ]
    result = processes.run(full, check=False, stream=stream)
    if result.status == FAILED and MARK in result.stderr:
        message = f"the sandbox in {root} failed: {result.stderr.strip()}"
        raise WorkFailed(message, hint=REMEDY)
    return result


def _enter(root: Path, cwd: str, user: tuple[int, int] | None, *, network: bool) -> list[str]:
    """The command that goes into `root` and, if asked, gives up being root."""
    become: list[str] = []
    if user is not None and "--user" in _namespaces(network=network):
        become = ["--user", f"--map-user={user[0]}", f"--map-group={user[1]}"]
    elif user is not None:
        become = [f"--setuid={user[0]}", f"--setgid={user[1]}"]
    return [_unshare(), *become, "--root", str(root), "--wd", cwd, "--"]


def _arguments(
    root: Path, binds: Sequence[Bind], *, network: bool, readonly: bool = False
) -> list[str]:
    """The arguments of the script: mount points, made and resolved inside the image."""
    if network and RESOLVER.exists():
        binds = (*binds, Bind(source=RESOLVER, target=str(RESOLVER)))
    try:
        with RootFolder(root) as tree:
            fixed = [tree.real((name,)) for name in ("proc", "dev", "sys", "tmp")]
            hosts = _file_point(tree, "etc/hosts")
            triples: list[str | Path] = []
            for bind in binds:
                source = bind.source.resolve(strict=True)
                triples += ["rw" if bind.writable else "ro", source, _point(tree, bind)]
    except OSError as error:
        message = f"cannot use {root} as a root: {error.filename or ''}: {error.strerror}"
        raise InputError(message, hint="unpack the image to a folder of your own") from error
    answers = ["yes" if each else "no" for each in (network, readonly)]
    words = (root, *fixed, hosts, answers[0], sys.executable, answers[1], *triples)
    return [str(item) for item in words]


def _point(tree: RootFolder, bind: Bind) -> Path:
    if bind.source.is_dir():
        return tree.real(tree.parts(bind.target))
    return _file_point(tree, bind.target)


def _file_point(tree: RootFolder, path: str) -> Path:
    parts = tree.parts(path)
    tree.touch(parts)
    return tree.real(parts[:-1]) / parts[-1]


def _script() -> str:
    words = {"MARK": MARK, "FAILED": str(FAILED), "HOSTNAME": HOSTNAME}
    script = SETUP
    for name, value in words.items():
        script = script.replace(f"@{name}@", value)
    return script


def _unshare() -> str:
    return processes.find("unshare", remedy="apt-get install util-linux")


@functools.cache
def _namespaces(*, network: bool) -> tuple[str, ...]:
    """The command that makes the namespaces, tried once; ToolMissing if it is refused."""
    setpriv = shutil.which("setpriv")
    # Whoever kills imgbuild means its children too.
    guard = (setpriv, "--pdeathsig", "KILL") if setpriv else ()
    own = (*guard, _unshare(), *NAMESPACES, *(() if network else ("--net",)))
    mapped = (*own, "--user", "--map-root-user")
    answer = None
    for prefix in (own, mapped) if os.geteuid() == 0 else (mapped,):
        answer = processes.run([*prefix, "true"], check=False)
        if answer.status == 0:
            return prefix
    reason = answer.stderr.strip() if answer else ""
    message = f"this machine does not let you make namespaces: {reason}"
    raise ToolMissing(message, hint=REMEDY)
