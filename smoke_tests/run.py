"""Runs the smoke tests of a tier in an image, each case in a process with a time limit.

Prints a table, or one JSON document with --json. The exit status is 0 if no case failed and at
least one passed, 2 for invalid input, and 1 otherwise. The script requires only Python 3.10, and
imports no tested package. README.md describes the tiers and the file of expected contents.
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

from smoke_log import cause, first_error, notes
from smoke_support import HERE, SKIPPED
from smoke_tiers import TIERS, Case

FORMAT = 1
# Required keys of the given files.
EXPECTED = ("packages", "prefix", "cache", "workdir", "debian", "flashinfer")
ACCEPTED = ("requirements", "entry points", "imports")
PLUGIN = "plugin"
CACHE = 2 << 30  # bytes of an engine's cache, where engines share a GPU
FAILED_LOG = 60_000  # characters of a failed case's log that are kept, from start and end
PASSED_LOG = 2_000
REMARK = re.compile(r"(\[rank\d+\]:)?\[[IW]\d{4} ")  # logged by torch's C++ code on stderr


def main(arguments: list[str]) -> int:
    """Run the tier that `arguments` select, and return the exit status."""
    options = read_options(arguments)
    packages = json.loads(options.expect.read_text("utf-8"))["packages"]
    chosen = picked(options)
    if options.jobs > 1:  # the longest cases first
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
    """Return the cases of the tier that --case selects."""
    patterns = options.case.split("|")
    return [
        case
        for case in TIERS[options.tier]
        if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
    ]


def parser_of_options() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description="Run the smoke tests of one tier in this image.")
    parser.add_argument("--tier", choices=sorted(TIERS), required=True)
    parser.add_argument(
        "--expect", type=Path, required=True, help="JSON file with the expected content"
    )
    parser.add_argument(
        "--allowed",
        type=Path,
        default=HERE / "allowed.json",
        help="JSON file with accepted failures and their reasons",
    )
    parser.add_argument("--case", default="*", help="shell patterns of case names: nccl|vllm*")
    parser.add_argument(
        "--timeout-factor",
        type=float,
        default=1.0,
        help="factor for each case's time limit, such as 10 under emulation",
    )
    parser.add_argument("--model", type=Path, help="folder of a real model, for the gpu tiers")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="number of parallel cases; they import at the same time and take turns on the GPU",
    )
    parser.add_argument(
        "--share",
        type=int,
        default=1,
        help="number of gpu-tier cases that use a GPU at the same time, for GPUs of 80 GB or more",
    )
    parser.add_argument("--logs", type=Path, help="folder for the complete log of each case")
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")
    parser.add_argument(
        "--report", type=Path, help="file for this document, written after each case"
    )
    return parser


def read_options(arguments: list[str]) -> argparse.Namespace:
    """Read the options. Exits if an option or its file is invalid."""
    parser = parser_of_options()
    options = parser.parse_args(arguments)
    for path, keys in ((options.expect, EXPECTED), (options.allowed, ACCEPTED)):
        try:
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
        lacking = [key for key in keys if not isinstance(document, dict) or key not in document]
        if lacking:
            parser.error(f"{path}: missing keys: {', '.join(lacking)} (see README.md)")
        if document.get("format", FORMAT) != FORMAT:
            parser.error(f"{path}: unsupported format {document['format']} (expected {FORMAT})")
    if not picked(options):
        names = ", ".join(case.name for case in TIERS[options.tier])
        parser.error(f"no case of {options.tier} matches --case {options.case} (it has: {names})")
    if options.report is not None and not options.report.parent.is_dir():
        parser.error(f"--report {options.report}: its folder does not exist")
    if options.model is not None and not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model}: no config.json in this folder")
    for name in ("jobs", "share"):
        if getattr(options, name) < 1:
            parser.error(f"invalid --{name}: {getattr(options, name)} (expected 1 or more)")
    factor = options.timeout_factor
    if not 0 < factor < float("inf"):
        parser.error(f"invalid --timeout-factor: {factor} (expected a number above 0)")
    options.began = time.time()
    return options


def document(options: argparse.Namespace, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document that --json prints."""
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
    """Write the results so far, because the machine may be lost before the end."""
    if options.report is not None:
        unfinished = options.report.with_suffix(".part")
        unfinished.write_text(json.dumps(document(options, cases), indent=1), "utf-8")
        unfinished.replace(options.report)


def not_run(case: Case, reason: str) -> dict[str, Any]:
    """Return the result of a case that was not started."""
    return {"name": case.name, "outcome": "skipped", "seconds": 0.0, "message": reason, "log": ""}


def run_case(case: Case, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run a case. Returns the results that it reported, followed by the result of the case."""
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
        status, limit = watch(process, case.limit * options.timeout_factor, waited, options.jobs)
        end_group(process)
        stream.seek(0)
        log = stream.read().decode(errors="replace")
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
        (options.logs / f"{work.name}.log").write_text(log, "utf-8")
    seconds = round(time.monotonic() - started - (idle_time(waited) or 0), 3)
    outcome, message = verdict(status, log, limit)
    message_file = work.with_suffix(".said")
    if outcome != "failed" and message_file.exists():
        message = message_file.read_text("utf-8")
    cases = read_reported(reported)
    log_limit = PASSED_LOG if outcome == "passed" else FAILED_LOG
    result = {
        "name": case.name,
        "outcome": outcome,
        "seconds": seconds,
        "message": message,
        "log": clip(log, log_limit),
        "notes": notes(with_servers(log, work)),
    }
    return [accepted(result, log, options) for result in [*cases, result]]


def accepted(result: dict[str, Any], log: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return `result`. A failure that allowed.json accepts is marked as skipped.

    A case that passes despite an entry in allowed.json fails, because the entry could hide a later
    failure.
    """
    packages = json.loads(options.expect.read_text("utf-8"))["packages"]
    for entry in json.loads(options.allowed.read_text("utf-8")).get("cases", []):
        version = packages.get(entry["package"])
        if entry["name"] != result["name"] or version not in entry["versions"]:
            continue
        if result["outcome"] == "failed" and entry["error"] in f"{result['message']}\n{log}":
            return result | {"outcome": "skipped", "message": entry["reason"]}
        if result["outcome"] == "passed":
            message = f"allowed.json accepts its failure ({entry['error']}), but the case passes"
            return result | {"outcome": "failed", "message": message}
    return result


def with_servers(log: str, work: Path) -> str:
    """Return the log of a case, and of the servers that it started."""
    servers = sorted(work.glob("server-*.log"))
    return "\n".join([log, *(path.read_text("utf-8", "replace") for path in servers)])


def watch(
    process: subprocess.Popen[bytes], limit: float, waited: Path, jobs: int
) -> tuple[int | None, float]:
    """Return the exit status of a case (None if it timed out) and its time limit in seconds.

    The time that a case waits for the GPU does not count.
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
    """Return the seconds that a case waited for the GPU, or None while it is waiting."""
    try:
        return float(waited.read_text("ascii"))
    except (OSError, ValueError):
        return None


def environment(
    options: argparse.Namespace, folder: Path, work: Path, reported: Path
) -> dict[str, str]:
    """Return the environment of a case: offline, without progress bars and user site-packages.

    The environment has a bytecode cache. Otherwise, each process would compile torch and
    transformers again, because the image contains no bytecode and its folders are read-only. If the
    image sets a bytecode folder, the folder is kept after this run.
    """
    scratch = work / "tmp"
    scratch.mkdir()
    variables = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    if options.model is not None:
        variables["SMOKE_MODEL"] = str(options.model.resolve())
    if (folder / PLUGIN).exists():
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(folder / PLUGIN), *filter(None, [variables.get("PYTHONPATH")])]
        )
        variables["SMOKE_CACHE"] = str(CACHE)
    if options.jobs > 1:  # each case would start as many threads as there are processors
        variables.setdefault("OMP_NUM_THREADS", str(max(2, (os.cpu_count() or 1) // options.jobs)))
    return variables | {
        "SMOKE_TURN": str(folder / "turn"),
        "SMOKE_SHARE": str(sharing(options)),
        "SMOKE_WAITED": str(work.with_suffix(".waited")),
        "SMOKE_EXPECT": str(options.expect.resolve()),
        "SMOKE_ALLOWED": str(options.allowed.resolve()),
        "SMOKE_CASES": str(reported),
        "SMOKE_SAID": str(work.with_suffix(".said")),
        "SMOKE_TIMEOUT_FACTOR": str(options.timeout_factor),
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
    """Return how many cases may use a GPU at the same time: 1 if the tier shares no GPU."""
    return int(options.share) if options.tier == "gpu" else 1


def offer_plugin(folder: Path) -> None:
    """Install smoke_cache as a plugin of vLLM in a folder of PYTHONPATH."""
    (folder / PLUGIN).mkdir()
    shutil.copy(HERE / "smoke_cache.py", folder / PLUGIN)
    about = folder / PLUGIN / "smoke_cache-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: smoke-cache\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nsmoke = smoke_cache:bound\n")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill processes that a case has left running in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def verdict(status: int | None, log: str, limit: float) -> tuple[str, str]:
    """Return the outcome and message of a case that ended with `status`, or timed out (None)."""
    if status == 0:
        return "passed", last_line(log)
    if status == SKIPPED:
        return "skipped", last_line(log)
    if status is None:
        why = cause(log)
        words = f"; its log has: {why}" if why else ""
        return "failed", f"timed out after {limit:.0f} s; last line: {last_line(log)}{words}"
    if status < 0:
        why = first_error(log)
        name = signal.Signals(-status).name
        return "failed", f"killed by {name}: {why}" if why else f"killed by {name}"
    return "failed", first_error(log) or f"ended with status {status} without output"


def read_reported(path: Path) -> list[dict[str, Any]]:
    """Return the results that a script reported."""
    if not path.exists():
        return []
    cases: list[dict[str, Any]] = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    for case in cases:
        case["log"] = clip(case["log"], PASSED_LOG if case["outcome"] == "passed" else FAILED_LOG)
    return cases


def last_line(log: str) -> str:
    """Return the last line of the log, ignoring messages of torch at exit."""
    rows = (row.strip() for row in reversed(log.splitlines()))
    return next((row for row in rows if row and not REMARK.match(row)), "")


def clip(log: str, limit: int) -> str:
    """Return at most `limit` characters of `log`: half from the start and half from the end."""
    if len(log) <= limit:
        return log
    half = limit // 2
    return f"{log[:half]}\n… {len(log) - limit} characters left out …\n{log[-half:]}"


def line(case: dict[str, Any]) -> str:
    """Return the row of a case in the table."""
    return f"{case['outcome']:8} {case['seconds']:7.1f} s  {case['name']:32} {case['message']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
