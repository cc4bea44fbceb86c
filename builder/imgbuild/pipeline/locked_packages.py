"""Reads the requirements of locked packages from METADATA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgbuild.assemble.inputs import Inputs
from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import Package
from imgbuild.index import remote_wheel
from imgbuild.index.pages import IndexFile
from imgbuild.index.remote_wheel import LOCKED_PREFIX, RangeClient
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.pipeline.audit_lock import LockedRanges, LockFiles
from imgbuild.system import threads
from imgbuild.system.amounts import format_count
from imgbuild.system.console import console
from imgbuild.values import Sha256, normalize_package


def read_package_records(
    lock: Lock, wheels: Sequence[Wheel], inputs: Inputs
) -> dict[Sha256, Package]:
    """Read the requirements of `wheels` from the cache or the index.

    Wheels that are not yet built are skipped with a warning. Raises FetchFailed if METADATA is not
    available.
    """
    files = {wheel.sha256: wheel for wheel in wheels}
    records = packages.look_up_packages(files.items(), inputs.store)
    supply = LockFiles(lock, inputs)
    far = [
        wheel for key, wheel in files.items() if key not in records and not supply.is_built(wheel)
    ]
    if far:
        _fetch_metadata(lock, far, LockedRanges(lock, files, inputs, supply), inputs)
        records |= packages.look_up_packages(((wheel.sha256, wheel) for wheel in far), inputs.store)
    for key, wheel in files.items():
        if key not in records:
            message = (
                f"the requirements of {wheel.package} in {lock.target} are unknown, because "
                "its wheel is not built yet"
            )
            console.warn(message)
    return records


def package_requirements(
    wheels: Sequence[Wheel], records: Mapping[Sha256, Package]
) -> dict[str, Sequence[str]]:
    """Return the requirements of `wheels` by package. Packages without a record are omitted."""
    return {
        normalize_package(wheel.package): records[wheel.sha256].requires or ()
        for wheel in wheels
        if wheel.sha256 in records
    }


def _fetch_metadata(lock: Lock, wheels: Sequence[Wheel], http: RangeClient, inputs: Inputs) -> None:
    title = f"reading the requirements of {format_count(len(wheels), 'package')} of {lock.target}"
    with console.progress(title, len(wheels), unit="packages") as bar:

        def _metadata_task(wheel: Wheel, _: threads.StopFlag) -> None:
            place = f"{LOCKED_PREFIX}{wheel.sha256}"
            file = IndexFile(name=wheel.file, url=place, sha256=wheel.sha256)
            remote_wheel.read_wheel_metadata(file, http, inputs.store)
            bar.advance(1)

        threads.run_for_each(wheels, _metadata_task)
