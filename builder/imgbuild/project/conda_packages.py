"""Maps Conda packages to packages on the Python index, Debian packages or CUDA releases.

A table lists the Conda packages that have another name on the index.
"""

from __future__ import annotations

import functools
import re

import msgspec

from imgbuild.project.model import FilePlace
from imgbuild.project.reading import ProjectReading
from imgbuild.system import files, yaml_data

INSTALLERS = ("pip", "setuptools", "wheel")
SPEC = re.compile(
    r"(?:(?P<channel>[^:\s]+)::)?(?P<name>[A-Za-z0-9_.-]+)\s*"
    r"(?P<version>[^\[]*?)\s*(?:\[(?P<keys>.*)\])?"
)


class CondaTable(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `data/project/conda.yaml`, which maps Conda packages to other packages."""

    renamed: dict[str, str]
    debian: dict[str, str]
    absent: dict[str, str]
    cuda: frozenset[str]
    libraries: frozenset[str]
    library_prefixes: tuple[str, ...]
    not_libraries: frozenset[str]

    def is_library(self, name: str) -> bool:
        """Return whether the package is a library that only Conda environments need."""
        by_prefix = name.startswith(self.library_prefixes) and name not in self.not_libraries
        return by_prefix or name in self.libraries


@functools.cache
def load_conda_table() -> CondaTable:
    """Load the table from imgbuild's data files."""
    return yaml_data.load_yaml_data(files.data("project/conda.yaml"), CondaTable)


def read_dependency(reading: ProjectReading, text: str, place: FilePlace) -> None:
    """Read a package in Conda's syntax, such as `numpy=1.26` or `conda-forge::git`."""
    match = SPEC.fullmatch(text.strip())
    if match is None:
        reading.add_unread(place, text, "not a conda package specification")
        return
    name = match["name"].lower()
    written = match["version"] or _key(match["keys"], "version")
    version = convert_specifier(written)
    packages = load_conda_table()
    if version is None:
        reading.add_unread(place, text, "pip cannot express these versions")
    elif name == "python":
        reading.add_python(_minor_specifier(version), place)
    elif name in packages.cuda:
        _cuda(reading, written, text, place)
    elif name in INSTALLERS:
        return
    elif name in packages.debian:
        package = packages.debian[name]
        if written:
            reading.add_unread(place, text, f"Debian's version of {package} is installed")
        reading.debian_package(package, place)
    elif name in packages.absent:
        reading.add_unread(place, text, packages.absent[name])
    elif packages.is_library(name) and name not in packages.renamed:
        reading.add_unread(
            place, text, "a Conda library, which wheels or the image already contain"
        )
    else:
        reading.add_requirement(f"{packages.renamed.get(name, name)}{version}", place, conda=True)


def _cuda(reading: ProjectReading, written: str, text: str, place: FilePlace) -> None:
    release = re.search(r"(\d+\.\d+)", written)
    if release:
        reading.cuda_release(release[1], place)
    else:
        reading.add_unread(place, text, "specifies no CUDA release")


def _key(keys: str | None, name: str) -> str:
    match = re.search(rf"{name}\s*=\s*(['\"]?)([^'\"\]]*)\1", keys or "")
    return match[2] if match else ""


def _minor_specifier(version: str) -> str:
    """Replace the patch release by `*`, as in `==3.10.*`: images have the newest patch release."""
    match = re.fullmatch(r"==(\d+\.\d+)\.[\d.]+", version)
    return f"=={match[1]}.*" if match else version


def convert_specifier(version: str) -> str | None:
    """Convert a Conda version specification to a PEP 440 specifier.

    `=1.26` and `1.26` match any release that begins with these numbers. `=1.26.4=BUILD` and
    `==1.26.4` are exact. Return None if PEP 440 has no equivalent. Source: Conda's documentation of
    match specifications.
    """
    version = version.strip().replace(" ", "=") if re.match(r"\s*[\d.]+\s", version) else version
    version = version.replace(" ", "").strip()
    if not version or version == "*":
        return ""
    if "|" in version:
        return None
    exact = re.fullmatch(r"={0,2}([\w.!+]+)=[\w.*]+", version)
    if exact:
        return f"=={exact[1]}"
    fuzzy = re.fullmatch(r"=?([\d.]+)(\.?\*)?", version)
    if fuzzy:
        number = fuzzy[1].rstrip(".")
        return f"=={number}" if number.count(".") > 1 and not fuzzy[2] else f"=={number}.*"
    if re.fullmatch(r"=[\w.!+]+", version):
        return f"={version}"
    parts = version.split(",")
    if all(re.fullmatch(r"(==|!=|<=|>=|<|>|~=)[\w.*!+]+", part) for part in parts):
        return ",".join(parts)
    return None
