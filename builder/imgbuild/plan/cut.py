"""Assigns wheels to layers that targets can share."""

# A separate module: a rule.
from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable

from imgbuild.errors import InputError
from imgbuild.lock.lock_file import LayerRules
from imgbuild.lock.resolution import Wheel
from imgbuild.values import sha256


def cut_wheels(
    wheels: Iterable[Wheel], rules: LayerRules, *, taken: int
) -> list[tuple[str, tuple[Wheel, ...]]]:
    """Divide wheels into named layers, in the same order for all targets.

    Large wheels come first, sorted by the patterns of `rules.order` and then by name. Groups of
    small wheels follow, by a fixed hash of the package's name. The small wheels listed in the
    matrix come last, in the order of the list. `taken` is the number of other layers of the image.
    If large wheels would exceed the limit, the smallest of them are added to the groups. Raises
    InputError if the limit is still too low.
    """
    named = {package: place for place, package in enumerate(rules.named)}
    big = [wheel for wheel in wheels if wheel.size >= rules.own_from]
    rest = [wheel for wheel in wheels if wheel.size < rules.own_from]
    alone = sorted((w for w in rest if w.package in named), key=lambda w: named[w.package])
    room = rules.limit - taken - rules.groups - len(alone)
    if room < 0:
        message = (
            f"layers.limit is {rules.limit}, but base and files need {taken} layers, groups need"
            f" {rules.groups}, and named packages need {len(alone)}"
        )
        raise InputError(message, hint="raise layers.limit or list fewer packages")
    # A package listed in the matrix keeps its own layer; only others go into the groups.
    big.sort(key=lambda wheel: (wheel.package not in named, -wheel.size, wheel.package))
    large, spilt = big[:room], big[room:]
    large.sort(key=lambda wheel: (_rank(wheel.package, rules.order), wheel.package))
    groups: dict[int, list[Wheel]] = {}
    for wheel in [*spilt, *(w for w in rest if w.package not in named)]:
        groups.setdefault(_hash(wheel.package) % rules.groups, []).append(wheel)
    return [
        *((wheel.package, (wheel,)) for wheel in large),
        *((f"group-{number}", _sort_by_hash(groups[number])) for number in sorted(groups)),
        *((wheel.package, (wheel,)) for wheel in alone),
    ]


@functools.lru_cache(maxsize=4096)  # most targets have the same packages and rules
def _rank(package: str, order: tuple[str, ...]) -> int:
    matches = (
        place for place, pattern in enumerate(order) if fnmatch.fnmatchcase(package, pattern)
    )
    return next(matches, len(order))


@functools.lru_cache(maxsize=4096)
def _hash(package: str) -> int:
    return int(sha256(package.encode())[:8], 16)


def _sort_by_hash(wheels: Iterable[Wheel]) -> tuple[Wheel, ...]:
    return tuple(sorted(wheels, key=lambda wheel: wheel.sha256))
