"""What extras of requested packages require: rows name no extras (separate: reads METADATA)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.index import cuda_releases
from imgbuild.matrix.model import Wanted
from imgbuild.resolve.request import RequestedPackage
from imgbuild.values import normalize

Read = Callable[[str, Version], bytes | None]


def requirements(
    requests: Iterable[RequestedPackage],
    versions: Mapping[str, str],
    markers: Mapping[str, str],
    read: Read,
) -> dict[str, Wanted]:
    """Package → what the extras of `requests` require of it, the extras of other packages included.

    `versions` are those of the package set, `markers` its machine; `read` gives METADATA. Without
    packages that are requested themselves.
    """
    by_package = {requested.package: requested for requested in requests}
    pending = [(package, extra) for package, each in by_package.items() for extra in each.extras]
    seen: set[tuple[str, str]] = set()
    specs: dict[str, dict[str, None]] = {}
    reasons: dict[str, str] = {}
    while pending:
        package, extra = pending.pop(0)
        if (package, extra) in seen or package not in versions:
            continue
        seen.add((package, extra))
        for requirement in _of_extra(read(package, Version(versions[package])), extra, markers):
            other = normalize(requirement.name)
            pending += [(other, normalize(each)) for each in requirement.extras]
            if other not in by_package:
                specs.setdefault(other, {}).update(dict.fromkeys(map(str, requirement.specifier)))
                reasons.setdefault(other, f"{package}[{extra}] requires it")
    return {
        package: Wanted(spec=",".join(sorted(each)), reason=reasons[package])
        for package, each in sorted(specs.items())
    }


def _of_extra(
    metadata: bytes | None, extra: str, markers: Mapping[str, str]
) -> Iterable[Requirement]:
    """The requirements that hold with `extra` and not without it."""
    plain = {**markers, "extra": ""}
    return (
        requirement
        for requirement in cuda_releases.requirements(metadata or b"")
        if requirement.marker is not None
        and not requirement.marker.evaluate(plain)
        and requirement.marker.evaluate({**markers, "extra": extra})
    )
