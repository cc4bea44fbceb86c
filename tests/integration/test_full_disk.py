"""Tests commands on mounted read-only and full file systems."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support import images, needs, sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

EMPTY_CACHE = ("CACHEDIR.TAG", "FORMAT", "live", "locks", "locks/entries", "scratch")
# Fills the disk after a layer was unpacked, adds the layer, and frees space again.
ADD = """
import sys
from pathlib import Path
from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError
store = Store.open("cache")
try:
    with store.scratch() as scratch:
        made = scratch / "layer"
        made.mkdir()
        (made / "member").write_bytes(b"content")
        try:
            with open("zeros", "wb", buffering=0) as zeros:
                while zeros.write(bytes(4096)):
                    pass
        except OSError:
            pass
        store.add_unpacked({"sha256:" + "1" * 64: made})
except ImgbuildError as error:
    print(error.message, flush=True)
    sys.exit(error.exit_code)
finally:
    Path("zeros").unlink()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A locked project with an incompressible wheel of 3 MB, and all files in the cache."""
    needs.require_root()
    folder = tmp_path_factory.mktemp("project")
    images.python_base(folder)
    index = sample_project.sample_index()
    index.wheel("large", "1.0", files={"large.bin": random.Random(0).randbytes(3_000_000)})
    with serve_site(FileSite(files=index.site_files())) as site:
        project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
        base = {
            "kind": "registry",
            "image": sample_project.serve_image(site, folder / "base", "base"),
            "python": "3.11",
            "glibc": "2.36",
            "interpreter": "/usr/bin/python3.11",
        }
        project.write(base)
        matrix = project.folder / "matrix.yaml"
        row = "requires: {large: {reason: it is large}}"
        matrix.write_text(matrix.read_text().replace("requires: {}", row))
        project.run("lock", TARGET)
        yield project


def mounted(
    project: Project, disk: Path, setup: str, *arguments: str, cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run imgbuild with a tmpfs at `disk`, prepared by `setup`, and then list its files."""
    environment = project.environment() | ({"IMGBUILD_CACHE": str(cache)} if cache else {})
    return in_disk(disk, setup, project.command(*arguments), project.folder, environment)


def in_disk(
    disk: Path, setup: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `command` with a tmpfs at `disk` that has the matrix of `folder`. Then list its files."""
    mount, unshare = needs.require_tool("mount"), needs.require_tool("unshare", "util-linux")
    disk.mkdir()
    script = (
        f"set -e; {mount} -t tmpfs none {disk}; cp matrix.yaml {disk}; {setup}; cd {disk}; set +e;"
        f' "$@"; status=$?; find {disk} -mindepth 1; exit $status'
    )
    return subprocess.run(
        [unshare, "--mount", "sh", "-c", script, "sh", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def read_only(disk: Path) -> str:
    return f"mount -o remount,ro {disk}"


def full(disk: Path) -> str:
    """Fill the file system except for 1 MB."""
    return f"mount -o remount,size=1m {disk}"


def test_lock_in_a_read_only_folder_fails_early(project, tmp_path):
    disk = tmp_path / "disk"
    done = mounted(project, disk, read_only(disk), "lock", TARGET)
    assert done.returncode == 2
    assert f"error: cannot write {disk}/images: {disk} is on a read-only file system" in done.stderr
    assert "resolving" not in done.stderr


@pytest.mark.parametrize(
    "verb",
    [
        ("build", TARGET),
        ("build", TARGET, "--format", "sif"),
        ("render", TARGET, "--format", "requirements"),
    ],
)
def test_unwritable_output_is_refused_early(project, tmp_path, verb):
    disk = tmp_path / "disk"
    words = (*verb, "--matrix", str(project.folder), "--output", "some/where")
    done = mounted(project, disk, read_only(disk), *words)
    assert done.returncode == 2
    assert "error: cannot write some/where: " in done.stderr
    assert "hint: choose another folder with --output" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_layout_on_full_disk_is_an_error_and_leaves_no_partial_files(project, tmp_path):
    disk = tmp_path / "disk"
    words = ("build", TARGET, "--matrix", str(project.folder), "--output", "image")
    done = mounted(project, disk, full(disk), *words)
    assert done.returncode == 1
    assert "error: no space left for image: No space left on device" in done.stderr
    assert "hint: choose another folder with --output" in done.stderr
    assert "/image" not in done.stdout


def test_archive_on_full_disk_is_an_error_and_leaves_no_partial_file(project, tmp_path):
    disk = tmp_path / "disk"
    form = ("--format", "oci-archive", "--output", "image.tar")
    words = ("build", TARGET, "--matrix", str(project.folder), *form)
    done = mounted(project, disk, full(disk), *words)
    assert done.returncode == 1
    assert "error: no space left for image.tar: No space left on device" in done.stderr
    assert "image.tar" not in done.stdout


def test_lock_on_full_disk_fails_early(project, tmp_path):
    disk = tmp_path / "disk"
    fill = f"{full(disk)}; cat /dev/zero > {disk}/zeros 2>&- || true"
    done = mounted(project, disk, fill, "lock", TARGET)
    assert done.returncode == 1
    assert f"error: no space left for {disk}/images: No space left on device" in done.stderr
    assert "hint: free some space on this file system" in done.stderr
    assert "resolving" not in done.stderr
    assert ".tmp" not in done.stdout + done.stderr


def test_partially_unpacked_layers_are_removed_on_full_disk(project, tmp_path):
    """The cache is on a disk with 1 MB free, which is less than the wheel of the layer `large`."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    project.run("build", TARGET, "--output", str(image))
    words = ("run", TARGET, "--matrix", str(project.folder), "--layout", str(image))
    command = (*words, "--through", "root", "--", "true")
    done = mounted(project, disk, full(disk), *command, cache=disk / "cache")
    assert done.returncode == 1
    assert f"error: no space left for {disk}/cache" in done.stderr
    assert "hint: free some space with `imgbuild cache prune" in done.stderr
    names = {path.removeprefix(f"{disk}/") for path in done.stdout.splitlines()}
    notice = {name for name in names if name.startswith("cache/facts")}  # of the day's messages
    left = {"matrix.yaml", "cache", *(f"cache/{name}" for name in EMPTY_CACHE)}
    assert names - notice == left


def test_full_disk_is_reported_while_an_unpacked_layer_is_added(project, tmp_path):
    disk = tmp_path / "disk"
    done = in_disk(
        disk, full(disk), [sys.executable, "-c", ADD], project.folder, project.environment()
    )
    assert (done.returncode, done.stderr) == (1, "")
    message, *left = done.stdout.splitlines()
    place = re.escape(f"{disk}/cache")
    form = rf"no space left for {place}: No space left on device \([\d.]+ k?B free\)"
    assert re.fullmatch(form, message)
    assert f"{disk}/cache/FORMAT" in left
    assert not [path for path in left if "member" in path or "/unpacked" in path]


# Between 3 and 6 MB the wheel fits, but its layer does not.
SIZES = ("40k", "400k", "3100k", "4500k")


@pytest.mark.parametrize(
    ("verb", "size"),
    [
        *((("build", TARGET, "--output"), size) for size in SIZES[1:3]),
        (("lock", TARGET), SIZES[0]),
        *(
            pytest.param(("build", TARGET, "--output"), size, marks=pytest.mark.long)
            for size in (SIZES[0], SIZES[3])
        ),
        pytest.param(("lock", TARGET), SIZES[1], marks=pytest.mark.long),
    ],
)
def test_full_cache_disk_is_reported(project, tmp_path, verb, size):
    """The error names the cache and its location, regardless of the failing write."""
    disk, image = tmp_path / "disk", tmp_path / "image"
    words = [*verb, str(image)] if verb[-1] == "--output" else [*verb, "--again"]
    folder = tmp_path / "project"
    shutil.copytree(project.folder, folder)
    done = mounted(
        project, disk, f"mount -o remount,size={size} {disk}", *words,
        "--matrix", str(folder), cache=disk / "cache",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{disk}/cache" in line
    assert " free" in line
