#!/usr/bin/env python3
"""Compares the run time of an imgbuild command in two checkouts, in alternating pairs of runs.

git worktree add ../before REVISION
    lab/paired.py --before ../before --runs 5 -- build cu124-vllm

Prints the median wall time and processor time of both checkouts, and the difference. The first pair
only compiles modules and is not counted. `--setup` specifies a command to run before each run, such
as `rm -rf build`. If a checkout has a .venv, its Python runs imgbuild.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def time_command(tree: Path, words: list[str]) -> tuple[float, float]:
    """Return the wall time and processor time, in seconds, of one run with the code of `tree`."""
    python = tree / ".venv/bin/python"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run(
        [python if python.exists() else sys.executable, "-P", "-m", "imgbuild", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(tree / "builder"),
            "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"paired{tree}"),
            "PYTHONDONTWRITEBYTECODE": "",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the pairs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="checkout to compare with")
    parser.add_argument(
        "--after", type=Path, default=ROOT, help="checkout to measure (default: this checkout)"
    )
    parser.add_argument("--runs", type=int, default=5, help="number of pairs to measure")
    parser.add_argument("--setup", default="", help="command to run before each run")
    parser.add_argument("words", nargs="+", help="subcommand and options of imgbuild, after --")
    given = parser.parse_args()
    trees = (given.before.resolve(), given.after.resolve())
    timings: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in trees}
    for number in range(given.runs + 1):
        for tree in trees if number % 2 else trees[::-1]:
            if given.setup:
                subprocess.run(shlex.split(given.setup), check=True)
            taken = time_command(tree, given.words)
            if number:
                timings[tree].append(taken)
    for at, what in enumerate(("wall", "processor")):
        old, new = (statistics.median(taken[at] for taken in timings[tree]) for tree in trees)
        print(f"{what}: {old:.3f} s before, {new:.3f} s after, {100 * (new / old - 1):+.1f} %")


if __name__ == "__main__":
    main()
