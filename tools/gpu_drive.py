#!/usr/bin/env python3
"""Puts images together as their loads come in, and proves each on GPUs as soon as it is whole.

    python3 gpu_drive.py plan.json in/ work/ &

For a machine that is lent for minutes and is sent its loads one by one: nothing waits that could
run. The plan names images (gpu_pack's images/TARGET.json, beside the plan) and runs:

    {"images": ["images/cu130-vllm.json"],
     "runs": [{"name": "first", "image": "cu130-vllm", "gpus": [0], "alone": true,
               "words": ["--tier=gpu", "--fresh"]},
              {"name": "second", "image": "cu130-vllm", "gpus": [0], "after": ["first"],
               "words": ["--tier=gpu", "--caches={outs}/first/cache"]}]}

A run is gpu_proof.py with these words, in which {outs} is the folder of all runs' reports. It
begins when its image is whole, the runs that it comes `after` have ended, and no other run has its
GPUs; `alone`, when nothing else is at work here, as a run needs whose seconds count. A load is to
be moved into in/ when it is complete. work/ holds state.txt with a line for each image and run,
roots/, logs/, and outs/NAME of each run. Status 0 if all passed. Runs as root with Python 3.10 and
no package; gpu_unpack.py, gpu_proof.py and smoke_tests/ lie beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MISSING = 3  # gpu_unpack's status where parts have not come yet
PAUSE = 0.3  # seconds between two looks at what is at work
WAITS, WORKS, ENDED = "waits", "works", "ended"


class Task:
    """A command that works at some time, and where it stands."""

    def __init__(self, name: str, command: list[str], log: Path, also: dict[str, str]) -> None:
        self.name, self.command, self.log, self.also = name, command, log, also
        self.state, self.status, self.seconds = WAITS, 0, 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it; what it says goes to its log."""
        self._began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **self.also}, start_new_session=True,
            )  # fmt: skip
        self.state = WORKS

    def look(self) -> None:
        """Find out whether it has ended."""
        status = self._process.poll() if self._process and self.state == WORKS else None
        if status is not None:
            self.state, self.status = ENDED, status
            self.seconds = time.monotonic() - self._began

    def give_up(self) -> None:
        """It cannot begin any more."""
        self.state, self.status = ENDED, 1

    def kill(self) -> None:
        """End it and all that it started at once; unshare takes its namespaces along."""
        if self._process is not None and self.state == WORKS:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def passed(self) -> bool:
        """Whether it has ended, and well."""
        return self.state == ENDED and self.status == 0

    @property
    def line(self) -> str:
        """Where it stands, in words."""
        told = f"status {self.status} after {self.seconds:.1f} s" if self.state == ENDED else ""
        return f"{self.name:32} {self.state} {told}".rstrip()


class Image(Task):
    """An image that is put together from the loads that are there, again when there are more."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        work: Path = options.work
        self.path, self.root = path, work / "roots" / path.stem
        command = [sys.executable, str(HERE / "gpu_unpack.py"), str(path), str(options.loads),
                   str(self.root), "--wheels", str(options.wheels)]  # fmt: skip
        if options.beside is not None:
            command += ["--beside", str(options.beside)]
        super().__init__(path.stem, command, work / "logs" / f"{path.stem}.unpack", {})
        self._loads, self._seen = options.loads, -1

    def go_on(self) -> None:
        """Take what has come since the last time."""
        self.look()
        if self.state == ENDED and self.status == MISSING:
            self.state, self.status = WAITS, 0
        if self.state == WAITS:
            count = len(list(self._loads.iterdir()))
            if count != self._seen:
                self._seen = count
                self.begin()


class Run(Task):
    """The smoke tests of a whole image."""

    def __init__(self, told: dict[str, Any], image: Image, options: argparse.Namespace) -> None:
        self.image, self.gpus = image, set(told["gpus"])
        self.after, self.alone = told.get("after", []), told.get("alone", False)
        outs: Path = options.work / "outs"
        words = [word.replace("{outs}", str(outs)) for word in told.get("words", [])]
        command = [sys.executable, str(HERE / "gpu_proof.py"), str(image.path), str(image.root),
                   str(HERE / "smoke_tests"), str(outs / told["name"]), *words]  # fmt: skip
        log = options.work / "logs" / f"{told['name']}.run"
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, told["gpus"]))}
        super().__init__(told["name"], command, log, shown)


def main(arguments: list[str]) -> int:
    """Work until every image and every run has ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan", type=Path, help="JSON: which images, and which runs")
    parser.add_argument("loads", type=Path, help="folder into which loads are moved")
    parser.add_argument("work", type=Path, help="folder for roots, reports and state.txt")
    parser.add_argument("--beside", type=Path, help="sha256sum of files that this machine has")
    parser.add_argument("--wheels", type=Path, default=HERE, help="folder of zstandard's wheel")
    options = parser.parse_args(arguments)
    for name in ("plan", "loads", "work"):
        setattr(options, name, getattr(options, name).resolve())
    images, runs = read_plan(options, parser)
    for name in ("roots", "logs", "outs"):
        (options.work / name).mkdir(parents=True, exist_ok=True)
    options.loads.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tasks = [*images, *runs]
    try:
        while any(task.state != ENDED for task in tasks):
            step(images, runs)
            tell(options.work / "state.txt", tasks)
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        for task in tasks:
            task.kill()
        return 130
    return 0 if all(task.passed for task in tasks) else 1


def read_plan(
    options: argparse.Namespace, parser: argparse.ArgumentParser
) -> tuple[list[Image], list[Run]]:
    """The images and runs of the plan; the program ends with status 2 where it makes no sense."""
    plan = json.loads(options.plan.read_text("utf-8"))
    images = {path.stem: Image(path, options) for path in paths(options.plan, plan["images"])}
    runs: list[Run] = []
    for told in plan["runs"]:
        if told["image"] not in images:
            parser.error(f"{options.plan}: run {told['name']} is of no image: {told['image']}")
        before = {run.name for run in runs}
        if told["name"] in before:
            parser.error(f"{options.plan}: two runs are called {told['name']}")
        # Runs come after earlier ones of the plan alone, so that none waits for itself.
        if absent := [name for name in told.get("after", []) if name not in before]:
            parser.error(f"{options.plan}: before {told['name']} there is no run {absent[0]}")
        runs.append(Run(told, images[told["image"]], options))
    return list(images.values()), runs


def paths(plan: Path, names: list[str]) -> list[Path]:
    """The files of the images, which lie beside the plan."""
    return [plan.parent / name for name in names]


def step(images: list[Image], runs: list[Run]) -> None:
    """Look at what works, and begin what can begin."""
    for image in images:
        image.go_on()
    for run in runs:
        run.look()
    for run in runs:
        if run.state == WAITS and run.image.state == ENDED and not run.image.passed:
            run.give_up()
        if run.state == WAITS and may_begin(run, images, runs):
            run.begin()


def may_begin(run: Run, images: list[Image], runs: list[Run]) -> bool:
    """Whether nothing is in its way any more."""
    working = [other for other in runs if other.state == WORKS]
    if run.alone and (working or any(image.state == WORKS for image in images)):
        return False
    return (
        run.image.passed
        and all(other.state == ENDED for other in runs if other.name in run.after)
        and not any(other.alone or other.gpus & run.gpus for other in working)
    )


def tell(path: Path, tasks: list[Task]) -> None:
    """Say where all stand; a reader never sees half of it."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text("".join(f"{task.line}\n" for task in tasks), "utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
