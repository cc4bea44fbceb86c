"""Generates inputs with atheris, as a pytest plugin for `make bench-fuzz`.

The plugin is loaded before imgbuild, whose modules are instrumented when they are imported. Each
reader runs in a separate process, because libFuzzer ends its process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

from imgbuild.errors import ImgbuildError
from tests.support import hostile

FUZZ_FOLDER = Path(
    "build/fuzz"
).absolute()  # inputs that are neither accepted nor refused with a message
LENGTH = 1 << 16
DONE = re.compile(r"Done (\d+) runs")
HOOK = atheris.instrument_imports(include=["imgbuild"])
HOOK.__enter__()


def fuzz_reader(seed: bytes, read: Callable[[bytes], object], seconds: int) -> int:
    """Call `read` with mutations of `seed` for `seconds`. Returns the number of mutations.

    Raises AssertionError if a mutation is neither accepted nor refused with an error.
    """
    name = re.sub(r"\W+", "-", os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0])
    FUZZ_FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="imgbuild-fuzz-") as folder:
        corpus, log = Path(folder) / "corpus", Path(folder) / "log"
        corpus.mkdir()
        (corpus / "seed").write_bytes(seed)
        limits = {
            "max_total_time": seconds,
            "timeout": hostile.SECONDS,
            "rss_limit_mb": hostile.MEMORY >> 20,
            "max_len": max(LENGTH, len(seed)),
            "artifact_prefix": f"{FUZZ_FOLDER}/{name}-",
        }
        options = [f"-{option}={value}" for option, value in limits.items()]
        process = os.fork()
        if process == 0:
            _run_fuzzer(read, [*options, str(corpus)], log)
        _, status = os.waitpid(process, 0)
        text = log.read_text(errors="replace")
    done = DONE.search(text)
    assert status == 0, text[-4000:]
    assert done is not None, text[-4000:]
    sys.stdout.write(f"fuzz: {name}: {done[1]} inputs\n")
    return int(done[1])


def _run_fuzzer(read: Callable[[bytes], object], options: list[str], log: Path) -> None:
    def _fuzz_case(data: bytes) -> None:
        with contextlib.suppress(ImgbuildError):
            read(data)

    signal.setitimer(signal.ITIMER_REAL, 0)  # that of pytest-timeout
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # libFuzzer would keep another handler
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    try:
        atheris.Setup([sys.argv[0], *options], _fuzz_case)
        atheris.Fuzz()
    finally:
        os._exit(1)  # libFuzzer ends the process itself
