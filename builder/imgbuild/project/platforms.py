"""Evaluates markers for the environments of images: Linux on x86_64 or arm64."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator

from packaging.markers import (
    InvalidMarker,
    Marker,
    UndefinedComparison,
    UndefinedEnvironmentName,
)

MACHINES = ("x86_64", "aarch64")
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
# Releases whose last number matters: markers compare python_full_version.
PATCHES = ("0", "14")


@functools.cache
def possible_environments() -> tuple[dict[str, str], ...]:
    """Return the marker environments of all architectures and Python versions of images."""
    return tuple(
        {
            "implementation_name": "cpython",
            "implementation_version": f"{python}.{patch}",
            "os_name": "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_release": "6.1.0",
            "platform_system": "Linux",
            "platform_version": "1",
            "python_full_version": f"{python}.{patch}",
            "python_version": python,
            "sys_platform": "linux",
        }
        for machine, python, patch in itertools.product(MACHINES, PYTHONS, PATCHES)
    )


@functools.cache
def matching_environments(marker: str) -> frozenset[int]:
    """Return the indices in `possible_environments` at which `marker` is true.

    No extras are requested. A marker that is empty or cannot be evaluated counts as true.
    """
    if not marker:
        return frozenset(range(len(possible_environments())))
    try:
        parsed = Marker(marker)
        return frozenset(
            number
            for number, environment in enumerate(possible_environments())
            if parsed.evaluate({**environment, "extra": ""})
        )
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return frozenset(range(len(possible_environments())))


def is_possible(marker: Marker | str | None) -> bool:
    """Return whether `marker` can be true in an image."""
    return bool(matching_environments(str(marker or "")))


def join_markers(*markers: str | None) -> str:
    """Join `markers` with "and".

    Invalid markers are omitted. Return "" if none is left.
    """
    parts = []
    for marker in filter(None, markers):
        with contextlib.suppress(InvalidMarker):
            parts.append(Marker(marker))
    return str(functools.reduce(operator.and_, parts)) if parts else ""
