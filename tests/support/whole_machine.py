"""Runs commands as root in a root folder that represents a machine and allows namespaces.

Commands of imgbuild require namespaces, which the sandbox denies.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from imgbuild.container.sandbox import BindMount
from imgbuild.system.process import ProcessResult
from tests.support import needs

# Arguments: ROOT FOLDER, triples of "rw" or "ro", SOURCE and TARGET, then "--" and the command.
SETUP = r"""
set -e
root=$1 folder=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/dev" "$root/sys" "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
ip link set lo up
while [ "$1" != -- ]; do
  if [ -d "$2" ]; then mkdir -p "$root$3"; else mkdir -p "$root${3%/*}"; : >>"$root$3"; fi
  mount --bind "$2" "$root$3"
  if [ "$1" = ro ]; then mount -o remount,bind,ro "$root$3"; fi
  shift 3
done
shift
cd "$root"
pivot_root . .
umount --lazy .
exec chroot . /bin/sh -c 'cd "$1"; shift; exec "$@"' sh "$folder" "$@"
"""


def run_in_machine(
    root: Path,
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    binds: Sequence[BindMount],
) -> ProcessResult:
    """Run `command` in `folder` of the machine without a network, and return the result."""
    needs.require_root()
    unshare = needs.require_tool("unshare", "util-linux")
    needs.require_tool("ip", "iproute2")
    triples = [
        word
        for bind in binds
        for word in ("rw" if bind.writable else "ro", str(bind.source.resolve()), bind.target)
    ]
    options = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
    done = subprocess.run(
        [unshare, *options, "sh", "-c", SETUP, "sh", root, folder, *triples, "--", *command],
        env={"PATH": f"{env['PATH']}{os.pathsep}{os.environ['PATH']}:/usr/sbin:/sbin", **{
            name: value for name, value in env.items() if name != "PATH"
        }},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ProcessResult(done.returncode, done.stdout, done.stderr)
