"""Forms the tags of an image, for all or some architectures, with or without a day.

`push` sets these tags; `verify` compares a tag with them.
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
    """The tag without a day of `target` on `arches`; with `base`, the tag of the base's layers.

    An image with only some of the `locked` architectures has their names in its tags, so it never
    replaces the complete image.
    """
    some = sorted(arches) if set(arches) != set(locked) else []
    return "-".join([target, *([BASE] if base else []), *some])


def dated_tag(tag: str, day: datetime.date) -> str:
    """The stable `tag` with a day."""
    return f"{tag}-{day:{DAY}}"


def day_of_tag(tag: str, stable: str) -> datetime.date | None:
    """The day in a tag of `dated_tag`; None for another tag, ValueError for an invalid day."""
    match = re.fullmatch(rf"{re.escape(stable)}-([0-9]{{8}})", tag)
    if match is None:
        return None
    return datetime.datetime.strptime(match[1], DAY).replace(tzinfo=datetime.UTC).date()


def is_tag_of(tag: str, target: str) -> bool:
    """Whether `tag` has the form of a tag of `target`, for any architectures, part and day."""
    arches = "|".join(re.escape(arch) for arch in Arch)
    form = rf"{re.escape(target)}(-{BASE})?(-({arches}))*(-[0-9]{{8}})?"
    return re.fullmatch(form, tag) is not None
