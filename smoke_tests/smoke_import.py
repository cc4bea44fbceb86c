"""Imports names in a new process and reports the results.

A name is `module` or `module:attribute`. After a crash, a new process imports the remaining names,
so one crash does not hide others. Errors listed in allowed.json are reported as skipped.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from smoke_log import first_error
from smoke_support import has_driver, report

LIMIT = 300.0  # seconds for the names of one package
HOST_DRIVER = Path("/proc/driver/nvidia/version")
MARK = "smoke-import:"
CHILD = f"""\
import importlib, sys, traceback
for entry in sys.argv[1:]:
    module, _, name = entry.partition(":")
    print("{MARK} begin", entry, flush=True)
    try:
        found = importlib.import_module(module)
        if name:
            getattr(found, name)
    except BaseException:
        traceback.print_exc()
        print("{MARK} failed", entry, flush=True)
    else:
        print("{MARK} ok", entry, flush=True)
"""


class Attempt(NamedTuple):
    """The result of importing one name, with the first error (or "") and the log."""

    error: str
    log: str


def attempt(names: list[str]) -> dict[str, Attempt]:
    """Import `names` one after another. Returns the result for each."""
    done: dict[str, Attempt] = {}
    while len(done) < len(names):
        rest = [name for name in names if name not in done]
        log, ending = run_child(rest)
        before = len(done)
        for name, (verdict, part) in parts(log).items():
            if verdict == "ok":
                done[name] = Attempt("", part)
            elif verdict == "failed":
                done[name] = Attempt(first_error(part) or "failed without output", part)
            else:
                done[name] = Attempt(f"{ending}: {first_error(part)}", part)
        if len(done) == before:  # not even the first name was started: Python itself is broken
            done |= {name: Attempt(f"{ending}: {first_error(log)}", log) for name in rest}
    return done


def run_child(names: list[str]) -> tuple[str, str]:
    """Import `names` in one process. Returns the log, and the reason if the process ended early."""
    limit = LIMIT * float(os.environ["SMOKE_TIMEOUT_FACTOR"])
    environment = dict(os.environ)
    if HOST_DRIVER.exists() and not has_driver():
        # /proc is the host's, where Unsloth 2026.10.9 finds a driver and asks for its GPU, although
        # it would import without one (unsloth_zoo/device_type.py:507).
        environment["CUDA_VISIBLE_DEVICES"] = ""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *names],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return (expired.stdout or b"").decode(errors="replace"), f"timed out after {limit:.0f} s"
    return done.stdout.decode(errors="replace"), f"ended with status {done.returncode}"


def parts(log: str) -> dict[str, tuple[str, str]]:
    """Return the lines of the log for each name, with the verdict "ok", "failed" or "" (none)."""
    verdicts: dict[str, tuple[str, str]] = {}
    current, text = "", [""]
    for row in log.splitlines():
        # A library may print an unfinished line, so the mark may not be at the start of a line.
        head, mark, tail = row.partition(MARK)
        if not mark:
            text.append(row)
            continue
        text.append(head)
        word, _, name = tail.strip().partition(" ")
        if word == "begin":
            current, text = name, []
            verdicts[name] = ("", "")
        else:
            verdicts[name] = (word, "\n".join(text).strip())
            current = ""
    if current:
        verdicts[current] = ("", "\n".join(text).strip())
    return verdicts


def judge(title: str, package: str, names: list[str], waivers: list[dict[str, Any]]) -> bool:
    """Import and report `names` of `package`. Returns False if a failure is not accepted.

    Accepted failures are reported as skipped, with a result for each entry of allowed.json.
    """
    started = time.monotonic()
    results = attempt(names)
    failed = {name: result for name, result in results.items() if result.error}
    mine = [entry for entry in waivers if entry["package"] == package and is_for_python(entry)]
    problems = [
        f"{name}: {result.error}"
        for name, result in failed.items()
        if not any(accepts(entry, name, result) for entry in mine)
    ]
    problems += idle(mine, results)
    for entry in mine:
        excused = [name for name, result in failed.items() if accepts(entry, name, result)]
        if excused:
            more = f" and {len(excused) - 4} more" if len(excused) > 4 else ""
            names_ = f"{', '.join(excused[:4])}{more}"
            message = f"{names_}: {failed[excused[0]].error}; {entry['reason']}"
            report(f"{title}: {entry['name']}", "skipped", 0.0, message)
    good = [name for name in results if name not in failed]
    outcome = "failed" if problems else "passed" if good else "skipped"
    log = "\n".join(f"--- {name}\n{result.log}" for name, result in results.items() if result.log)
    message = "; ".join(problems) or f"{len(good)} names: {', '.join(good)}"
    report(title, outcome, round(time.monotonic() - started, 3), message[:2000], log)
    return not problems


def is_for_python(entry: dict[str, Any]) -> bool:
    """Return whether `entry` applies to this Python version, or to all versions."""
    release = "{}.{}".format(*sys.version_info)
    return release in entry.get("python", [release])


def accepts(entry: dict[str, Any], name: str, result: Attempt) -> bool:
    """Return whether `entry` matches `name`, the error and, if specified, the log."""
    mine = fnmatch.fnmatchcase(name, entry["name"]) and entry["error"] in result.error
    return mine and entry.get("log", "") in result.log


def idle(waivers: list[dict[str, Any]], results: dict[str, Attempt]) -> list[str]:
    """Return a problem for each entry that matches no failure and could hide later failures.

    With a driver, entries for failures without a driver need not match.
    """
    driver = has_driver()
    failed = {name: result for name, result in results.items() if result.error}
    return [
        f"allowed.json accepts {entry['name']} ({entry['error']}), but no import fails with this "
        "error"
        for entry in waivers
        if not (driver and entry.get("needs") == "driver")
        and not any(accepts(entry, name, result) for name, result in failed.items())
    ]
