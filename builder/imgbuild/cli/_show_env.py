"""`imgbuild show --variables`: what the variables of an image are for."""

from __future__ import annotations

import itertools
import shlex
import textwrap
from collections.abc import Iterator, Sequence

from imgbuild.cli._output import answer, count
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import Selection
from imgbuild.lock.lock import lock_path, read_lock
from imgbuild.pipeline.session import open_session
from imgbuild.show import environment as stage
from imgbuild.show.environment import Environment, RuntimeVariable, Setting
from imgbuild.system.console import console
from imgbuild.system.control_characters import visible

WIDTH = 80
INDENT = "    "
WORDS = {
    "entry point": "set by the image's entry point, where what is there does not fit",
    "SIF": "set under Apptainer, by the SIF that imgbuild build --format sif makes",
    "slurm": "set by the job scripts of imgbuild slurm",
    "smoke": "set by imgbuild smoke, for each of its cases",
    "root folder with GPUs": "set by imgbuild smoke and doctor, in a root folder with GPUs",
}


def show(selection: Selection) -> None:
    """Each variable of the images with its value, reason, source, and what sets it."""
    session = open_session(selection.matrix)
    selected = select_targets(selection, session)
    images = session.project.images
    found = []
    for item in selected:
        has = lock_path(images, item.name).exists()
        lock = read_lock(images, item.name) if has else None
        made = stage.environment(session.matrix, item.name, item.arches, lock)
        _warn(made)
        found.append(made)
    answer(found, [line for made in found for line in _lines(made)])


def _warn(made: Environment) -> None:
    """Say that the lock is stale, or that there is none."""
    if not made.locked:
        console.warn(f"{made.target}: not locked; these are the values of the matrix")
    differing = [item.name for item in made.image if item.differs]
    if differing:
        again = f"imgbuild lock {made.target}"
        console.warn(
            f"{made.target}: the lock is stale: the matrix has other values for"
            f" {', '.join(differing)}; to lock it again: {again}"
        )


def _lines(made: Environment) -> Iterator[str]:
    arches = ", ".join(made.arch)
    yield f"{made.target} ({arches}): {count(len(made.image), 'variable')} in the image"
    for item in made.image:
        yield ""
        yield from _setting(item)
    for by, rows in itertools.groupby(made.late, lambda item: item.by):
        yield ""
        yield from textwrap.wrap(f"{made.target}, when it runs: {WORDS[by]}", WIDTH)
        # Variables that are set together are shown together.
        for _, same in itertools.groupby(rows, lambda item: (item.value, item.when, item.reason)):
            yield ""
            yield from _late(list(same))


def _setting(item: Setting) -> Iterator[str]:
    yield visible(f"{item.name}={shlex.quote(item.value)}")
    if item.differs:
        yield from _wrapped(f"stale: {item.differs}")
    if item.reason:
        yield from _wrapped(item.reason)
    yield from _wrapped(f"set by: {item.by}")
    yield from _sources(item.source)


def _late(same: Sequence[RuntimeVariable]) -> Iterator[str]:
    first = same[0]
    yield from textwrap.wrap(", ".join(item.name for item in same), WIDTH)
    yield from _wrapped(f"value: {first.value or '(empty)'}")
    if first.when:
        yield from _wrapped(f"when: {first.when}")
    yield from _wrapped(first.reason)
    yield from _sources(first.source)


def _sources(sources: Sequence[str]) -> Iterator[str]:
    for source in sources:
        line = f"source: {source}"
        yield from _wrapped(line, "  ") if " " in source else [f"{INDENT}{visible(line)}"]


def _wrapped(text: str, more: str = "") -> list[str]:
    return textwrap.wrap(
        visible(text), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT + more,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
