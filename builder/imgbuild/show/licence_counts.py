"""Lists and counts the licences that the wheels of an image declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from imgbuild.attest.sbom import packages
from imgbuild.lock.resolution import Resolution, installed_wheels

SHOWN_LICENCES = 6


def wheel_licences(locked: Resolution, images: Iterable[Path]) -> dict[str, str]:
    """Return the declared licence of each wheel by package, or "" if it is unknown.

    The licences are read from packages.json in the folders `images`.
    """
    records = packages.recorded_packages([*images])
    declared = {}
    for wheel in installed_wheels(locked):
        record = records.get(wheel.sha256)
        declared[wheel.package] = (record.licence or record.license_text) if record else ""
    return declared


def count_licences(declared: Mapping[str, str]) -> str:
    """Return the most frequent licences with their numbers of wheels, as text."""
    counts = Counter(text for text in declared.values() if text)
    frequent = counts.most_common(SHOWN_LICENCES)
    shown = [f"{text} {number}" for text, number in frequent]
    if others := counts.total() - sum(number for _, number in frequent):
        shown.append(f"others {others}")
    if unknown := len(declared) - counts.total():
        shown.append(f"unknown {unknown}")
    return ", ".join(shown)
