"""Whether a refused version is tried again (separate: it depends on the trial, not the file).

A refusal is valid as long as its causes are unchanged: the row, its versions of the packages that
the reasons name, the files of the refused version, and the newest versions of these packages.
Versions refused by an audit are also tried again with another version of imgbuild.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from imgbuild.matrix.tried_updates import RefusedVersion
from imgbuild.system.syntax import parse_version


class TrialInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The current conditions of a trial, for comparison with those of a refusal.

    `newest` returns the newest usable version of a package, None if there is none.
    """

    row: str
    versions: Mapping[str, str]
    files: str
    imgbuild: str
    newest: Callable[[str], str | None]


def holds(refusal: RefusedVersion, inputs: TrialInputs) -> bool:
    """Whether no cause of the refusal has changed."""
    if not refusal.row:
        return True
    if (refusal.row, refusal.files) != (inputs.row, inputs.files):
        return False
    if refusal.kind == "audit" and refusal.imgbuild != inputs.imgbuild:
        return False
    if any(inputs.versions.get(package) != has for package, has in refusal.has.items()):
        return False
    return not any(
        _is_newer(inputs.newest(package), version) for package, version in refusal.newest.items()
    )


def _is_newer(now: str | None, then: str) -> bool:
    new, old = parse_version(now), parse_version(then)
    return new is not None and (old is None or new > old)
