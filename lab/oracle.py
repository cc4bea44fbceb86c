#!/usr/bin/env python3
"""Compares the audit with Python on random package sets that were not used for its development.

Each seed draws two sets from the same requirements: the control, as resolved by uv, and a set in
which one version is forced. Both sets are installed and imported on the CPU, with a new process for
each package. Then `imgbuild audit --requirements` audits both sets. A failure counts only if the
control can be imported. Only a sample of the draws without a failure is audited. Results are lines
of JSON, one per seed. Seeds with a result are skipped, so a run can be interrupted and continued.
Even seeds are for development, and `report` shows no details of odd seeds.

`again` repeats only the audit, and takes Python's results from draws that `run --no-audit` created.
A set is installed again if the audit reports errors that were not looked up before.

    oracle.py run --seeds 1-200
    oracle.py again --seeds 1-200 --draws results.jsonl --results new.jsonl
    oracle.py report --details
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

import oracle_sets
from imgbuild.report import Report
from oracle_probe import SetProbe
from oracle_results import (
    MeasuredDraw,
    exclusion_counts,
    parse_seeds,
    read_results,
    seed_details,
    verdict_row,
)
from oracle_sets import PackageShop, ResolvedPins, SetDraw
from oracle_verdicts import (
    CHOICES,
    METADATA,
    NOT_AUDITED,
    UNKNOWN,
    UNTESTABLE,
    Alarm,
    Failure,
    SetResult,
    audit_errors,
    module_of_file,
    verdict_table,
)

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(tempfile.gettempdir(), "oracle")
CACHE_LIMIT = 15 << 30  # bytes of downloaded wheels
AUDIT_LIMIT = 3600  # seconds
ALARMS = 12  # errors of one set that are looked up
SAMPLE = 0.25  # share of draws without a failure
IMPORTS = 3  # packages of one set that are imported at once
LIBRARIES = 40  # shared objects of one package that are opened
_NO_NETWORK = re.compile(r"NameResolutionError|gaierror|Name or service not known")


@dataclasses.dataclass
class InstalledSet:
    """An installed set, with the modules that Python could not import."""

    pins: ResolvedPins
    folder: Path
    probe: SetProbe
    imported: tuple[str, ...]
    unmet: tuple[str, ...]
    failures: list[Failure] = dataclasses.field(default_factory=list)
    modules: set[str] = dataclasses.field(default_factory=set)

    @property
    def fails(self) -> bool:
        """Whether Python fails for a reason other than a missing GPU."""
        return self.result().fails

    def result(self) -> SetResult:
        """Return the results of Python for the set, without those of an audit."""
        return SetResult(
            imported=self.imported,
            failures=tuple(self.failures),
            unmet=self.unmet,
            alarms=(),
            audited=NOT_AUDITED,
        )


class Experiments:
    """Installs, imports and audits sets below `folder`, which only one process can use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # sets have one path: one process at a time
        self.table = oracle_sets.load_table()
        self.shop = PackageShop(self.table, folder)
        self._base_lock = threading.Lock()
        self.commit = _output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])

    def measure_draw(self, seed: int, sample: float, *, audit: bool = True) -> MeasuredDraw:
        """Install, import and, with `audit`, audit the draw of `seed`.

        Only the share `sample` of draws without a failure is audited.
        """
        draw = oracle_sets.draw_sets(seed, self.shop)
        if draw is None:
            return MeasuredDraw(seed=seed, failure="uv refused all attempts", commit=self.commit)
        measured = MeasuredDraw(seed=seed, draw=draw, commit=self.commit)
        with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:

            def try_set(which: str) -> InstalledSet:
                installed_set = stack.enter_context(self._install_set(draw, which))
                self._import_packages(installed_set, draw)
                return installed_set

            try:
                if oracle_sets.is_sampled(seed, sample):
                    forced, control = pool.map(try_set, ("forced", "control"))
                else:
                    forced = try_set("forced")
                    if not forced.fails:
                        failure = "imports, not in the sample"
                        return msgspec.structs.replace(measured, failure=failure)
                    control = try_set("control")
            except oracle_sets.UnresolvedError as error:
                return msgspec.structs.replace(measured, failure=str(error)[-500:])
            ignore_incomparable(control, forced)
            if control.fails:
                return msgspec.structs.replace(
                    measured, failure="the control fails", control=control.result()
                )
            answers = pool.map(self._audit_set if audit else InstalledSet.result, (control, forced))
            return msgspec.structs.replace(measured, control=next(answers), forced=next(answers))

    def audit_again(
        self, measured: MeasuredDraw, chosen: Callable[[SetResult], bool]
    ) -> MeasuredDraw:
        """Return `measured` with current audit results for the `chosen` sets."""
        if measured.draw is None or measured.control is None or measured.forced is None:
            return measured
        control, forced = measured.control, measured.forced
        if chosen(control):
            control = self._audit_again(measured.draw, "control", control)
        if chosen(forced):
            forced = self._audit_again(measured.draw, "forced", forced)
        return msgspec.structs.replace(measured, control=control, forced=forced, commit=self.commit)

    def _audit_again(self, draw: SetDraw, which: str, previous: SetResult) -> SetResult:
        """Return `previous` with current errors. New errors are looked up in the installed set.

        Raises OSError or UnresolvedError if the set can no longer be installed.
        """
        audit_report, complaint, seconds = self._audit_pins(
            draw.forced if which == "forced" else draw.control
        )
        facts = {
            str(alarm.finding): alarm.fact
            for alarm in previous.alarms
            if alarm.fact != UNKNOWN or alarm.finding.check in (METADATA, *UNTESTABLE)
        }
        errors = audit_errors(audit_report.findings if audit_report is not None else ())
        if all(str(finding) in facts for finding in errors):
            alarms = [Alarm(finding=finding, fact=facts[str(finding)]) for finding in errors]
        else:
            with self._install_set(draw, which) as installed_set:
                alarms = list(_look_up_alarms(audit_report, installed_set.probe))
        return msgspec.structs.replace(
            previous, alarms=tuple(alarms), audited=complaint, audit_seconds=seconds
        )

    @contextlib.contextmanager
    def _install_set(self, draw: SetDraw, which: str) -> Iterator[InstalledSet]:
        """Install the set "forced" or "control" for the duration of the block."""
        pins = draw.forced if which == "forced" else draw.control
        packages = oracle_sets.packages_to_import(draw.package, pins, self.table)
        packages = tuple(dict.fromkeys([*packages, *draw.mains]))
        folder = self.folder / which
        oracle_sets.remove_set(folder)
        folder.mkdir()
        try:
            target = folder / "site"
            self.shop.install(oracle_sets.pins_to_install(pins.versions), target)
            with self._base_lock:
                base = [self._base(draw.torch)] if "torch" in pins.versions else []
            tried = SetProbe(folder, [target, *base], bytecode=self.folder / "bytecode")
            elsewhere = pins.versions.keys() - oracle_sets.pins_to_install(pins.versions).keys()
            unmet = oracle_sets.metadata_conflicts(
                target, {name: pins.versions[name] for name in elsewhere}
            )
            yield InstalledSet(
                pins=pins, folder=folder, probe=tried, imported=packages, unmet=unmet
            )
        finally:
            oracle_sets.remove_set(folder)

    def _import_packages(self, installed_set: InstalledSet, draw: SetDraw) -> None:
        target = installed_set.folder / "site"
        both = draw.control.versions.keys() & draw.forced.versions.keys()

        def failures(package: str) -> list[Failure]:
            listed = self.table.packages.get(package)
            names = listed.names_to_read(both) if listed and package in draw.mains else ()
            modules = oracle_sets.modules_to_import(target, package)
            installed_set.modules.update(modules)
            return list(_failures(installed_set.probe, target, package, modules, names))

        with ThreadPoolExecutor(IMPORTS) as pool:
            for failed in pool.map(failures, installed_set.imported):
                installed_set.failures += failed

    def _audit_set(self, installed_set: InstalledSet) -> SetResult:
        audit_report, complaint, seconds = self._audit_pins(installed_set.pins)
        return msgspec.structs.replace(
            installed_set.result(),
            alarms=tuple(_look_up_alarms(audit_report, installed_set.probe)),
            audited=complaint,
            audit_seconds=seconds,
        )

    def _base(self, torch: str) -> Path:
        base = self.folder / f"torch-{torch}"
        if base.exists():
            return base
        with tempfile.TemporaryDirectory(prefix="base-", dir=self.folder) as folder:
            partial = Path(folder, "site")
            self.shop.install({"torch": torch}, partial)
            if not list(partial.glob("torch-*+cpu.dist-info")):
                needed = self.shop.resolve([f"torch=={torch}"]).versions
                self.shop.install(
                    {
                        name: version
                        for name, version in needed.items()
                        if name.startswith(oracle_sets.GPU_ONLY)
                    },
                    partial,
                )
            partial.rename(base)
        return base

    def _audit_pins(self, pins: ResolvedPins) -> tuple[Report | None, str, float]:
        start = time.monotonic()
        audit_report, complaint = self._audit_answer(pins)
        return audit_report, complaint, round(time.monotonic() - start, 1)

    def _audit_answer(self, pins: ResolvedPins) -> tuple[Report | None, str]:
        lines = [f"{name}=={version}\n" for name, version in sorted(pins.versions.items())]
        command = [
            *(sys.executable, "-P", "-m", "imgbuild", "audit", "--requirements", "-"),
            *("--python", oracle_sets.PYTHON, "--glibc", oracle_sets.GLIBC),
            *("--arch", "x86_64", "--json"),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "builder"),
            "IMGBUILD_CACHE": str(self.folder / "imgbuild-cache"),
        }
        try:
            done = subprocess.run(
                command,
                input="".join(lines),
                capture_output=True,
                text=True,
                env=environment,
                check=False,
                timeout=AUDIT_LIMIT,
            )
        except subprocess.TimeoutExpired:
            return None, f"no answer after {AUDIT_LIMIT} s"
        try:
            return _report(done.stdout), ""
        except (msgspec.MsgspecError, ValueError, IndexError):
            return None, done.stderr.strip()[-500:] or f"exit status {done.returncode}"

    def trim_cache(self) -> None:
        """Clear uv's cache if it exceeds its limit."""
        cache = self.folder / "uv-cache"
        if cache.exists():
            kilobytes = int(_output(["du", "-sk", str(cache)]).split()[0])
            if kilobytes << 10 > CACHE_LIMIT:
                oracle_sets.remove_set(cache)


def _failures(
    tried: SetProbe, target: Path, package: str, modules: Sequence[str], names: Sequence[str]
) -> Iterator[Failure]:
    objects = [
        str(path)
        for module in modules
        for path in sorted(target.joinpath(*module.split(".")).rglob("*.so"))
    ]
    answer = tried.run_query(modules=modules, names=names, libraries=objects[:LIBRARIES])
    for each in answer["failures"]:
        name = each["name"].removeprefix(f"{target}/")
        yield Failure(package=package, name=name, error=each["error"], trace=tuple(each["trace"]))


def _report(text: str) -> Report:
    document = json.loads(text)
    return msgspec.convert(document[0] if isinstance(document, list) else document, Report)


def _look_up_alarms(report: Report | None, tried: SetProbe) -> Iterator[Alarm]:
    """Yield the errors of a report, and whether Python confirms them, if it can look them up."""
    left = ALARMS
    for finding in audit_errors(report.findings if report is not None else ()):
        evidence = finding.evidence
        if evidence is None or finding.check in (METADATA, *UNTESTABLE) or not left:
            yield Alarm(finding=finding)
            continue
        left -= 1
        module = module_of_file(evidence.file)
        fact = {"relation": str(evidence.relation), "subject": evidence.subject}
        answer = tried.run_query(modules=[module] if module else [], facts=[fact])
        failing = [
            place.rpartition(":")[0] for failure in answer["failures"] for place in failure["trace"]
        ]
        if evidence.file in failing:
            yield Alarm(finding=finding, fact="fails")
        else:
            yield Alarm(finding=finding, fact=next(iter(answer["facts"]), "unknown"))


def ignore_incomparable(control: InstalledSet, forced: InstalledSet) -> None:
    """Drop failures that are unrelated to the forced version.

    A failure to open a shared object is dropped if the control has such a failure in the same
    package, because many shared objects cannot be loaded alone. Failures in parts of a namespace
    that the control lacks are dropped, because each part may require an extra. Failed downloads on
    import are dropped, because they require a network.
    """
    unopened = {failure.package for failure in control.failures if failure.name.endswith(".so")}
    parts = {module for module in forced.modules - control.modules if "." in module}
    for each in (control, forced):
        each.failures = [f for f in each.failures if _NO_NETWORK.search(f.error) is None]
    control.failures = [failure for failure in control.failures if not failure.name.endswith(".so")]
    forced.failures = [
        failure
        for failure in forced.failures
        if failure.name not in parts
        and not (failure.name.endswith(".so") and failure.package in unopened)
    ]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def measure_seeds(options: argparse.Namespace) -> None:
    """Measure the seeds that are missing from the results file, and append their results."""
    results = read_results(options.results)
    draws = read_results(options.draws) if options.draws else None
    experiments = Experiments(options.folder)
    for seed in options.seeds:
        if seed in results or (draws is not None and seed not in draws):
            continue
        experiments.trim_cache()
        if draws is None:
            measured = experiments.measure_draw(seed, options.sample, audit=not options.no_audit)
        else:
            previous = draws[seed]
            if options.only == "broken" and (previous.forced is None or not previous.forced.fails):
                continue
            measured = experiments.audit_again(previous, CHOICES[options.only])
        with options.results.open("ab") as file:
            file.write(msgspec.json.encode(measured) + b"\n")
        measured_row = verdict_row(measured)
        text = (
            f"{measured_row.control}, {measured_row.forced}" if measured_row else measured.failure
        )
        print(f"{seed}: {text if seed % 2 == 0 else 'measured'}", flush=True)


def print_report(options: argparse.Namespace) -> None:
    """Print the table, and details of development seeds."""
    results = read_results(options.results)
    rows = [
        result_row
        for measured in results.values()
        if (result_row := verdict_row(measured)) is not None
    ]
    print("\n".join(verdict_table(rows)), end="\n\n")
    print("\n".join(exclusion_counts(results.values())))
    for measured in (
        sorted(results.values(), key=lambda measured: measured.seed) if options.details else ()
    ):
        if options.held_out or measured.seed % 2 == 0:
            sys.stdout.writelines(f"{line}\n" for line in seed_details(measured))


def main() -> None:
    """Run the selected command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("run", "again", "report"))
    parser.add_argument(
        "--seeds", type=parse_seeds, default=range(1, 201), help="range of seeds, such as 1-200"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="folder for sets, downloads and facts"
    )
    parser.add_argument(
        "--results", type=Path, help="results file (default: results.jsonl in the folder)"
    )
    parser.add_argument(
        "--draws", type=Path, help="for `again`: results file with the random sets to audit"
    )
    parser.add_argument(
        "--sample",
        type=float,
        default=SAMPLE,
        help="share of the draws without a failure to audit (default: %(default)s)",
    )
    parser.add_argument(
        "--no-audit",
        action="store_true",
        help="only install and import the packages, for a later run of`again`",
    )
    parser.add_argument(
        "--only", choices=CHOICES, default="all", help="for `again`: audit only these sets"
    )
    parser.add_argument("--details", action="store_true", help="list misses and false alarms")
    parser.add_argument("--held-out", action="store_true", help="with --details: include odd seeds")
    options = parser.parse_args()
    options.results = options.results or options.folder / "results.jsonl"
    if options.command == "again" and options.draws is None:
        parser.error("again requires --draws FILE")
    with contextlib.suppress(KeyboardInterrupt):
        print_report(options) if options.command == "report" else measure_seeds(options)


if __name__ == "__main__":
    main()
