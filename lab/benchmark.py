"""Compares build times of imgbuild and `docker build` with uv, for the same lock and wheels.

A measurement ends when a command has run in a container of the image, unless the case states
otherwise. Prints a Markdown table for docs/benchmarks.md with medians of wall time, peak memory and
bytes to push. Run it with `make benchmark`. The page cache is warm for both builders, and pins are
changed in a copy of the project.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

import contenders
import measuring

ROOT = Path(__file__).resolve().parents[1]

NO_FIGURE = "\N{EN DASH}"
CASES = {
    "cold": "cold, from downloaded wheels",
    "nothing": "nothing changed",
    "trl": "trl's pin changed",
    "small": "pin of another small package changed",
    "layout": "cold, to an OCI layout, without a container",
    "digest": "the digest alone",
}


class CaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A case with the medians of each builder, or None for a builder that is not measured."""

    case: str
    docker: measuring.CommandMeasure | None
    imgbuild: measuring.CommandMeasure | None
    docker_push: int | None
    imgbuild_push: int | None


def main() -> None:
    """Run the benchmark in a temporary folder."""
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="imgbuild-benchmark-", dir=options.work))
    try:
        print(run_benchmark(options, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", default="cu124-vllm", help="target to build (default: %(default)s)")
    add(
        "--runs",
        type=int,
        default=5,
        help="number of runs of each imgbuild case (default: %(default)s)",
    )
    add(
        "--docker-runs",
        type=int,
        default=3,
        help="number of runs of each docker case; 0 omits Docker",
    )
    add("--case", action="append", choices=[*CASES], help="run only this case; repeatable")
    add("--trl", default="0.18.1", help="version of trl to pin")
    add("--small", default="tqdm==4.67.0", help="second pin to change, as NAME==VERSION")
    add("--through", default="docker", help="how imgbuild runs the command: docker, podman or root")
    add("--jobs", type=int, help="maximum number of imgbuild processes (default: one per core)")
    add(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="folder for images; requires 30 GB",
    )
    return parser.parse_args()


def run_benchmark(options: argparse.Namespace, folder: Path) -> str:
    """Run the selected cases, and return the report as Markdown."""
    cases = options.case or [*CASES]
    before = measuring.describe_machine()
    original = contenders.Project(root=ROOT, target=options.target)
    base = contenders.prepare_target(original, folder / "base")
    changed = {
        case: contenders.change_project(original, pins, folder / f"project-{case}")
        for case, pins in (
            ("trl", {"trl": options.trl}),
            ("small", dict([options.small.split("==")])),
        )
        if case in cases
    }
    rows: dict[str, CaseRow] = {}
    imgbuild = contenders.ImgbuildContender(folder / "imgbuild", options.through, options.jobs)
    docker = contenders.DockerContender(folder / "docker") if options.docker_runs else None
    for case in cases:
        after = changed.get(case, base)
        imgbuild_measure, imgbuild_push = run_imgbuild(imgbuild, case, base, after, options.runs)
        other, other_push = None, None
        if docker is not None and case not in ("layout", "digest"):
            other, other_push = run_docker(docker, case, base, after, options.docker_runs)
        rows[case] = CaseRow(
            case=case,
            docker=other,
            imgbuild=imgbuild_measure,
            docker_push=other_push,
            imgbuild_push=imgbuild_push,
        )
    if docker is not None:
        docker.remove_images()
    return format_report(rows.values(), options, before, docker)


def run_imgbuild(
    imgbuild: contenders.ImgbuildContender,
    case: str,
    base: contenders.PreparedTarget,
    after: contenders.PreparedTarget,
    runs: int,
) -> tuple[measuring.CommandMeasure, int | None]:
    """Return the median of `runs`, and the bytes to push to a registry that contains `base`."""
    once: Callable[[], measuring.CommandMeasure] = {
        "cold": lambda: imgbuild.answer(base, have=None),
        "trl": lambda: imgbuild.answer(after, have=base),
        "small": lambda: imgbuild.answer(after, have=base),
        "nothing": lambda: imgbuild.answer(base, have=base),
        "layout": lambda: imgbuild.build(base),
        "digest": lambda: imgbuild.digest(base),
    }[case]
    measured = median_measure(once() for _ in range(runs))
    if case in ("digest", "layout"):
        return measured, None
    have = {} if case == "cold" else base.layers
    return measured, sum(size for digest, size in after.layers.items() if digest not in have)


def run_docker(
    docker: contenders.DockerContender,
    case: str,
    base: contenders.PreparedTarget,
    after: contenders.PreparedTarget,
    runs: int,
) -> tuple[measuring.CommandMeasure, int]:
    """Return the median of `runs` of `docker build` with uv, and the bytes to push."""
    if case == "nothing":
        docker.ensure_image(base)
        return median_measure(docker.answer(cached=True) for _ in range(runs)), 0
    have = {} if case == "cold" else docker.layers(base)
    docker.prepare(after)
    measured = median_measure(docker.answer(cached=False) for _ in range(runs))
    new = docker.remember_layers(after)
    return measured, sum(size for digest, size in new.items() if digest not in have)


def median_measure(measures: Iterable[measuring.CommandMeasure]) -> measuring.CommandMeasure:
    """Return a measure with the median of each figure."""
    samples = list(measures)
    return measuring.CommandMeasure(
        seconds=statistics.median(item.seconds for item in samples),
        memory=int(statistics.median(item.memory for item in samples)),
        largest=int(statistics.median(item.largest for item in samples)),
    )


def format_report(
    rows: Iterable[CaseRow],
    options: argparse.Namespace,
    before: str,
    docker: contenders.DockerContender | None,
) -> str:
    """Format the table, with explanatory notes."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    version = f"Docker {docker.version()}, " if docker else ""
    runs = f"median of {options.runs} (imgbuild) and {options.docker_runs} (docker)"
    head = (
        "case",
        "docker build with uv",
        f"imgbuild, {options.through}",
        "ratio",
        "memory, docker",
        "memory, imgbuild (largest process)",
        "to push, docker",
        "to push, imgbuild",
    )
    lines = [f"`{options.target}` at {commit or 'no commit'}; {before}. {version}{runs}.", ""]
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in rows:
        imgbuild_measure, other = row.imgbuild, row.docker
        cells = [
            CASES[row.case],
            f"{other.seconds:.1f} s" if other else NO_FIGURE,
            f"{imgbuild_measure.seconds:.2f} s" if imgbuild_measure else NO_FIGURE,
            f"{other.seconds / imgbuild_measure.seconds:.1f} times"
            if imgbuild_measure and other
            else NO_FIGURE,
            format_megabytes(other.memory) if other else NO_FIGURE,
            f"{format_megabytes(imgbuild_measure.memory)}"
            f" ({format_megabytes(imgbuild_measure.largest)})"
            if imgbuild_measure
            else NO_FIGURE,
            format_megabytes(row.docker_push),
            format_megabytes(row.imgbuild_push),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_megabytes(size: int | None) -> str:
    """Return a size in MB, or a dash for None."""
    return NO_FIGURE if size is None else f"{size / 1e6:,.1f} MB"


if __name__ == "__main__":
    main()
