"""Creates the tags of images, which can include architectures and a date.

`push` sets these tags, and `verify` compares the tag of an image with them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection

from imgbuild.values import Arch

BASE = "base"
DAY = "%Y%m%d"
DATED_TAG = re.compile(r"(.+)-([0-9]{8})")  # a stable tag, and its day


def stable_tag(
    target: str, arches: Collection[Arch], locked: Collection[Arch], *, base: bool = False
) -> str:
    """Return the undated tag of `target` for `arches`, or of its base layers if `base` is set.

    If an image has only some of the `locked` architectures, the tag includes their names, so that
    it never replaces the complete image.
    """
    some = sorted(arches) if set(arches) != set(locked) else []
    return "-".join([target, *([BASE] if base else []), *some])


def dated_tag(tag: str, day: datetime.date) -> str:
    """Append a date to the stable `tag`."""
    return f"{tag}-{day:{DAY}}"


def day_of_tag(tag: str, stable: str) -> datetime.date | None:
    """Return the date in a dated tag, or None for other tags.

    Raises ValueError if it is invalid.
    """
    match = re.fullmatch(rf"{re.escape(stable)}-([0-9]{{8}})", tag)
    if match is None:
        return None
    return datetime.datetime.strptime(match[1], DAY).replace(tzinfo=datetime.UTC).date()


def is_tag_of(tag: str, target: str) -> bool:
    """Return whether `tag` can be a tag of `target`, with any architectures, part and date."""
    arches = "|".join(re.escape(arch) for arch in Arch)
    form = rf"{re.escape(target)}(-{BASE})?(-({arches}))*(-[0-9]{{8}})?"
    return re.fullmatch(form, tag) is not None
