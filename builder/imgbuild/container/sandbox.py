"""Runs commands in an unpacked image without a container engine, with or without root.

The command runs in its own namespaces (mounts, processes, host name and, without root, a user
namespace in which the caller is root), so that nothing stays mounted or running when it ends or
imgbuild is killed. This is isolation, but not security against malicious code.
"""

from __future__ import annotations

import functools
import json
import os
import re
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
FAILED = 125  # the status if the set-up fails, as in Docker
MARK = "imgbuild sandbox: "
VARIABLES = "IMGBUILD_SANDBOX_ENV"
RESOLVER = Path("/etc/resolv.conf")
NAMESPACES = ("--mount", "--propagation", "private", "--uts", "--ipc", "--pid", "--kill-child")
REMEDY = (
    "run as root, or allow users to create namespaces: sysctl user.max_user_namespaces above 0,"
    " kernel.unprivileged_userns_clone=1 on older Debian,"
    " kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu;"
    " a container needs --privileged"
)

# Runs in the new namespaces as root and as process 1, which waits for the command, since process 1
# ignores signals. Arguments: ROOT PROC DEV SYS TMP HOSTS NETWORK PYTHON READONLY, the options of an
# overlay over ROOT or an empty text, then triples of "rw" or "ro", SOURCE and TARGET, then "--" and
# the command. Its environment is JSON in a variable, since other users see arguments. If the kernel
# does not allow a new /proc (that of a container is partly hidden), the existing one is bound.
# Mount flags of the host must be repeated by a user who is root only in this namespace.
SETUP = r"""
root=$1 proc=$2 dev=$3 sys=$4 tmp=$5 hosts=$6 network=$7 python=$8 readonly=$9
shift 9
overlay=$1
shift
fail() { echo "@MARK@cannot $*" >&2; exit @FAILED@; }
if [ -n "$overlay" ]; then
  mount -t overlay -o "$overlay" overlay "$root" || fail "mount an overlay over $root"
fi
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
"$python" -IS -c 'import json, os, sys
os.execve(sys.argv[1], sys.argv[1:], json.loads(os.environ["@VARIABLES@"]))' "$@"
exit $?
"""


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """An unpacked image at `path`.

    What commands write goes to it or, with `changes`, to that folder of the same disk, so that the
    files of `path` may be hard links to others.
    """

    path: Path
    changes: Path | None = None

    def overlay(self) -> str:
        """The options to mount an overlay over `path`; empty without `changes`."""
        if self.changes is None:
            return ""
        layers = {"lowerdir": self.path, "upperdir": self.changes, "workdir": self.changes}
        for name in ("upperdir", "workdir"):
            layers[name] /= name
            layers[name].mkdir(exist_ok=True)
        shown = [f"{name}={_escaped(folder.resolve())}" for name, folder in layers.items()]
        return ",".join([*shown, *(() if os.geteuid() == 0 else ("userxattr",))])


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of the host, mounted at the absolute path `target`."""

    source: Path
    target: str
    writable: bool = False


def run(
    root: Root,
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
    """Run `command` as root with `root` as its `/`. Any status is returned.

    `user`, a user and a group id, runs it as that user. If the caller is not root there is only one
    user id, so that root's files appear to belong to that user. With `readonly` the files of `root`
    cannot be written; `/tmp` and writable `binds` can.
    The command has `/proc`, the host's `/dev`, a read-only `/sys`, new `/tmp` and `/dev/shm`, and
    of the environment only `env`. Without `network` it has only a loopback. `stream` connects it
    to the terminal. ToolMissing if namespaces are not allowed on this machine, WorkFailed if the
    set-up fails, InputError if `root` cannot be used.
    """
    if not command:
        message = "no command to run"
        raise InputError(message)
    variables = {"PATH": PATH, "HOME": "/root", **(env or {})}
    full = [
        *_namespaces(network=network),
        *("sh", "-c", _script(), "sh"),
        *_arguments(root, binds, network=network, readonly=readonly),
        "--",
        *_enter(root.path.resolve(), cwd, user, network=network),
        *command,
    ]
    given = {VARIABLES: json.dumps(variables)}
    if stream:
        return processes.Result(processes.foreground(full, env=given, kill=True), "", "")
    result = processes.run(full, env=given, check=False)
    if result.status == FAILED and MARK in result.stderr:
        message = f"the sandbox in {root.path} failed: {result.stderr.strip()}"
        raise WorkFailed(message, hint=REMEDY)
    return result


def _enter(root: Path, cwd: str, user: tuple[int, int] | None, *, network: bool) -> list[str]:
    """The command that enters `root` and changes to `user`."""
    become: list[str] = []
    if user is not None and "--user" in _namespaces(network=network):
        become = ["--user", f"--map-user={user[0]}", f"--map-group={user[1]}"]
    elif user is not None:
        become = [f"--setuid={user[0]}", f"--setgid={user[1]}"]
    return [_unshare(), *become, "--root", str(root), "--wd", cwd, "--"]


def _arguments(image: Root, binds: Sequence[Bind], *, network: bool, readonly: bool) -> list[str]:
    """The arguments of the script: mount points, created and resolved inside the image."""
    root = image.path.resolve()
    if network and RESOLVER.exists():
        binds = (*binds, Bind(source=RESOLVER, target=str(RESOLVER)))
    try:
        with RootFolder(root) as tree:
            points = [tree.real((name,)) for name in ("proc", "dev", "sys", "tmp")]
            hosts = _file_point(tree, "etc/hosts")
            triples: list[str | Path] = []
            for bind in binds:
                source = bind.source.resolve(strict=True)
                triples += ["rw" if bind.writable else "ro", source, _point(tree, bind)]
    except OSError as error:
        message = f"cannot use {root} as a root: {error.filename or ''}: {error.strerror}"
        raise InputError(message, hint="unpack the image to a folder that you own") from error
    answers = ["yes" if each else "no" for each in (network, readonly)]
    fixed = [root, *points, hosts, answers[0], sys.executable, answers[1], image.overlay()]
    return [str(item) for item in (*fixed, *triples)]


def _escaped(path: Path) -> str:
    """`path` as mount reads it in the options of an overlay."""
    return re.sub(r"([\\,:])", r"\\\1", str(path))


def _point(tree: RootFolder, bind: Bind) -> Path:
    if bind.source.is_dir():
        return tree.real(tree.parts(bind.target))
    return _file_point(tree, bind.target)


def _file_point(tree: RootFolder, path: str) -> Path:
    parts = tree.parts(path)
    tree.touch(parts)
    return tree.real(parts[:-1]) / parts[-1]


def _script() -> str:
    words = {"MARK": MARK, "FAILED": str(FAILED), "HOSTNAME": HOSTNAME, "VARIABLES": VARIABLES}
    script = SETUP
    for name, value in words.items():
        script = script.replace(f"@{name}@", value)
    return script


def _unshare() -> str:
    return processes.find("unshare", remedy="apt-get install util-linux")


@functools.cache
def _namespaces(*, network: bool) -> tuple[str, ...]:
    """The command that creates the namespaces, tested once; ToolMissing if it fails."""
    processes.find("mount", remedy="apt-get install mount")  # for the script
    setpriv = shutil.which("setpriv")
    # If imgbuild is killed, its children must end too.
    guard = (setpriv, "--pdeathsig", "KILL") if setpriv else ()
    own = (*guard, _unshare(), *NAMESPACES, *(() if network else ("--net",)))
    mapped = (*own, "--user", "--map-root-user")
    answer = None
    for prefix in (own, mapped) if os.geteuid() == 0 else (mapped,):
        answer = processes.run([*prefix, "true"], check=False)
        if answer.status == 0:
            return prefix
    reason = answer.stderr.strip() if answer else ""
    message = f"cannot create namespaces on this machine: {reason}"
    raise ToolMissing(message, hint=REMEDY)


def can_overlay(folder: Path) -> bool:
    """Whether `run` can mount an overlay whose layers are in `folder`, which is empty."""
    root = Root(path=folder / "root", changes=folder)
    root.path.mkdir()
    mount = ["mount", "-t", "overlay", "-o", root.overlay(), "overlay", str(root.path)]
    return processes.run([*_namespaces(network=True), *mount], check=False).status == 0
