#!/usr/bin/env python3
"""Measures commands that read all targets, in a project with many locked targets.

lab/growth.py --targets 1000 ../many

The project has the targets of matrix.yaml under other names, with matching locks and digests.
Nothing is downloaded. Prints the seconds and memory of each command for a tenth of the targets and
for all targets. Each command runs in a new process with a new cache, except that the second `list
--wide` uses the cache of the first.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from imgbuild.lock import lock_file, published
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import current, image_digests
from imgbuild.render import write
from imgbuild.system.reporter import SILENT_REPORTER

ROOT = Path(__file__).resolve().parents[1]
UNIQUE_KEYS = ("recommended", "retired", "tested")  # keys of a row that one target alone may have
COMMANDS = (
    ("list",),
    ("list", "--wide"),
    ("list", "--wide"),
    ("digest", "--all"),
    ("ci", "jobs", "--all"),
    ("render", "--all", "--check"),
    ("lock", "--all", "--check"),
)


class RepeatingDumper(yaml.SafeDumper):
    """A YAML dumper that writes repeated values in full, because a matrix has no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Return true for every value, because no value gets an alias."""
        return True


def new_names(number: int) -> Iterator[tuple[str, str]]:
    """Map `number` new names to the targets of this repository that they copy."""
    own = sorted(path.parent.name for path in (ROOT / "images").glob("*/lock.json"))
    for place, original in zip(range(number), itertools.cycle(own), strict=False):
        yield f"{original}-n{place}", original


def write_project(folder: Path, number: int) -> None:
    """Write a project with `number` locked targets to `folder`, which must not exist."""
    folder.mkdir(parents=True)
    (folder / "images").mkdir()
    for shared in ("constraints.yaml", "layers.json", "packages.json"):
        shutil.copy(ROOT / "images" / shared, folder / "images")
    matrix: dict[str, Any] = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    rows = matrix["targets"]
    copies = list(new_names(number))
    matrix["targets"] = {
        name: {key: value for key, value in rows[original].items() if key not in UNIQUE_KEYS}
        for name, original in copies
    }
    text = yaml.dump(
        matrix, Dumper=RepeatingDumper, sort_keys=False, default_flow_style=None, width=10_000
    )
    (folder / "matrix.yaml").write_text(text, encoding="utf-8")
    project = Project(matrix=folder / "matrix.yaml")
    for name, original in copies:
        lock = lock_file.read_lock(ROOT / "images", original)
        digests = image_digests.read_digests(ROOT / "images", lock)
        named = {"org.opencontainers.image.title": name, "dev.imgbuild.target": name}
        settings = msgspec.structs.replace(lock.settings, labels={**lock.settings.labels, **named})
        copy = msgspec.structs.replace(lock, target=name, settings=settings)
        floors = {arch: image.floors for arch, image in digests.arch.items()}
        (folder / "images" / name).mkdir()
        current.write_locked(
            project,
            copy,
            image_digests.compute_digests(copy, image_digests.layer_records(digests), floors),
        )
    read = published.load_matrix(project.matrix)
    write.keep_new(project, read, list(read.targets), SILENT_REPORTER)


def measure_command(folder: Path, cache: str, words: tuple[str, ...]) -> tuple[float, float, int]:
    """Return the wall time and processor time (s) and the memory (MB) of a command."""
    program = [sys.executable, "-m", "imgbuild", *words]
    env = {**os.environ, "IMGBUILD_CACHE": cache}
    started = time.monotonic()
    process = subprocess.Popen(program, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, program)
    wall = time.monotonic() - started
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024


def main() -> None:
    """Write the projects and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="new folder for the projects")
    parser.add_argument(
        "--targets", type=int, default=1000, help="number of targets (default: %(default)s)"
    )
    given = parser.parse_args()
    for number in (given.targets // 10, given.targets):
        folder = given.folder / str(number)
        if not folder.exists():
            write_project(folder, number)
        with tempfile.TemporaryDirectory() as cache:
            for words in COMMANDS:
                wall, processor, memory = measure_command(folder, cache, words)
                command = f"imgbuild {' '.join(words)}"
                print(f"{number} targets, {command}: {wall:.2f} s, {processor:.2f} s of processor"
                      f" time, {memory} MB")  # fmt: skip


if __name__ == "__main__":
    main()
