"""environment.yml of conda: the packages that are on the Python index, in Debian, or in CUDA.

What conda packages are called elsewhere is a small table: only what is the same software.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

import msgspec

from imgbuild.project import requirement_lines
from imgbuild.project.model import Place
from imgbuild.project.reading import Reading
from imgbuild.project.sources import line_of
from imgbuild.system import yaml_data

INSTALLERS = ("pip", "setuptools", "wheel")
SPEC = re.compile(
    r"(?:(?P<channel>[^:\s]+)::)?(?P<name>[A-Za-z0-9_.-]+)\s*"
    r"(?P<version>[^\[]*?)\s*(?:\[(?P<keys>.*)\])?"
)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What packages of conda are elsewhere: `data/project/conda.yaml`."""

    renamed: dict[str, str]
    debian: dict[str, str]
    absent: dict[str, str]
    cuda: frozenset[str]
    libraries: frozenset[str]
    library_prefixes: tuple[str, ...]
    not_libraries: frozenset[str]

    def is_library(self, name: str) -> bool:
        """Whether the package is a library of conda's own environments."""
        by_prefix = name.startswith(self.library_prefixes) and name not in self.not_libraries
        return by_prefix or name in self.libraries


@functools.cache
def table() -> Table:
    """The table that comes with imgbuild."""
    text = resources.files("imgbuild").joinpath("data", "project", "conda.yaml").read_bytes()
    return msgspec.convert(yaml_data.read(text), Table)


def read_file(reading: Reading, name: str) -> None:
    """Read an environment.yml."""
    document = reading.yaml(name)
    if document is None:
        return
    place = Place(file=name)
    if not isinstance(document, dict):
        reading.problem(
            place, "not an environment of conda", expected="a mapping with dependencies"
        )
        return
    text = reading.sources.text(name)
    dependencies = document.get("dependencies") or []
    if not isinstance(dependencies, list):
        reading.problem(place, "dependencies is not a list", value=str(dependencies)[:60])
        return
    for entry in dependencies:
        if isinstance(entry, dict):
            _pip_part(reading, entry, name, text)
        elif isinstance(entry, str):
            dependency(reading, entry, Place(file=name, line=_line(text, entry)))
        elif entry is not None:
            reading.problem(place, "a dependency is not text", value=str(entry)[:60])
    variables = document.get("variables")
    if variables:
        reason = "variables of the environment: set them under env in matrix.yaml"
        line = line_of(text, "variables:")
        reading.leave_out(Place(file=name, line=line), "variables", reason)


def _line(text: str, entry: str) -> int:
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip().removeprefix("-").partition(" #")[0].strip().strip("\"'")
        if stripped == entry.strip():
            return number
    return line_of(text, entry)


def _pip_part(reading: Reading, entry: dict[str, Any], name: str, text: str) -> None:
    for key, lines in entry.items():
        place = Place(file=name, line=line_of(text, f"{key}:"))
        if key != "pip" or not isinstance(lines, list):
            reading.leave_out(place, str(key), "only a list for pip is read here")
            continue
        scope = requirement_lines.Scope(above=(name,))
        for line in lines:
            if not isinstance(line, str):
                reading.problem(place, "a requirement is not text", value=str(line)[:60])
                continue
            spot = Place(file=name, line=_line(text, line))
            scope = requirement_lines.read_line(reading, line, spot, scope)


def dependency(reading: Reading, text: str, place: Place) -> None:
    """Read a package as conda writes it: `numpy=1.26`, `conda-forge::git`, `python>=3.10`."""
    match = SPEC.fullmatch(text.strip())
    if match is None:
        reading.leave_out(place, text, "not a package as conda writes it")
        return
    name = match["name"].lower()
    written = match["version"] or _key(match["keys"], "version")
    version = specifier(written)
    known = table()
    if version is None:
        reading.leave_out(place, text, "versions that pip cannot express")
    elif name == "python":
        reading.python(_minor(version), place)
    elif name in known.cuda:
        _cuda(reading, written, text, place)
    elif name in INSTALLERS:
        return
    elif name in known.debian:
        package = known.debian[name]
        if written:
            reading.leave_out(place, text, f"Debian's own version of {package} is installed")
        reading.debian_package(package, place)
    elif name in known.absent:
        reading.leave_out(place, text, known.absent[name])
    elif known.is_library(name) and name not in known.renamed:
        reading.leave_out(place, text, "a library of conda: wheels and the image have their own")
    else:
        reading.requirement(f"{known.renamed.get(name, name)}{version}", place)


def _cuda(reading: Reading, written: str, text: str, place: Place) -> None:
    release = re.search(r"(\d+\.\d+)", written)
    if release:
        reading.cuda_release(release[1], place)
    else:
        reading.leave_out(place, text, "names no CUDA release")


def _key(keys: str | None, name: str) -> str:
    match = re.search(rf"{name}\s*=\s*(['\"]?)([^'\"\]]*)\1", keys or "")
    return match[2] if match else ""


def _minor(version: str) -> str:
    """`==3.10.*` for an exact release of Python: images have the newest of each minor version."""
    match = re.fullmatch(r"==(\d+\.\d+)\.[\d.]+", version)
    return f"=={match[1]}.*" if match else version


def specifier(version: str) -> str | None:
    """Conda's versions as PEP 440 has them; None if it has no such form.

    `=1.26` and `1.26` are any release that begins so, `=1.26.4=BUILD` and `==1.26.4` are exact.
    Source: conda's documentation of match specifications.
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


def is_environment(name: str) -> bool:
    """Whether a file has the name of an environment of conda."""
    file = name.rpartition("/")[2]
    pattern = r"(conda[-_.])?(env|environment)([-_.][\w-]+)?\.ya?ml|conda\.ya?ml"
    return bool(re.fullmatch(pattern, file))
