"""Why something cannot be added to a published target: a short chain, and versions that can.

Comes in: an extension that could not be resolved. Goes out: a NoSolution whose reasons start
from what the published target has, which stays as it is, and from what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.cache.download import Http
from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError, NoSolution
from imgbuild.lock import published
from imgbuild.lock.published import Below
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.resolve import conflict, request, survey
from imgbuild.resolve.conflict import Conflict, Demand, Facts
from imgbuild.resolve.request import Wish
from imgbuild.resolve.suggest import Look, Nearest
from imgbuild.resolve.survey import Memory
from imgbuild.values import Arch

TRIED = 24  # versions of a package for which a range was asked


def explained(
    error: NoSolution,
    matrix: Matrix,
    name: str,
    arch: Arch,
    known: Sequence[Constraint],
    store: Store,
    http: Http,
) -> NoSolution:
    """`error` of target `name` on `arch`, with a short chain if one is found.

    For a target that extends none, see `surveys.explained`.
    """
    found = published.below(matrix, name)
    if found is None:
        return survey.explained(error, matrix, name, arch, known, store, http)
    hint = (
        f"{found.name} stays as it is: add another version, or extend a published target that has"
        " what it needs"
    )
    plain = NoSolution(error.message, reasons=error.reasons, hint=hint)
    target = matrix.targets[name]
    demands = _demands(found, matrix, name, arch)
    asked = tuple(Wish(package=item.package, spec=item.spec) for item in demands)
    ask = msgspec.structs.replace(request.of_target(name, target, arch), wishes=asked, row="")
    try:
        with survey.opened(ask, matrix, arch, None, Memory(known), store, http) as facts:
            conflict = _conflict(facts, demands, target.cuda, found.name)
            added = _added(conflict, found, arch) if conflict is not None else []
            if conflict is None or not added:  # what is published does get along
                return plain
            near = _near(facts, demands, conflict, target.cuda, found, arch)
    except ImgbuildError:
        return plain  # what stopped the explanation is no reason of this world
    message = f"{' and '.join(added)} cannot be added to {found.name}"
    return NoSolution(message, reasons=conflict.reasons, nearest=near, hint=hint)


def _demands(found: Below, matrix: Matrix, name: str, arch: Arch) -> tuple[Demand, ...]:
    """What is published, and what is asked for on top."""
    versions = found.lock.arch[arch].versions
    target = matrix.targets[name]
    wanted = {package: f"=={pin}" for package, pin in target.pins.items()}
    wanted |= {package: each.spec for package, each in target.requires.items()}
    return (
        *(
            conflict.demand(package, f"=={version}", f"{found.name} has {package} {version}")
            for package, version in versions.items()
        ),
        *(
            conflict.demand(package, spec)
            for package, spec in wanted.items()
            if package not in versions
        ),
    )


def _conflict(facts: Facts, demands: Sequence[Demand], cuda: str, row: str) -> Conflict | None:
    """The first contradiction, also where every version of a range leads to one."""
    plain = conflict.conflict(facts, demands, cuda, row=row)
    if plain is not None:
        return plain
    for demand in demands:
        fitting = facts.fitting(demand.package, demand.spec) or ()
        if not demand.words.startswith("you asked") or len(fitting) < 2:
            continue
        tried = fitting[:TRIED]
        facts.read_ahead(demand.package, tried)
        words = f"{demand.words}, of which {tried[0]} is the newest"
        exact = [conflict.demand(demand.package, f"=={version}", words) for version in tried]
        found = [
            conflict.conflict(
                facts, [each if item == demand else item for item in demands], cuda, row=row
            )
            for each in exact
        ]
        if found[0] is not None and all(found):
            none = f"nor does any other of {len(tried)} versions of {demand.package} fit"
            return msgspec.structs.replace(found[0], reasons=(*found[0].reasons, none))
    return None


def _near(
    facts: Facts,
    demands: Sequence[Demand],
    conflict: Conflict,
    cuda: str,
    found: Below,
    arch: Arch,
) -> tuple[str, ...]:
    """What could be added instead, as METADATA says.

    To hold its code against all that is published would be an audit of the whole target.
    """
    kept = tuple(found.lock.arch[arch].versions)
    return Nearest(facts, demands, conflict, lambda versions: Look(), kept).worlds(cuda)


def _added(conflict: Conflict, found: Below, arch: Arch) -> list[str]:
    """The packages of the conflict that were asked for."""
    versions = found.lock.arch[arch].versions
    return [package for package in conflict.wishes if package not in versions]
