"""Runs the smoke tests of one tier inside an image: each case a process, with a limit and a log.

Comes in: a tier and the expectation (README.md). Goes out: a table, or with --json one document on
stdout; exit status 0 if every case that ran passed and at least one did, 1 if not, 2 for bad input.
Needs Python 3.10 and its standard library; nothing is imported that is under test.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smoke_log import cause, first_error
from smoke_support import HERE, SKIPPED
from smoke_tiers import TIERS, Case

FORMAT = 1
# What the files that are given must have.
EXPECTED = ("packages", "prefix", "cache", "workdir", "debian", "flashinfer")
ACCEPTED = ("requirements", "entry points", "imports")
PLUGIN = "plugin"
CACHE = 2 << 30  # bytes of an engine's cache, where engines share a GPU
FAILED_LOG = 60_000  # characters kept of a failed case's log: its head and its tail
PASSED_LOG = 2_000
REMARK = re.compile(r"(\[rank\d+\]:)?\[[IW]\d{4} ")  # of torch's C++ code, on stderr


def main(arguments: list[str]) -> int:
    """Run what `arguments` ask for; the exit status."""
    options = read_options(arguments)
    packages = json.loads(options.expect.read_text("utf-8"))["packages"]
    chosen = picked(options)
    if options.jobs > 1:  # what takes longest begins first
        chosen.sort(key=lambda case: (not case.gate, -case.usual))
    cases: list[dict[str, Any]] = []
    telling = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="smoke-", ignore_cleanup_errors=True) as folder:
        if sharing(options) > 1:
            offer_plugin(Path(folder))

        def _run(case: Case) -> bool:
            lacking = [name for name in case.needs if name not in packages]
            if lacking:
                ended = [not_run(case, f"the lock has no {', '.join(lacking)}")]
            else:
                ended = run_case(case, options, Path(folder))
            with telling:
                cases.extend(ended)
                print(line(ended[-1]), file=sys.stderr, flush=True)
                write_report(options, cases)
            return bool(ended[-1]["outcome"] == "passed")

        for gate in [case for case in chosen if case.gate]:
            if not _run(gate):
                cases.extend(
                    not_run(case, f"{gate.name} did not pass") for case in chosen if not case.gate
                )
                chosen = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for _ in pool.map(_run, [case for case in chosen if not case.gate]):
                pass
    write_report(options, cases)
    if options.json:
        print(json.dumps(document(options, cases), indent=1))
    else:
        print("\n".join(line(case) for case in cases))
    outcomes = {case["outcome"] for case in cases}
    return 0 if "passed" in outcomes and "failed" not in outcomes else 1


def picked(options: argparse.Namespace) -> list[Case]:
    """The cases of the tier that --only names."""
    patterns = options.only.split("|")
    return [
        case
        for case in TIERS[options.tier]
        if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
    ]


def read_options(arguments: list[str]) -> argparse.Namespace:
    """The command line, and that the files which it names can be read."""
    parser = argparse.ArgumentParser(description="Smoke tests of the image that this runs in.")
    parser.add_argument("--tier", choices=sorted(TIERS), required=True)
    parser.add_argument("--expect", type=Path, required=True, help="JSON: what the image must hold")
    parser.add_argument(
        "--allowed",
        type=Path,
        default=HERE / "allowed.json",
        help="JSON: failures that are accepted, with reasons",
    )
    parser.add_argument("--only", default="*", help="shell patterns of case names: nccl|vllm*")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="multiplies each case's time limit: 10 under emulation",
    )
    parser.add_argument("--model", type=Path, help="folder of a real model, for the gpu tiers")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="cases at a time: they import at once, and take turns at the GPU",
    )
    parser.add_argument(
        "--share",
        type=int,
        default=1,
        help="cases that use the GPUs of the gpu tier at once: for GPUs of 80 GB and more",
    )
    parser.add_argument("--logs", type=Path, help="a folder for the whole log of each case")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--report", type=Path, help="a file for it, written after each case")
    options = parser.parse_args(arguments)
    for path, keys in ((options.expect, EXPECTED), (options.allowed, ACCEPTED)):
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
        lacking = [key for key in keys if not isinstance(found, dict) or key not in found]
        if lacking:
            parser.error(f"{path}: it has no {', '.join(lacking)}; README.md says what it holds")
        if found.get("format", FORMAT) != FORMAT:
            parser.error(f"{path}: format {found['format']}; these tests read {FORMAT}")
    if not picked(options):
        names = ", ".join(case.name for case in TIERS[options.tier])
        parser.error(f"--only {options.only}: no case of {options.tier} is called so: {names}")
    if options.report is not None and not options.report.parent.is_dir():
        parser.error(f"--report {options.report}: its folder is not there")
    if options.model is not None and not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model}: it holds no config.json")
    for name in ("jobs", "share"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: one at least")
    if not 0 < options.patience < float("inf"):
        parser.error(f"--patience {options.patience}: a number above 0")
    options.began = time.time()
    return options


def document(options: argparse.Namespace, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "format": FORMAT,
        "tier": options.tier,
        "python": sys.version,
        "jobs": options.jobs,
        "share": sharing(options),
        "seconds": round(time.time() - options.began, 1),
        "cases": cases,
    }


def write_report(options: argparse.Namespace, cases: list[dict[str, Any]]) -> None:
    """Write what is known so far: a machine that is taken away then leaves its report."""
    if options.report is not None:
        unfinished = options.report.with_suffix(".part")
        unfinished.write_text(json.dumps(document(options, cases), indent=1), "utf-8")
        unfinished.replace(options.report)


def not_run(case: Case, reason: str) -> dict[str, Any]:
    """A case that was not started."""
    return {"name": case.name, "outcome": "skipped", "seconds": 0.0, "message": reason, "log": ""}


def run_case(case: Case, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run one case to its end: the cases that it reported, then its own."""
    work = folder / re.sub(r"[^a-z0-9]+", "-", case.name.lower())
    work.mkdir()
    reported = work.with_suffix(".cases")
    started = time.monotonic()
    with work.with_suffix(".log").open("w+b") as stream:
        process = subprocess.Popen(
            [sys.executable, str(HERE / case.script), *case.arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=environment(options, folder, work, reported),
            start_new_session=True,
        )
        waited = work.with_suffix(".waited")
        status, limit = watch(process, case.limit * options.patience, waited, options.jobs)
        end_group(process)
        stream.seek(0)
        log = stream.read().decode(errors="replace")
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
        (options.logs / f"{work.name}.log").write_text(log, "utf-8")
    seconds = round(time.monotonic() - started - (idle_time(waited) or 0), 3)
    outcome, message = verdict(status, log, limit)
    said = work.with_suffix(".said")
    if outcome != "failed" and said.exists():
        message = said.read_text("utf-8")
    cases = read_reported(reported)
    kept = PASSED_LOG if outcome == "passed" else FAILED_LOG
    cases.append(
        {
            "name": case.name,
            "outcome": outcome,
            "seconds": seconds,
            "message": message,
            "log": clip(log, kept),
        }
    )
    return cases


def watch(
    process: subprocess.Popen[bytes], limit: float, waited: Path, jobs: int
) -> tuple[int | None, float]:
    """The status that a case ends with, None if it is not done in time; and that time in seconds.

    Cases wait for others before they use the GPU: that is no time of theirs.
    """
    started = time.monotonic()
    while True:
        idle = idle_time(waited)
        allowed = limit * jobs if idle is None else limit + idle
        left = allowed - (time.monotonic() - started)
        if left <= 0:
            return None, allowed
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, 5)), allowed


def idle_time(waited: Path) -> float | None:
    """The seconds that a case waited for the GPU; None as long as it has not got it."""
    try:
        return float(waited.read_text("ascii"))
    except (OSError, ValueError):
        return None


def environment(
    options: argparse.Namespace, folder: Path, work: Path, reported: Path
) -> dict[str, str]:
    """This environment, told to ask no hub, without progress bars and user site.

    It has a cache of bytecode. The image holds none and its folders are read-only: without it each
    process would compile torch and transformers anew. The image names a folder, which outlives this
    run.
    """
    scratch = work / "tmp"
    scratch.mkdir()
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if options.model is not None:
        kept["SMOKE_MODEL"] = str(options.model.resolve())
    if (folder / PLUGIN).exists():
        kept["PYTHONPATH"] = os.pathsep.join(
            [str(folder / PLUGIN), *filter(None, [kept.get("PYTHONPATH")])]
        )
        kept["SMOKE_CACHE"] = str(CACHE)
    if options.jobs > 1:  # each case would start as many threads as there are processors
        kept.setdefault("OMP_NUM_THREADS", str(max(2, (os.cpu_count() or 1) // options.jobs)))
    return kept | {
        "SMOKE_TURN": str(folder / "turn"),
        "SMOKE_SHARE": str(sharing(options)),
        "SMOKE_WAITED": str(work.with_suffix(".waited")),
        "SMOKE_EXPECT": str(options.expect.resolve()),
        "SMOKE_ALLOWED": str(options.allowed.resolve()),
        "SMOKE_CASES": str(reported),
        "SMOKE_SAID": str(work.with_suffix(".said")),
        "SMOKE_PATIENCE": str(options.patience),
        "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX") or str(folder / "pycache"),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
    }


def sharing(options: argparse.Namespace) -> int:
    """How many cases may use the GPUs at once: other tiers need none, or all."""
    return int(options.share) if options.tier == "gpu" else 1


def offer_plugin(folder: Path) -> None:
    """Install smoke_cache where vLLM looks for plugins: a folder that PYTHONPATH names."""
    (folder / PLUGIN).mkdir()
    shutil.copy(HERE / "smoke_cache.py", folder / PLUGIN)
    about = folder / PLUGIN / "smoke_cache-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: smoke-cache\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nsmoke = smoke_cache:bound\n")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what a case has left running: its session is its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def verdict(status: int | None, log: str, limit: float) -> tuple[str, str]:
    """Outcome and message of a case that ended with `status` (None: it was stopped)."""
    if status == 0:
        return "passed", last_line(log)
    if status == SKIPPED:
        return "skipped", last_line(log)
    if status is None:
        why = cause(log)
        words = f"; its log has: {why}" if why else ""
        return "failed", f"not done after {limit:.0f} s; last said: {last_line(log)}{words}"
    if status < 0:
        why = first_error(log)
        name = signal.Signals(-status).name
        return "failed", f"killed by {name}: {why}" if why else f"killed by {name}"
    return "failed", first_error(log) or f"ended with status {status} and said nothing"


def read_reported(path: Path) -> list[dict[str, Any]]:
    """The cases that a script reported itself."""
    if not path.exists():
        return []
    cases: list[dict[str, Any]] = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    for case in cases:
        case["log"] = clip(case["log"], PASSED_LOG if case["outcome"] == "passed" else FAILED_LOG)
    return cases


def last_line(log: str) -> str:
    """The last line that says anything; torch's own remarks at exit come after a case's word."""
    said = (row.strip() for row in reversed(log.splitlines()))
    return next((row for row in said if row and not REMARK.match(row)), "")


def clip(log: str, kept: int) -> str:
    """At most `kept` characters of `log`, from both ends: the cause stands early, the end late."""
    if len(log) <= kept:
        return log
    half = kept // 2
    return f"{log[:half]}\n… {len(log) - kept} characters left out …\n{log[-half:]}"


def line(case: dict[str, Any]) -> str:
    """One row of the table."""
    return f"{case['outcome']:8} {case['seconds']:7.1f} s  {case['name']:32} {case['message']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
