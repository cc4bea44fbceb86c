"""Finds the part of a package that raised an exception.

`data/diagnose/facts/parts.yaml` lists the parts and their alternatives.
"""

# A separate module: a table of places.
from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from imgbuild.audit.names import releases
from imgbuild.diagnose.exceptions import TraceFrame
from imgbuild.system import files, yaml_data

MOST_FRAMES = 12  # from the innermost one


class PackagePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a package, with a pattern for FILE:FUNCTION of a frame.

    The cure of a `first` part is more useful than that of a message of Python or torch.
    """

    place: str
    part: str
    cure: str
    first: bool = False


@lru_cache(maxsize=1)
def load_parts() -> tuple[tuple[re.Pattern[str], PackagePart], ...]:
    """Load the parts with their patterns, in order."""
    rows = yaml_data.load_yaml_data(
        files.data("diagnose/facts/parts.yaml"), tuple[PackagePart, ...]
    )
    return tuple((re.compile(row.place, re.IGNORECASE), row) for row in rows)


def find_part(frames: tuple[TraceFrame, ...], packages: tuple[str, ...]) -> PackagePart | None:
    """Return the part of the innermost frame that is in a part of one of `packages`."""
    for frame in reversed(frames[-MOST_FRAMES:]):
        if frame.is_standard or not frame.package:
            continue
        if releases.package_name(frame.package) not in packages:
            continue
        place = f"{frame.file}:{frame.name}".replace("\\", "/")
        for pattern, part in load_parts():
            if pattern.search(place):
                return part
    return None
