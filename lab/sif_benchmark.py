"""Compares `imgbuild build --format sif` with `apptainer build`, with the same compressor.

Prints a Markdown table for docs/benchmarks.md with medians of wall time, peak memory and peak disk
space beyond the output. In addition to the layout, a run requires space for Apptainer's unpacked
image and two copies of the SIF: 18 GB for a target such as cu124-vllm. The page cache is warm for
both programs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

import measuring

IMGBUILD = Path(sys.executable).with_name("imgbuild")
OPTIONS = {"zstd": "-comp zstd -Xcompression-level 1", "gzip": "-comp gzip"}  # as imgbuild's own
INTERVAL = 5.0  # seconds between two measurements of the disk
HEAD = (
    "| | time | ratio | processor time | memory (largest process) | disk beyond the output | size |"
)


class ConversionRun(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one conversion, with its peak bytes on disk and the size of its output.

    `cpu` is the processor time of all processes in seconds, which hardly depends on other load.
    """

    measure: measuring.CommandMeasure
    cpu: float
    disk: int
    size: int


class FolderWatch(threading.Thread):
    """Records the peak size of the files in `folder`, except for the output `out`."""

    def __init__(self, folder: Path, out: str) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._folder = folder
        self._out = out
        self._end = threading.Event()

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._end.wait(INTERVAL):
            self.peak = max(self.peak, self._disk_usage())

    def end(self) -> None:
        """Stop sampling. Afterwards, `peak` is final."""
        self._end.set()
        self.join()

    def _disk_usage(self) -> int:
        usage = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                if self._out not in name:  # imgbuild's has a first name with its last one in it
                    try:
                        usage += Path(folder, name).lstat().st_blocks * 512
                    except FileNotFoundError:
                        continue
        return usage


def main() -> None:
    """Run the benchmark in a temporary folder."""
    options = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="imgbuild-sif-", dir=options.work))
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
    add("layout", type=Path, help="OCI layout of an image for the architecture of this machine")
    add("--runs", type=int, default=3, help="number of runs of each program (default: %(default)s)")
    add("--compress", choices=[*OPTIONS], default="zstd", help="compressor for both programs")
    add(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="folder for output and temporary files",
    )
    return parser.parse_args()


def run_benchmark(options: argparse.Namespace, folder: Path) -> str:
    """Run both programs alternately, so that other load affects both, and return the report."""
    before = measuring.describe_machine()
    layout = options.layout.resolve()
    for blob in (layout / "blobs/sha256").iterdir():
        with blob.open("rb") as file:
            while file.read(1 << 24):
                pass
    runs: dict[str, list[ConversionRun]] = {"imgbuild": [], "apptainer build": []}
    for _ in range(options.runs):
        out = folder / "ours.sif"
        command = [
            *(IMGBUILD, "build", "--from", layout, "--format", "sif"),
            *("--output", out, "--compress", options.compress),
        ]
        runs["imgbuild"].append(run_conversion(command, folder, out))
        out = folder / "theirs.sif"
        arguments = ["--disable-cache", "--mksquashfs-args", OPTIONS[options.compress]]
        command = ["apptainer", "build", *arguments, out, f"oci:{layout}"]
        runs["apptainer build"].append(run_conversion(command, folder, out))
    return format_report(runs, before)


def run_conversion(command: Sequence[str | Path], folder: Path, out: Path) -> ConversionRun:
    """Run `command`, which creates `out`, and remove `out`.

    Temporary files are created in `folder`.
    """
    place = folder / "temporary"
    place.mkdir()
    watch = FolderWatch(folder, out.name)
    watch.start()
    before = processor_seconds()
    try:
        taken = measuring.measure_command(
            command, env={"TMPDIR": str(place), "APPTAINER_TMPDIR": str(place)}
        )
    finally:
        watch.end()
    cpu = processor_seconds() - before
    conversion = ConversionRun(measure=taken, cpu=cpu, disk=watch.peak, size=out.stat().st_size)
    out.unlink()
    shutil.rmtree(place)
    return conversion


def processor_seconds() -> float:
    """Return the processor time of all ended child processes in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def format_report(runs: dict[str, list[ConversionRun]], before: str) -> str:
    """Return a line about the machine, and a table of medians."""
    count = len(runs["imgbuild"])
    lines = [f"{before}; median of {count}.", "", HEAD, "| --- " * 7 + "|"]
    slowest = max(median_seconds(each) for each in runs.values())
    for name, each in runs.items():
        memory = statistics.median(run.measure.memory for run in each) / 1e6
        largest = statistics.median(run.measure.largest for run in each) / 1e6
        disk = max(run.disk for run in each) / 1e6
        times = ", ".join(f"{run.measure.seconds:.1f}" for run in each)
        cpu = statistics.median(run.cpu for run in each)
        size = each[0].size / 1e6
        lines.append(
            f"| `{name}` | {median_seconds(each):.1f} s ({times}) |"
            f" {slowest / median_seconds(each):.2f} times |"
            f" {cpu:.1f} s |"
            f" {memory:,.0f} MB ({largest:,.0f} MB) | {disk:,.1f} MB | {size:,.1f} MB |"
        )
    return "\n".join(lines)


def median_seconds(runs: Sequence[ConversionRun]) -> float:
    """Return the median wall time in seconds."""
    return statistics.median(run.measure.seconds for run in runs)


if __name__ == "__main__":
    main()
