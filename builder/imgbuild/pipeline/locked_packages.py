"""The package set of a lock, for questions that METADATA answers: no whole wheel is downloaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set, wheels_of
from imgbuild.errors import FetchFailed
from imgbuild.index.remote_wheel import Blocks
from imgbuild.lock.lock import Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.pipeline.audit_lock import PREFIX, LockedRanges, LockFiles
from imgbuild.system import threads
from imgbuild.system.console import console
from imgbuild.values import Arch


@contextlib.contextmanager
def opened(lock: Lock, arch: Arch, inputs: Inputs) -> Iterator[PackageSet]:
    """The packages of `lock` for `arch`, their METADATA read.

    It comes from the cache: from facts of an audit, or the wheels themselves; else from the index,
    by ranges. FetchFailed if it is not available, offline included. A package that would have to be
    built first is left out, with a warning.
    """
    wheels = {wheel.sha256: wheel for wheel in wheels_of(lock.arch[arch])}
    built = {one.wheel.sha256 for one in lock.arch[arch].built}
    elsewhere = LockedRanges(lock, wheels, inputs, LockFiles(lock, inputs))
    with Library(inputs.store, Blocks(elsewhere)) as library:

        def _place(wheel: Wheel) -> Path | str:
            path = inputs.store.file(wheel.sha256)
            if path is None and wheel.sha256 in built:
                # No server has it, and it is not built for a question: facts are all there can be.
                return (inputs.store.root / wheel.file).as_uri()
            return path or f"{PREFIX}{wheel.sha256}"

        def _readable(wheel: Wheel, stop: threads.Stop) -> bool:
            stop.check()
            try:
                _ = library.book(wheel, _place(wheel)).index
            except FetchFailed:
                if wheel.sha256 not in built:
                    raise
                return False
            return True

        known = threads.each(tuple(wheels.values()), _readable)
        for wheel, is_known in zip(wheels.values(), known, strict=True):
            if not is_known:
                message = f"{wheel.package} of {lock.target} is not built: what it needs is unknown"
                console.warn(message)
        yield open_package_set(
            [wheel for wheel, is_known in zip(wheels.values(), known, strict=True) if is_known],
            library,
            python=lock.base.python,
            arch=arch,
            glibc=lock.base.glibc,
            locate=_place,
            partial=True,
        )
