"""Tests that the cited source locations of variables exist in the wheels.

The files are read from cached wheels, or by ranges from wheels on the index.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from functools import cache
from io import BufferedReader
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imgbuild.assemble import sources
from imgbuild.cache.store import Store
from imgbuild.container import path_variables
from imgbuild.http.client import HttpClient
from imgbuild.index.remote_wheel import BlockCache, RemoteFile
from imgbuild.lock.lock_file import Lock, lock_path, read_lock
from imgbuild.lock.published import load_matrix
from imgbuild.show import image_environment
from imgbuild.values import Arch
from tests.support import dashboards

pytestmark = pytest.mark.network

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
MATRIX = load_matrix(ROOT / "matrix.yaml")
PLACE = re.compile(r"(?P<package>\S+)==(?P<version>\S+) (?P<path>[^:]+):(?P<line>\d+)")
# The text of a line that refers to a variable without its name.
SAYS = {
    "PATH": "nvcc",
    "USER": "getuser",
    "LOGNAME": "getuser",
    "HOME": "HF_HOME",
    "HF_HUB_DISABLE_PROGRESS_BARS": "HF_HUB_DISABLE_TELEMETRY",
    "HF_DATASETS_OFFLINE": "HF_HUB_OFFLINE",
    **dict.fromkeys(("HF_KERNELS_CACHE", "TIKTOKEN_RS_CACHE_DIR", "NLTK_DATA"), ""),  # of a URL
    **dict.fromkeys(("PYTORCH_KERNEL_CACHE_PATH", "MPLCONFIGDIR", "TMPDIR"), ""),
}


def named() -> dict[str, list[str]]:
    """The cited locations in wheels by variable."""
    cited_places: dict[str, set[str]] = {}
    for name, target in MATRIX.targets.items():
        if lock_path(IMAGES, name).exists():
            environment = image_environment.target_environment(
                MATRIX, name, target.arch, read_lock(IMAGES, name)
            )
            cited = [(entry.name, entry.source) for entry in environment.image]
            cited += [(entry.name, entry.source) for entry in environment.late]
            for variable, places in cited:
                cited_places.setdefault(variable, set()).update(filter(PLACE.fullmatch, places))
    for row in path_variables.path_variable_table():
        for name in row.names:
            cited_places.setdefault(name, set()).update(filter(PLACE.fullmatch, row.source))
    return {name: sorted(places) for name, places in sorted(cited_places.items()) if places}


NAMED = named()


@cache
def locked(package: str, version: str) -> tuple[Lock, int]:
    """A lock that has this wheel for x86_64, and the position of the wheel."""
    for path in sorted(IMAGES.glob("*/lock.json")):
        lock = read_lock(IMAGES, path.parent.name)
        wheels = lock.arch[Arch.X86_64].wheels if Arch.X86_64 in lock.arch else ()
        for number, wheel in enumerate(wheels):
            if (wheel.package, wheel.version) == (package, version):
                return lock, number
    raise AssertionError(f"no lock has {package} {version}: name a locked version")


@pytest.fixture(scope="module")
def read() -> Callable[[str, str, str], list[str]]:
    """A function that returns the lines of a file in a locked wheel."""
    http, store = HttpClient(), Store.open()
    opened: dict[str, zipfile.ZipFile] = {}

    def _read(package: str, version: str, path: str) -> list[str]:
        lock, number = locked(package, version)
        wheel = lock.arch[Arch.X86_64].wheels[number]
        if wheel.sha256 not in opened:
            here = store.file(wheel.sha256)
            if here is not None:
                opened[wheel.sha256] = zipfile.ZipFile(here)
            else:
                (url, *_) = sources.open_indexes(lock, MATRIX, http).file_urls(package, wheel)
                remote = RemoteFile(url, BlockCache(http))
                opened[wheel.sha256] = zipfile.ZipFile(BufferedReader(remote))
        return opened[wheel.sha256].read(path).decode().splitlines()

    return _read


def test_many_environment_variables_have_a_location_in_a_wheel() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize(
    "name",
    # The other wheels are read only in long tests.
    [
        pytest.param(name, marks=[pytest.mark.long] if number % 8 else [])
        for number, name in enumerate(NAMED)
    ],
)
def test_location_of_each_variable_exists_and_mentions_the_variable(
    name: str, read: Callable[[str, str, str], list[str]]
) -> None:
    shown = []
    for place in NAMED[name]:
        match = PLACE.fullmatch(place)
        assert match
        lines = read(match["package"], match["version"], match["path"])
        number = int(match["line"])
        assert number <= len(lines), f"{place}: the file has {len(lines)} lines"
        shown.append(f"{place}: {lines[number - 1].strip()}")
    assert any(SAYS.get(name, name) in line.partition(": ")[2] for line in shown), "\n".join(shown)


@pytest.mark.parametrize(
    "version", sorted({version for version, _ in dashboards.targets_without_dashboard().values()})
)
def test_dashboard_packages_match_ray_wheel(
    version: str, read: Callable[[str, str, str], list[str]]
) -> None:
    lines = read("ray", version, f"ray-{version}.dist-info/METADATA")
    requirements = [
        Requirement(line.partition(": ")[2])
        for line in lines
        if line.startswith("Requires-Dist: ") and 'extra == "default"' in line
    ]
    needed = {canonicalize_name(requirement.name) for requirement in requirements}
    assert needed == dashboards.required_packages(version)
