"""Provides the expectation, the allowed failures and the reporting of results to all cases.

A case is a script. The exit status is 0 (passed), SKIPPED (77) or another value (failed), and the
output is the log. A case that tests several things adds separate results with `report`.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
SKIPPED = 77
# Devices of the driver: on a host, in WSL, on a Jetson.
DRIVER = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")


def expectation() -> dict[str, Any]:
    """Return the expected content of the image, as described in README.md."""
    loaded: dict[str, Any] = json.loads(Path(os.environ["SMOKE_EXPECT"]).read_text("utf-8"))
    return loaded


def allowed(kind: str) -> list[dict[str, Any]]:
    """Return the entries in the list `kind` of allowed.json for packages of this image."""
    path = Path(os.environ.get("SMOKE_ALLOWED") or HERE / "allowed.json")
    versions = expectation()["packages"]
    return [
        entry
        for entry in json.loads(path.read_text("utf-8"))[kind]
        if entry["package"] in versions
        and versions[entry["package"]] in entry.get("versions", [versions[entry["package"]]])
    ]


def has_driver() -> bool:
    """Return whether the library and the devices of the host's CUDA driver are available.

    The library alone may be a stub in the image.
    """
    return loads_driver() and any(Path(place).exists() for place in DRIVER)


def loads_driver() -> bool:
    """Return whether a library with the name of the CUDA driver can be loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def normalize(package: str) -> str:
    """Return a package name, normalized as in PEP 503."""
    return re.sub(r"[-_.]+", "-", package).lower()


def installed() -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    """Yield every distribution that Python finds, with its normalized name. Names can repeat."""
    for distribution in importlib.metadata.distributions():
        yield normalize(distribution.metadata["Name"] or "(no name)"), distribution


def site_packages() -> Path:
    """Return the folder with the image's wheels."""
    expect = expectation()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Path(expect["prefix"]) / "lib" / python / "site-packages"


def report(name: str, outcome: str, seconds: float, message: str = "", log: str = "") -> None:
    """Add a result, whose `outcome` is passed, failed or skipped."""
    case = {"name": name, "outcome": outcome, "seconds": seconds, "message": message, "log": log}
    with Path(os.environ["SMOKE_CASES"]).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(case) + "\n")


def judge(name: str, question: Callable[[], list[str]]) -> list[str]:
    """Report the problems that `question` returns, or its exception, as the result `name`."""
    started = time.monotonic()
    try:
        problems = question()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # every failure is a result
        problems = [f"{type(error).__name__}: {error}"]
    outcome = "failed" if problems else "passed"
    report(name, outcome, round(time.monotonic() - started, 3), "; ".join(problems)[:2000])
    return [f"{name}: {problem}" for problem in problems]


def finish(problems: list[str], good: str) -> NoReturn:
    """End the case: failed with `problems`, one per line, or passed with the message `good`."""
    for problem in problems:
        print(f"error: {problem}")
    if not problems:
        _say(good)
    sys.exit(1 if problems else 0)


def skip(reason: str) -> NoReturn:
    """End the case as skipped, with `reason` as its message."""
    _say(reason)
    sys.exit(SKIPPED)


def _say(word: str) -> None:
    """Print and store the message of the case, because libraries may print more at exit."""
    print(word, flush=True)
    if os.environ.get("SMOKE_SAID"):
        Path(os.environ["SMOKE_SAID"]).write_text(word, "utf-8")
