"""Imports modules and looks up names of a package set in a new process, for lab/oracle.py.

The request is JSON. `paths` contains the folders of packages. `modules` are imported and `names`
are read in this order, `libraries` are opened, and `facts` are claims to check. `bytecode` is the
folder of compiled modules. Only the standard library is required.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

IMPORT_LIMIT = 900  # seconds, on a machine that other processes use


class SetProbe:
    """Runs queries on an installed set, each in a new process.

    `bytecode` is a folder of compiled modules, which all sets share.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], bytecode: Path) -> None:
        self._folder = folder
        self._bytecode = bytecode
        self._paths = [str(path) for path in paths]

    def run_query(
        self,
        *,
        modules: Sequence[str] = (),
        names: Sequence[str] = (),
        libraries: Sequence[str] = (),
        facts: Sequence[dict[str, str]] = (),
    ) -> dict[str, Any]:
        """Run a query. If the process crashes, the step that was running has failed."""
        request = {
            "paths": self._paths,
            "bytecode": str(self._bytecode),
            "modules": modules,
            "names": names,
            "libraries": libraries,
            "facts": facts,
        }
        files = Path(tempfile.mkdtemp(prefix="query-", dir=self._folder))
        question, reply = files / "question.json", files / "reply.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-I", "-S", __file__, str(question), str(reply)]
        process = subprocess.Popen(
            command,
            env=self._environment(),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = str(process.wait(IMPORT_LIMIT))
        except subprocess.TimeoutExpired:
            status = f"none after {IMPORT_LIMIT} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answer: dict[str, Any] = {"failures": [], "facts": [], "at": "start"}
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            answer |= json.loads(reply.read_text(encoding="utf-8"))
        if status != "0":
            died = {"name": answer["at"], "error": f"exit status {status}", "trace": []}
            answer["failures"].append(died)
        return answer

    def _environment(self) -> dict[str, str]:
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "offline",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }


def main() -> None:
    """Run one request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("request", type=Path, help="JSON file with the request")
    parser.add_argument("answer", type=Path, help="file for the result")
    options = parser.parse_args()
    request = json.loads(options.request.read_text(encoding="utf-8"))
    share_bytecode(request["bytecode"])
    for path in request["paths"]:
        site.addsitedir(path)
    answer: dict[str, Any] = {"failures": [], "facts": []}
    out = options.answer
    for name in [*request["modules"], *request["names"]]:
        # The current step is written before it starts, because an import may end the process.
        out.write_text(json.dumps({**answer, "at": name}), encoding="utf-8")
        failure = find_failure(name, request["paths"], by_name=name in request["names"])
        if failure is not None:
            answer["failures"].append(failure)
    for library in request["libraries"]:
        out.write_text(json.dumps({**answer, "at": library}), encoding="utf-8")
        try:
            ctypes.CDLL(library)
        except OSError as error:
            answer["failures"].append({"name": library, "error": f"OSError: {error}", "trace": []})
    for fact in request["facts"]:
        answer["facts"].append(claim_verdict(fact))
    out.write_text(json.dumps(answer), encoding="utf-8")


def share_bytecode(folder: str) -> None:
    """Compile each file once: its hard links in other sets have the same inode."""

    def cached_path(source: str, *_: object, **__: object) -> str:
        status = Path(source).stat()
        return f"{folder}/{status.st_dev}-{status.st_ino}.pyc"

    vars(sys.modules["_frozen_importlib_external"])["cache_from_source"] = cached_path


def find_failure(name: str, paths: list[str], *, by_name: bool) -> dict[str, Any] | None:
    """Return the failure to import a module or to read one of its names, or None."""
    try:
        if by_name:
            look_up_object(name)
        else:
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit too
        return {"name": name, "error": error_text(error), "trace": traceback_places(error, paths)}
    return None


def look_up_object(name: str) -> Any:
    """Return the object with a dotted name.

    Raises AttributeError or ImportError if it is missing.
    """
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], start=2):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            try:
                value = importlib.import_module(".".join(parts[:depth]))
            except ModuleNotFoundError as absent:
                if (absent.name or "").startswith(".".join(parts[:2])):
                    raise error from None
                raise
    return value


def error_text(error: BaseException) -> str:
    """Return the error and its cause in one line of at most 400 characters."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error.__context__
    if cause is not None and str(cause) not in text:
        text += f" (after {type(cause).__name__}: {cause})"
    return " ".join(text.split())[:400]


def traceback_places(error: BaseException, paths: list[str]) -> list[str]:
    """Return the files and lines of the traceback in `paths`: outermost first, causes last."""
    locations = []
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        for frame in traceback.extract_tb(step.__traceback__):
            locations += [
                f"{frame.filename[len(path) + 1 :]}:{frame.lineno}"
                for path in paths
                if frame.filename.startswith(f"{path}/")
            ]
        step = step.__cause__ or step.__context__
    return locations


def claim_verdict(fact: dict[str, str]) -> str:
    """Check a claim of the audit. Returns "holds", "refuted" or "unknown"."""
    subject, relation = fact["subject"], fact["relation"]
    try:
        if relation == "module":
            return "refuted" if importlib.util.find_spec(subject) else "holds"
        if relation == "name":
            module, _, name = subject.partition(":")
            value = importlib.import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
            return "refuted"
        if relation == "attribute":
            look_up_object(subject)
            return "refuted"
        if relation == "keyword":
            called, _, rest = subject.partition("(")
            return (
                "refuted" if accepts_keyword(look_up_object(called), rest.rstrip(")")) else "holds"
            )
        if relation == "argument":
            called, _, rest = subject.partition("(")
            return (
                "holds"
                if requires_argument(look_up_object(called), rest.rstrip(")"))
                else "refuted"
            )
    except (ImportError, AttributeError):
        return "holds"
    except BaseException:  # noqa: BLE001 - it cannot be looked up at all
        return "unknown"
    return "unknown"


def accepts_keyword(called: Any, keyword: str) -> bool:
    """Return whether a callable accepts a keyword argument."""
    parameters = inspect.signature(called).parameters
    kinds = {each.kind for each in parameters.values()}
    return keyword in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def requires_argument(called: Any, argument: str) -> bool:
    """Return whether a callable requires `argument`, or accepts at most that many arguments."""
    parameters = inspect.signature(called).parameters
    if not argument.isdigit():
        parameter = parameters.get(argument)
        return parameter is not None and parameter.default is inspect.Parameter.empty
    kinds = [each.kind for each in parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    number = sum(kind in positional for kind in kinds)
    return inspect.Parameter.VAR_POSITIONAL not in kinds and number == int(argument)


if __name__ == "__main__":
    main()
