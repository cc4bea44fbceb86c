"""Changes valid files as an attacker or a failing disk would, and calls their readers.

A reader may accept a changed file or refuse it with an error of imgbuild. Other exceptions, endless
loops and excessive memory use are faults.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from imgbuild.errors import ImgbuildError

COUNT = int(os.environ.get("IMGBUILD_HOSTILE", "0"))  # mutations of each reader; 0: a few
FUZZ = int(os.environ.get("IMGBUILD_FUZZ", "0"))  # seconds of atheris for each reader instead
LONG = bool(COUNT or FUZZ)
FEW = 25
SECONDS = 20  # of CPU time for one file
MEMORY = 500 << 20
NUMBERS = tuple((1 << bits) - less for bits in (0, 7, 8, 15, 16, 31, 32, 40, 63) for less in (0, 1))
WORDS = (
    b"\0", b"../", b"/", b"-1", b"\n", b"9" * 5000, b"\xff\xfe", b"{", b"]", b"=", b"\x1b[31m",
    b"[" * 3000, b"1e999", b"null", b"0777", b"\x80" + b"\xff" * 11, b"77777777777\0",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 40, 1 << 64, 10**400, 1.5, "", "\0", "\n", "../..", "/", "=", "A=\0",
    "sha256:" + "0" * 64, "sha256:" + "0" * 64 + "\n", "9" * 5000, "foo; bar ==", "ß" * 300,
    [], {}, [[]], {"": ""}, [None],
)  # fmt: skip
Edit = Callable[[bytes], bytes]


class HungReader(BaseException):
    """Raised if a reader takes more than `SECONDS` of CPU time."""


@st.composite
def byte_edits(draw: st.DrawFn) -> Edit:
    """A change of some bytes."""
    place = draw(st.floats(0, 1, exclude_max=True))
    kind = draw(st.sampled_from(("bit", "number", "word", "cut", "drop", "double", "noise")))
    size = draw(st.sampled_from((1, 2, 4, 8, 60, 512)))
    number = draw(st.sampled_from(NUMBERS))
    word = draw(st.sampled_from(WORDS))
    noise = draw(st.binary(min_size=1, max_size=8))
    from_end = draw(st.booleans())  # where the directories of zip and ELF are

    def _edit(data: bytes) -> bytes:
        at = int(place * min(len(data), 256)) if from_end else int(place * len(data))
        at = max(0, len(data) - at) if from_end else at
        if kind == "bit" and at < len(data):
            return data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :]
        if kind == "number":
            return data[:at] + number.to_bytes(8, "little")[:size] + data[at + min(size, 8) :]
        if kind == "word":
            return data[:at] + word + data[at + (len(word) if size > 2 else 0) :]
        if kind == "cut":
            return data[:at]
        if kind == "drop":
            return data[:at] + data[at + size :]
        if kind == "double":
            return data[:at] + data[at : at + size] + data[at:]
        return data[:at] + noise + data[at + len(noise) :]

    return _edit


@st.composite
def json_edits(draw: st.DrawFn) -> Edit:
    """A change of a JSON document, such as another value or a missing key."""
    place = draw(st.integers(0, 1 << 30))
    value = draw(st.sampled_from(VALUES))
    kind = draw(st.sampled_from(("value", "value", "drop", "double")))

    def _edit(data: bytes) -> bytes:
        document = json.loads(data)
        places = list(_places(document))
        holder, key = places[place % len(places)]
        if kind == "value":
            holder[key] = value
        elif kind == "drop":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[f"{key}\n"] = holder[key]
        return json.dumps(document).encode()

    return _edit


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = document if isinstance(document, dict) else range(len(document))
    for key in list(keys):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from _places(document[key])


def several_edits(edit: st.SearchStrategy[Edit]) -> st.SearchStrategy[Edit]:
    """Apply one to four changes in sequence."""

    def _all(edits: list[Edit]) -> Edit:
        def _edit(data: bytes) -> bytes:
            for each in edits:
                with contextlib.suppress(Exception):  # of one that is no longer a document
                    data = each(data)
            return data

        return _edit

    return st.lists(edit, min_size=1, max_size=4).map(_all)


def attack_reader(seed: bytes, read: Callable[[bytes], object], *, document: bool = False) -> int:
    """Call `read` with changes of `seed`, a JSON `document` or any bytes. Count the accepted ones.

    Raises AssertionError if a change is neither accepted nor refused with an error.
    """
    accepted = 0
    read(seed)  # unchanged input is accepted
    if FUZZ:
        from tests.support import fuzz  # it needs atheris

        return fuzz.fuzz_reader(seed, read, FUZZ)
    strategy = several_edits(st.one_of(json_edits(), byte_edits()) if document else byte_edits())

    @settings(
        max_examples=COUNT or FEW,
        derandomize=not COUNT,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def _attack(edit: Edit) -> None:
        nonlocal accepted
        data = edit(seed)
        with limit_time(), contextlib.suppress(ImgbuildError):
            read(data)
            accepted += 1

    _attack()
    if COUNT:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        assert peak < MEMORY, f"{peak >> 20} MB"
    return accepted


@contextlib.contextmanager
def limit_time() -> Iterator[None]:
    """Raise HungReader after `SECONDS` of CPU time."""

    def _ended(*_: object) -> None:
        raise HungReader

    before = signal.signal(signal.SIGVTALRM, _ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def gzip_bytes(data: bytes) -> bytes:
    """Compress `data` reproducibly with gzip."""
    return gzip.compress(data, 1, mtime=0)
