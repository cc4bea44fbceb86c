"""The state of each target: locked, stale, not locked, or needing more than the default index.

Input: a project, its matrix, selected targets. Output: `State` values, and the targets that a verb
for many may take on. A target that needs something is never skipped without a message; if it is
named, it is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from imgbuild.errors import ImgbuildError, NothingSelected
from imgbuild.index import pages
from imgbuild.lock import lock_file
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.select import Selected
from imgbuild.plan import current
from imgbuild.project_paths import Project
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Condition, Digest


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one target. `reasons`: what it needs, or why its lock is stale."""

    target: str
    condition: Condition
    reasons: tuple[str, ...] = ()
    digest: Digest | None = None

    def __str__(self) -> str:
        if self.condition is Condition.NEEDS:
            return f"needs {'; '.join(self.reasons)}"
        return self.condition.value


def state(project: Project, matrix: Matrix, name: str) -> State:
    """The state of target `name`; nothing is solved or fetched."""
    if not lock_file.lock_path(project.images, name).exists():
        missing = needs(matrix, name)
        condition = Condition.NEEDS if missing else Condition.UNLOCKED
        return State(target=name, condition=condition, reasons=missing)
    try:
        _, target_digests = current.read_current(project, matrix, name)
    except ImgbuildError as error:
        reasons = tuple(line.strip() for line in error.message.splitlines())
        return State(target=name, condition=Condition.STALE, reasons=reasons)
    return State(target=name, condition=Condition.LOCKED, digest=target_digests.digest)


def needs(matrix: Matrix, name: str) -> tuple[str, ...]:
    """What target `name` needs besides the default index: other indexes, wheels of users."""
    target = matrix.targets[name]
    entries = []
    for index in dict.fromkeys(target.indexes.values()):
        if index == matrix.default_index:
            continue
        packages = [package for package, other in target.indexes.items() if other == index]
        address = pages.fill(
            matrix.indexes[index], cuda=target.cuda, torch=target.pins.get("torch")
        )
        if address is None or urlsplit(address).scheme != "file":
            entries.append(f"the index {index} for {', '.join(packages)}")
            continue
        folder = Path(unquote(urlsplit(address).path))
        absent = [package for package in packages if package not in fetched(folder)]
        if absent:
            entries.append(f"a wheel of {' and of '.join(absent)} in {folder.name}/")
    return tuple(entries)


def fetched(folder: Path) -> frozenset[str]:
    """The packages that have a wheel in `folder`; none if there is no such folder."""
    owners = (pages.owner(path.name) for path in folder.glob("*.whl"))
    return frozenset(owner for owner in owners if owner)


def within_reach(
    project: Project,
    matrix: Matrix,
    selected: Sequence[Selected],
    patterns: Sequence[str],
    reporter: Reporter = SILENT,
) -> list[Selected]:
    """`selected` without the targets that need another index, unless named; a warning for each.

    NothingSelected if none is left.
    """
    reachable, passed = [], []
    for item in selected:
        locked = lock_file.lock_path(project.images, item.name).exists()
        missing = () if locked else needs(matrix, item.name)
        if missing and item.name not in patterns:
            passed.append(item.name)
            reporter.warn(f"{item.name} is skipped: it needs {'; '.join(missing)}")
            continue
        if missing:
            reporter.info(f"{item.name} needs {'; '.join(missing)}")
        reachable.append(item)
    hint = f"to try it, name it: {passed[0]}" if passed else None
    if selected and not reachable:
        message = "every selected target needs a non-default index"
        raise NothingSelected(message, hint=hint)
    if hint:
        reporter.info(hint)
    return reachable
