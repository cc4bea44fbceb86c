#!/usr/bin/env python3
"""Writes the facts about the wheels of the recommended targets, a file in imgbuild's own wheel.

It audits these targets in turn. `make facts` gives it a cache of its own, so that the file follows
from the locks and the code alone. Wheels that the next target does not have are removed from the
cache. It takes about 10 GB of disk and 25 GB of downloads; an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import wheels_of
from imgbuild.audit.packages.published import (
    PublishedFacts,
    PublishedWheel,
    published_path,
    write_facts,
)
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.pipeline import audit_lock
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Options, open_session
from imgbuild.system.amounts import size_text
from imgbuild.values import Sha256

LIMIT = 20 << 20  # bytes that imgbuild's wheel may grow by
REMEDY = "make facts"


def wheels_in(lock: Lock) -> dict[Sha256, Wheel]:
    """SHA256 → wheel, of all architectures of a lock."""
    return {
        wheel.sha256: wheel for resolution in lock.arch.values() for wheel in wheels_of(resolution)
    }


def facts_of(names: Sequence[str]) -> dict[Sha256, PublishedWheel]:
    """The facts about the wheels of the targets `names`, by default the recommended ones."""
    session = open_session(None, Options())
    images = session.project.images
    recommended = [name for name, target in session.matrix.targets.items() if target.recommended]
    chosen = [lock_file.read_lock(images, name) for name in names or recommended]
    facts: dict[Sha256, PublishedWheel] = {}
    for lock, following in itertools.zip_longest(chosen, chosen[1:]):
        inputs = open_inputs(session)
        for arch in lock.arch:
            audit_lock.audit_target(session.project, session.matrix, lock.target, arch, inputs)
        locked_wheels = wheels_in(lock)
        with Library(inputs.store) as library:
            for key, wheel in locked_wheels.items():
                facts[key] = library.wheel(wheel, Path(wheel.file)).stored_facts()
        for key in locked_wheels.keys() - (wheels_in(following) if following is not None else {}):
            inputs.store.drop_file(key)
        inputs.store.release()
    return facts


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", help="default: the recommended targets")
    parser.add_argument(
        "--output", type=Path, default=published_path(), help="default: in the package's data"
    )
    parser.add_argument(
        "--check", action="store_true", help="only test whether this code can use the file, if any"
    )
    options = parser.parse_args()
    path: Path = options.output
    if options.check:
        if path.exists() and not len(PublishedFacts.open(path)):
            print(f"{path}: out of date, remove it or run: {REMEDY}", file=sys.stderr)
            return 4
        return 0
    facts = facts_of(options.target)
    write_facts(path, facts)
    size = path.stat().st_size
    print(f"{path}: {len(facts)} wheels, {size_text(size)}")
    if size > LIMIT:
        print(f"{path}: more than {size_text(LIMIT)}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
