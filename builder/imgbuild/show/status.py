"""Determines whether targets are locked, stale, not locked, or need more than the default index.

This module also omits targets that a command for several targets cannot process. A target that
needs more than the default index is skipped with a message, unless it is selected by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError, NothingSelected
from imgbuild.index import pages
from imgbuild.lock import lock_file, requirements
from imgbuild.lock.published import project_row
from imgbuild.matrix import constraints
from imgbuild.matrix.model import DebianBase, Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.select import Selected
from imgbuild.plan import current, image_digests
from imgbuild.system import decoding
from imgbuild.system.boundary import read_regular_file
from imgbuild.system.code_digest import code_digest
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Condition, Sha256, sha256

FACT = "current-targets"


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a target. `reasons` explains a stale lock, or lists what the target needs."""

    target: str
    condition: Condition
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.condition is Condition.NEEDS:
            return f"needs {'; '.join(self.reasons)}"
        return self.condition.value


def target_state(project: Project, matrix: Matrix, name: str) -> TargetState:
    """Return the state of target `name`, determined without solving or fetching."""
    if not lock_file.lock_path(project.images, name).exists():
        missing = target_needs(matrix, name)
        condition = Condition.NEEDS if missing else Condition.UNLOCKED
        return TargetState(target=name, condition=condition, reasons=missing)
    try:
        current.read_current(project, matrix, name)
    except ImgbuildError as error:
        reasons = tuple(line.strip() for line in error.message.splitlines())
        return TargetState(target=name, condition=Condition.STALE, reasons=reasons)
    return TargetState(target=name, condition=Condition.LOCKED)


def target_states(
    project: Project, matrix: Matrix, names: Iterable[str], store: Store | None
) -> dict[str, TargetState]:
    """Return the states of the targets `names`, determined as in `target_state`.

    `store` caches a hash of all inputs for each locked target, so that a state is determined again
    only after a change. If `store` is None or read-only, nothing is cached.
    """
    place = str(project.matrix.resolve())
    before = _stored_hashes(store, place)
    hashes = dict(before)
    answers = {}
    for name in names:
        inputs = inputs_hash(project, matrix, name) if store is not None else None
        if inputs is not None and before.get(name) == inputs:
            answers[name] = TargetState(target=name, condition=Condition.LOCKED)
            continue
        answers[name] = target_state(project, matrix, name)
        hashes.pop(name, None)
        is_locked = answers[name].condition is Condition.LOCKED
        # Another process may have changed a file meanwhile.
        if inputs is not None and is_locked and inputs_hash(project, matrix, name) == inputs:
            hashes[name] = inputs
    if store is not None and hashes != before:
        with contextlib.suppress(ImgbuildError):
            store.put_fact(FACT, place, msgspec.json.encode(hashes))
    return answers


def _stored_hashes(store: Store | None, place: str) -> dict[str, Sha256]:
    """Return the stored hashes of targets of the matrix at `place`. Empty without a valid fact."""
    data = store.fact(FACT, place) if store is not None else None
    with contextlib.suppress(msgspec.MsgspecError):
        return decoding.decode_json(data or b"{}", dict[str, Sha256])
    return {}


def inputs_hash(project: Project, matrix: Matrix, name: str) -> Sha256 | None:
    """Hash all inputs that determine whether the lock of `name` is current.

    Returns None if a file cannot be read, and for extensions, because they also depend on published
    files.
    """
    if project_row(matrix, name) is not None:
        return None
    arches = matrix.targets[name].arch
    learned = constraints.constraints_path(project.images)
    try:
        paths = [
            lock_file.lock_path(project.images, name),
            image_digests.digests_path(project.images, name),
            *(project.images / name / requirements.file_name(arch) for arch in arches),
            *([learned] if learned.exists() else []),
        ]
        expected = lock_file.make_lock(matrix, name, {})
        parts = [msgspec.json.encode([arches, expected]), *map(read_regular_file, paths)]
    except (ImgbuildError, OSError):
        return None
    return sha256("".join([code_digest(__name__), *map(sha256, parts)]).encode())


def target_needs(matrix: Matrix, name: str) -> tuple[str, ...]:
    """List servers or wheels that target `name` needs in addition to the default index."""
    target = matrix.targets[name]
    base = matrix.bases[target.base]
    entries = []
    if isinstance(base, DebianBase) and base.standalone_python is not None:
        urls = (base.standalone_python.archives.get(arch) for arch in target.arch)
        hosts = dict.fromkeys(urlsplit(url).hostname or "" for url in urls if url)
        entries.append(f"the archive of Python {base.python} on {' and '.join(hosts)}")
    for index in dict.fromkeys(target.indexes.values()):
        if index == matrix.default_index:
            continue
        packages = [package for package, other in target.indexes.items() if other == index]
        address = pages.fill_address(
            matrix.indexes[index], cuda=target.cuda, torch=target.pins.get("torch")
        )
        if address is None or urlsplit(address).scheme != "file":
            entries.append(f"the index {index} for {', '.join(packages)}")
            continue
        folder = Path(unquote(urlsplit(address).path))
        absent = [package for package in packages if package not in packages_with_wheel(folder)]
        if absent:
            entries.append(f"a wheel of {' and of '.join(absent)} in {folder.name}/")
    return tuple(entries)


def lock_remedy(matrix: Matrix, name: str) -> str:
    """Instructions to use the unlocked target `name` of a catalogue in a project."""
    servers = " and ".join(target_needs(matrix, name))
    wants = f"to be locked, the target needs {servers};  " if servers else ""
    commands = f"imgbuild lock {name}, then in this folder: imgbuild init --lock CLONE"
    return f"{wants}in a clone of imgbuild, run: {commands}"


def packages_with_wheel(folder: Path) -> frozenset[str]:
    """Return the packages with a wheel in `folder`. Empty if the folder does not exist."""
    owners = (pages.package_of_file(path.name) for path in folder.glob("*.whl"))
    return frozenset(owner for owner in owners if owner)


def reachable_targets(
    project: Project,
    matrix: Matrix,
    selected: Sequence[Selected],
    patterns: Sequence[str],
    reporter: Reporter = SILENT_REPORTER,
) -> list[Selected]:
    """Omit targets that need another server, with a warning, unless they are selected by name.

    A single target is not omitted. Raises NothingSelected if no target is left.
    """
    reachable, passed = [], []
    for item in selected:
        locked = lock_file.lock_path(project.images, item.name).exists()
        missing = () if locked else target_needs(matrix, item.name)
        if missing and item.name not in patterns and len(matrix.targets) > 1:
            passed.append(item.name)
            reporter.warn(f"skipping {item.name}, which needs {'; '.join(missing)}")
            continue
        if missing:
            reporter.info(f"{item.name} needs {'; '.join(missing)}")
        reachable.append(item)
    hint = f"to lock such a target anyway, select it by name: {passed[0]}" if passed else None
    if selected and not reachable:
        message = "all selected targets need more than the default index"
        raise NothingSelected(message, hint=hint)
    if hint:
        reporter.info(hint)
    return reachable
