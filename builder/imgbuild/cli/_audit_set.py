"""The options of `imgbuild audit` for packages without a lock: pins, or an environment."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from imgbuild import project
from imgbuild.audit.judge import Terms
from imgbuild.audit.packages import requirement_files
from imgbuild.audit.packages.environment import open_environment
from imgbuild.audit.packages.pinned import ANY_GLIBC, PinList
from imgbuild.audit.packages.requirement_files import RequirementText, read_pins
from imgbuild.cache.context import Context
from imgbuild.cli._help import ACTIVE
from imgbuild.cli._options import AGAIN, BASE, CUDA, PYTHON
from imgbuild.cli._output import count
from imgbuild.cli._verb import SELECT, Group, option
from imgbuild.doctor import host
from imgbuild.errors import InputError
from imgbuild.lock.published import load
from imgbuild.matrix.model import Matrix
from imgbuild.pipeline import audit_set
from imgbuild.pipeline.audit_set import SetRequest
from imgbuild.report import Report
from imgbuild.resolve import request
from imgbuild.resolve.request import cuda_of, python_of
from imgbuild.solve import uv
from imgbuild.system.console import console
from imgbuild.values import Arch
from imgbuild.wheel.tags import Tags

PINS = "pins"  # the name of those on the command line
OLDEST = 5  # of the minor versions of glibc that a wheel's name can have


class PackageSetOptions(Group, frozen=True, kw_only=True):
    """What is audited instead of targets, and what for."""

    requirements: Annotated[
        list[Path] | None,
        option(
            "--requirements -r",
            "Audit the pins (name==version) in this file; - is stdin. Repeatable: all files are one"
            " package set.",
            metavar="FILE",
            panel=SELECT,
            often=True,
        ),
    ] = None
    environment: Annotated[
        str | None,
        option(
            "--environment",
            "Audit what is installed: a virtual environment, a Python, or a folder of packages."
            " Without a value: the active environment, else .venv, else python3.",
            metavar="[PYTHON]",
            panel=SELECT,
            often=True,
        ),
    ] = None
    python: Annotated[
        str | None, PYTHON("For pins; default: that of --base, else this Python.")
    ] = None
    base: Annotated[str | None, BASE("Audit for its glibc, and pins for its Python.")] = None
    glibc: Annotated[
        str | None,
        option(
            "--glibc",
            "The glibc to audit for, such as 2.28. Default: that of --base, of this machine for an"
            " environment, and of the matrix's base in a project.",
            metavar="X.Y",
            panel=SELECT,
        ),
    ] = None
    cuda: Annotated[str | None, CUDA("For pins and environments; default: that of torch.")] = None
    again: Annotated[bool, AGAIN("Audit again a package set that was audited before.")] = False

    def given(self) -> tuple[str, ...]:
        """The options that hold only without targets, of those that are given."""
        values = {
            "--python": self.python,
            "--base": self.base,
            "--glibc": self.glibc,
            "--cuda": self.cuda,
        }
        return tuple(f"{name} {value}" for name, value in values.items() if value is not None)

    def audit(
        self,
        pinned: Sequence[str],
        arches: Sequence[Arch],
        matrix: Path | None,
        checks: Sequence[str],
        *,
        offline: bool,
    ) -> Report:
        """The audit of the pins `pinned` and of the files, or of the environment."""
        if len(arches) > 1:
            message = f"one package set has one architecture, not {', '.join(arches)}"
            raise InputError(message, hint="give --arch once")
        arch = arches[0] if arches else Arch.parse(platform.machine())
        if self.environment is not None:
            return self._environment(arch, matrix, checks, offline=offline)
        return self._pins(pinned, arch, matrix, checks, offline=offline)

    def _pins(
        self,
        pinned: Sequence[str],
        arch: Arch,
        matrix: Path | None,
        checks: Sequence[str],
        *,
        offline: bool,
    ) -> Report:
        texts = _texts(self.requirements or (), pinned)
        name = ", ".join(text.name for text in texts)
        python = self._python(matrix)
        request = self._request(name, python, arch, matrix, checks, offline=offline)
        listed = read_pins(texts, request.machine)
        with console.step(f"auditing {count(len(listed.pins), 'pin')} of {name} for {arch}"):
            return audit_set.audit_pins(
                listed, request, partial=not self.requirements, matrix=_builds(listed, matrix)
            )

    def _environment(
        self, arch: Arch, matrix: Path | None, checks: Sequence[str], *, offline: bool
    ) -> Report:
        where = None if self.environment == ACTIVE else self.environment
        python = None if self.python is None else python_of(self.python)
        found = open_environment(where, python=python)
        if python is not None and not f"{found.python}.".startswith(f"{python}."):
            message = f"--python {python} does not match the environment (Python {found.python})"
            raise InputError(message, hint="leave --python out")
        name = where or str(found.folders[0])
        request = self._request(name, found.python, arch, matrix, checks, offline=offline)
        with console.step(f"auditing {count(len(found.packages), 'package')} of {name}"):
            return audit_set.audit_environment(found, request)

    def _request(
        self,
        name: str,
        python: str,
        arch: Arch,
        matrix: Path | None,
        checks: Sequence[str],
        *,
        offline: bool,
    ) -> SetRequest:
        glibc = self._glibc(python, matrix)
        return SetRequest(
            machine=Tags(python=python, glibc=glibc, arch=arch),
            index=functools.cache(uv.default_index),
            context=Context.open(console, offline=offline),
            terms=Terms(target=name, cuda=cuda_of(self.cuda, None) or ""),
            checks=checks,
            offline=offline,
            again=self.again,
        )

    def _python(self, matrix: Path | None) -> str:
        if self.python is not None:
            return python_of(self.python)
        if self.base is not None:
            return _base(self.base, matrix)[0]
        return f"{sys.version_info.major}.{sys.version_info.minor}"

    def _glibc(self, python: str, matrix: Path | None) -> str:
        if self.glibc is not None:
            return glibc_of(self.glibc)
        if self.base is not None:
            return _base(self.base, matrix)[1]
        if self.environment is not None:
            return host.glibc() or ANY_GLIBC
        return project_glibc(python, matrix)


def glibc_of(text: str) -> str:
    """The glibc of `--glibc`; InputError for an invalid version."""
    major, _, minor = text.partition(".")
    if major != "2" or not minor.isdecimal() or int(minor) < OLDEST:
        message = f"--glibc {text}: not a version of glibc"
        raise InputError(message, hint="for example: --glibc 2.28; `ldd --version` prints it")
    return text


def _base(name: str, matrix: Path | None) -> tuple[str, str]:
    """Python and glibc of a base of the matrix."""
    read = _matrix(matrix)
    if name not in read.bases:
        message = f"the matrix has no base {name}"
        raise InputError(message, hint=f"it has {', '.join(read.bases)}")
    return read.bases[name].python, read.bases[name].glibc


def _matrix(matrix: Path | None) -> Matrix:
    return load(project.find(matrix).matrix)


def _builds(listed: PinList, matrix: Path | None) -> Matrix | None:
    """The matrix, if a pin has a local version: it names the indexes of such builds."""
    return _matrix(matrix) if any("+" in one for one in listed.versions.values()) else None


def project_glibc(python: str, matrix: Path | None) -> str:
    """The glibc of the matrix's base that has this Python; any if there is no project."""
    if not project.find(matrix).writable:
        return ANY_GLIBC
    read = _matrix(matrix)
    ask = request.ResolveRequest(requests=(), arches=(), python=python)
    return read.bases[request.base_of(ask, read)].glibc


def _texts(files: Sequence[Path], pinned: Sequence[str]) -> list[RequirementText]:
    """The requirements of all files, and the pins that are named on the command line."""
    names = [path.name for path in files]
    texts = []
    for path in dict.fromkeys(files):
        if str(path) == "-":
            text = requirement_files.RequirementText(
                name=requirement_files.STDIN, text=sys.stdin.read()
            )
        else:
            name = path.name if names.count(path.name) == 1 else str(path)
            text = requirement_files.read_file(path, name)
        texts.append(text)
    if pinned:
        lines = "\n".join(pinned)
        texts.append(requirement_files.RequirementText(name=PINS, text=lines))
    return texts
