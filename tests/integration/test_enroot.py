"""Tests that a squashfs starts as with enroot, mounted by the kernel or unpacked.

Debian has no package of enroot, so the tests run the steps of its runtime, according to its source.
They mount the image below an overlay (`enroot start FILE`) or unpack it (`enroot create`), read
the variables from /etc/environment, make the root read-only, and run /etc/rc with a shell.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imgbuild.oci import layout
from imgbuild.sif import convert
from imgbuild.values import Arch
from tests.support import needs, smoke_environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
ARBITRARY_USER = "54321:54321"
MOUNTED = """\
mkdir -p "$place/lower" "$place/memory"
mount -t squashfs -o loop,ro "$image" "$place/lower"
mount -t tmpfs tmpfs "$place/memory"
cd "$place"
mkdir memory/upper memory/work
mount -t overlay -o lowerdir=lower,upperdir=memory/upper,workdir=memory/work overlay "$root"
"""
CREATED = """\
rmdir "$root"
unsquashfs -quiet -no-progress -user-xattrs -dest "$root" "$image" >/dev/null
"""
STARTED = """\
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -o remount,bind,nosuid,nodev,ro "$root"
mapfile -t variables <"$root/etc/environment"
exec env -i "${variables[@]}" /usr/sbin/chroot --userspec="$user" "$root" /bin/sh /etc/rc "$@"
"""
SET_UP = """\
set -euo pipefail
image=$1 place=$2 user=$3 root=$2/root
shift 3
mkdir -p "$root"
"""


@pytest.fixture(scope="module", name="sample")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> layout.Layout:
    needs.require_root()
    folder = tmp_path_factory.mktemp("sample")
    (folder / "wheels").mkdir()
    return smoke_environment.make_layout(folder, smoke_environment.good_wheels(folder / "wheels"))


@pytest.fixture(scope="module", name="image")
def _image(sample: layout.Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.require_tool("unsquashfs", "squashfs-tools")
    out = tmp_path_factory.mktemp("image") / "small.sqsh"
    options = convert.ConvertOptions(format="squashfs")
    convert.convert_image(sample, Arch.X86_64, out, options, lock=b"{}\n")
    return out


def start(
    way: str, image: Path, place: Path, *words: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the equivalent of `enroot start` with these arguments and `stdin`."""
    place.chmod(0o755)
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c",
               SET_UP + way + STARTED, "start", str(image), str(place), ARBITRARY_USER]  # fmt: skip
    return subprocess.run(
        [*command, *words], input=stdin, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("way", [MOUNTED, CREATED], ids=["mounted", "created"])
def test_enroot_passes_arguments_to_the_entry_point_with_the_image_environment(
    way, image, tmp_path
):
    code = (
        "import os, sys, alpha\n"
        "print(sys.argv[1:], sys.prefix, os.getcwd(), alpha.VALUE, os.getuid())\n"
        "print(os.environ['PATH'], os.access(os.environ['HOME'], os.W_OK))\n"
        "print(open('/opt/imgbuild/lock.json').read(), end='')\n"
        "print(os.access('/opt', os.W_OK))\n"
    )
    done = start(way, image, tmp_path, "python", "-c", code, "two words", "$HOME")
    assert done.stdout.splitlines() == [
        "['two words', '$HOME'] /opt/venv /workspace 2 54321",
        "/opt/venv/bin:/usr/bin:/bin True",
        "{}",
        "False",
    ], done.stderr
    assert done.returncode == 0


def test_enroot_runs_the_default_command_of_the_image(image, tmp_path):
    done = start(MOUNTED, image, tmp_path, stdin='echo "in $PWD"; exit 7\n')
    assert (done.stdout, done.returncode) == ("in /workspace\n", 7), done.stderr
