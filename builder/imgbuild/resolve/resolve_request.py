"""Parses the request of `imgbuild resolve` from the command line."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from imgbuild.errors import InputError
from imgbuild.matrix.model import Matrix, PackageIndex, Target
from imgbuild.project import releases
from imgbuild.project.model import FilePlace, exact_version
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import Arch, is_number, normalize_package
from imgbuild.wheel.tags import WheelTags

# A comma before a name separates two requests, else two bounds or two extras of one.
REQUEST_SEPARATOR = re.compile(r",\s*(?=[A-Za-z])(?![^\[\]]*\])")
CUDA = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")
PYTHON_NAME = "python"
PYTHON = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)?")


class RequestedPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package and the accepted versions.

    `have` means that the package is already installed and must not change. `row` is the target of
    the matrix that requests the package, or "" for the user. `extras` are also requested. A request
    with a `marker` applies only to machines for which the marker is true. `places` are lines of the
    user's files.
    """

    package: str
    spec: str = ""
    have: bool = False
    row: str = ""
    extras: tuple[str, ...] = ()
    marker: str = ""
    places: tuple[FilePlace, ...] = ()

    @property
    def name(self) -> str:
        """The package with its extras, as written in a requirement."""
        return f"{self.package}[{','.join(self.extras)}]" if self.extras else self.package

    def applies_to(self, markers: Mapping[str, str]) -> bool:
        """Return whether the request applies to a machine with `markers`."""
        return not self.marker or Marker(self.marker).evaluate({**markers, "extra": ""})

    @property
    def pin(self) -> str | None:
        """The only accepted version, normalized (PEP 440), or None for a range."""
        pin = exact_version(self.spec)
        return None if pin is None else str(Version(pin))

    def __str__(self) -> str:
        if self.row:
            return f"the target {self.row} requires {self.name}{self.spec}"
        where = f" ({', '.join(map(str, self.places))})" if self.places else ""
        return f"{'you have' if self.have else 'you require'} {self.name}{self.spec}{where}"


class ResolveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a user or of a target in the matrix. imgbuild chooses the values that are None.

    `cuda` is a release such as "12.4". `indexes` maps packages to names of indexes in the matrix,
    and `index_rows` are the indexes in the user's files. `row` is the target of the matrix that
    makes the request, or "" for the user. `allow_old` accepts versions that are more than a year
    older than the packages requested with them.
    """

    requests: tuple[RequestedPackage, ...]
    arches: tuple[Arch, ...]
    cuda: str | None = None
    as_of: datetime.date | None = None
    base: str | None = None
    python: str | None = None
    indexes: Mapping[str, str] = {}
    index_rows: Mapping[str, PackageIndex] = {}
    name: str | None = None
    row: str = ""
    allow_old: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """The requested packages, in the order of the request."""
        return tuple(requested.package for requested in self.requests)

    def restrict_to(self, markers: Mapping[str, str]) -> ResolveRequest:
        """Return the request without packages whose marker is false on a machine with `markers`."""
        requests = tuple(each for each in self.requests if each.applies_to(markers))
        return msgspec.structs.replace(self, requests=requests)


def parse_requests(
    wants: Iterable[str], have: Iterable[str], assigned: Mapping[str, str]
) -> tuple[tuple[RequestedPackage, ...], str | None]:
    """Return the requests in `wants` and `have`, and the CUDA release of builds in `have`.

    The local part of an installed version (`+cu124`) is dropped unless an index is `assigned` to
    the package, because the default index has no local versions.
    """
    requests: dict[str, RequestedPackage] = {}
    builds: dict[str, str] = {}  # CUDA → the request that names it
    for word, owned in [(word, True) for word in have] + [(word, False) for word in wants]:
        for part in REQUEST_SEPARATOR.split(word):
            requested, named = _parse_requested(part.strip(), owned=owned, keep=set(assigned))
            if named is not None:
                builds.setdefault(named, part.strip())
            before = requests.setdefault(requested.package, requested)
            if before != requested and before.have and not _requests_agree(before, requested):
                message = f"the requests conflict: {before}, but {requested}"
                raise InputError(message, hint="remove one of them")
            if before.have:
                extras = tuple(sorted({*before.extras, *requested.extras}))
                requests[before.package] = msgspec.structs.replace(before, extras=extras)
            if before != requested and not before.have:
                both = f"{before.name}{before.spec}, {requested.name}{requested.spec}"
                message = f"{requested.package} is requested twice: {both}"
                raise InputError(
                    message, hint=f"request it once, for example: '{requested.package}>=1,<2'"
                )
    if not requests:
        message = "no package is requested"
        raise InputError(message, hint="imgbuild resolve vllm==0.9.2 trl --cuda 12.6")
    if len(builds) > 1:
        both = " and ".join(f"{text} for {cuda}" for cuda, text in builds.items())
        message = f"--have lists builds for several CUDA releases: {both}"
        raise InputError(message, hint="specify builds for one CUDA release only")
    return tuple(requests.values()), next(iter(builds), None)


def _parse_requested(
    text: str, *, owned: bool, keep: set[str]
) -> tuple[RequestedPackage, str | None]:
    try:
        requirement = parse_requirement(text)
    except InvalidRequirement as error:
        message = f"invalid requirement: {text!r}"
        hint = "write NAME, NAME[EXTRA], NAME==VERSION or 'NAME>=LOW,<HIGH'"
        raise InputError(message, hint=hint) from error
    package = normalize_package(requirement.name)
    if requirement.url:
        message = f"{text!r} has a URL, which `requires:` does not support"
        raise InputError(
            message, hint="specify a version, and use --index to add an index that provides it"
        )
    if package == PYTHON_NAME:
        message = f"{text!r}: Python is not a package of the index"
        release = next((each.version for each in requirement.specifier), "X.Y")
        raise InputError(message, hint=f"request it with --python {release}")
    if any(each.operator == "===" for each in requirement.specifier):
        message = f"{text!r} uses ===, which `requires:` does not support"
        raise InputError(message, hint=f"write {text.replace('===', '==')}")
    requested = RequestedPackage(
        package=package,
        spec=_ordered_specifier(requirement),
        have=owned,
        extras=tuple(sorted(map(normalize_package, requirement.extras))),
        marker=str(requirement.marker or ""),
    )
    if not owned:
        return requested, None
    if requested.pin is None:
        message = f"--have {text}: expected an exact version"
        raise InputError(
            message, hint=f"use --have {package}==VERSION, with the version that `pip list` shows"
        )
    version = Version(requested.pin)
    cuda = releases.cuda_of_tag(version.local or "")
    if version.local and not cuda and package not in keep:
        message = f"--have {text}: the default index has no build +{version.local} of {package}"
        hint = (
            f"specify an index that has this build (--index {package}=INDEX), or omit"
            f" +{version.local}"
        )
        raise InputError(message, hint=hint)
    if version.local and package not in keep:
        requested = msgspec.structs.replace(requested, spec=f"=={version.public}")
    return requested, cuda


def _ordered_specifier(requirement: Requirement) -> str:
    return ",".join(
        sorted(map(str, requirement.specifier), key=lambda text: (text[0] != ">", text))
    )


def _requests_agree(have: RequestedPackage, want: RequestedPackage) -> bool:
    version = have.pin or ""
    return parse_requirement(f"{want.package}{want.spec}").specifier.contains(
        version, prereleases=True
    )


def request_of_target(name: str, target: Target, arch: Arch) -> ResolveRequest:
    """Return the requests of a target in the matrix on one architecture."""
    pins = {package: f"=={version}" for package, version in target.pins.items()}
    ranges = {package: requirement.spec for package, requirement in target.requires.items()}
    return ResolveRequest(
        requests=tuple(
            RequestedPackage(package=package, spec=spec, row=name)
            for package, spec in {**ranges, **pins}.items()
        ),
        arches=(arch,),
        cuda=target.cuda,
        as_of=target.as_of,
        base=target.base,
        indexes=target.indexes,
        name=name,
        row=name,
    )


def parse_index_words(words: Iterable[str], matrix: Matrix) -> dict[str, str]:
    """Parse words of the form `PACKAGE=INDEX`. Raises InputError if the matrix lacks an index."""
    indexes = {}
    for word in words:
        package, _, index = word.partition("=")
        if index not in matrix.indexes:
            message = f"--index {word}: the matrix has no index {index or '(no name)'}"
            raise InputError(message, hint=f"the matrix has {', '.join(matrix.indexes)}")
        indexes[normalize_package(package)] = index
    return indexes


def requested_arches(words: Iterable[str]) -> tuple[Arch, ...]:
    """Return the architectures in `--arch`, by default this machine's architecture."""
    names = [name for word in words for name in word.split(",")] or [platform.machine()]
    arches = []
    for name in names:
        try:
            arches.append(Arch.parse(name.strip()))
        except ValueError as error:
            message = f"--arch {name}: no such architecture"
            raise InputError(message, hint=f"supported: {', '.join(Arch)}") from error
    return tuple(dict.fromkeys(arches))


def requested_cuda(text: str | None, named: str | None) -> str | None:
    """Return the CUDA release in `--cuda`, or else the release in `--have`."""
    if text is None:
        return named
    plain = text.lower().removeprefix("cu")
    if is_number(plain) and len(plain) == 3:
        plain = f"{plain[:-1]}.{plain[-1]}"
    if not CUDA.fullmatch(plain):
        message = f"--cuda {text}: expected a CUDA release with two numbers"
        raise InputError(message, hint="--cuda 12.6")
    if named is not None and named != plain:
        message = f"--cuda {plain} contradicts --have, which lists a build for CUDA {named}"
        raise InputError(message, hint="omit --cuda, or specify a different torch")
    return plain


def parse_python(text: str) -> str:
    """Check the Python release in `--python`. Raises InputError if it is invalid."""
    if not PYTHON.fullmatch(text):
        message = f"--python {text}: expected a Python release with two numbers"
        raise InputError(message, hint="--python 3.11")
    return text


def today_utc() -> datetime.date:
    """Return today's date in UTC. As a cut-off, it allows all uploads before today."""
    return datetime.datetime.now(datetime.UTC).date()


def check_request(request: ResolveRequest, matrix: Matrix) -> None:
    """Raise InputError if the matrix has no such base or already contains the target name.

    Also raises InputError if an index depends on the CUDA release and none is requested.
    """
    requested_base(request, matrix)
    if request.name is not None and request.name in matrix.targets:
        message = f"the matrix already has a target {request.name}"
        raise InputError(message, hint="choose another --name")
    for package, index in request.indexes.items():
        if request.cuda is None and "{cuda_tag}" in (matrix.indexes[index].url or ""):
            message = f"{package} comes from {index}, whose URL depends on the CUDA release"
            raise InputError(message, hint="specify the release with --cuda, such as --cuda 12.8")


def applicable_request(request: ResolveRequest, matrix: Matrix) -> ResolveRequest:
    """Return the request without packages that apply to none of its architectures.

    Raises InputError if no package applies to one of the architectures.
    """
    base = matrix.bases[requested_base(request, matrix)]
    counting: set[str] = set()
    for arch in request.arches:
        markers = WheelTags(python=base.python, glibc=base.glibc, arch=arch).markers
        packages = request.restrict_to(markers).packages
        if not packages:
            message = f"no package is requested for Python {base.python} on {arch}"
            raise InputError(message, hint="omit a marker, or specify another --arch")
        counting.update(packages)
    requests = tuple(each for each in request.requests if each.package in counting)
    return msgspec.structs.replace(request, requests=requests)


def requested_base(request: ResolveRequest, matrix: Matrix) -> str:
    """Return the requested base, or else the most common base of the targets.

    Raises InputError if the base does not exist.
    """
    if request.base is not None and request.base not in matrix.bases:
        message = f"the matrix has no base {request.base}"
        raise InputError(message, hint=f"the matrix has {', '.join(matrix.bases)}")
    used = [target.base for target in matrix.targets.values()]
    fitting = [
        name
        for name, base in matrix.bases.items()
        if request.base in (None, name) and request.python in (None, base.python)
    ]
    if not fitting:
        return request.base or max(matrix.bases, key=used.count)
    return max(fitting, key=used.count)


def row_name(
    request: ResolveRequest, matrix: Matrix, cuda: str, versions: Mapping[str, str]
) -> str:
    """Return the requested name, or an unused one such as `cu126-vllm0.9.2`."""
    if request.name is not None:
        return request.name
    named = [requested.package for requested in request.requests if not requested.have] or [
        request.requests[0].package
    ]
    first = named[0]
    version = versions.get(first, "").split("+")[0]
    return unused_name(f"cu{cuda.replace('.', '')}-{first}{version}", matrix.targets)


def unused_name(name: str, taken: Mapping[str, object] | Sequence[str]) -> str:
    """Return `name`, or `name-2` and so on if it is already used."""
    count, candidate = 1, name
    while candidate in taken:
        count += 1
        candidate = f"{name}-{count}"
    return candidate
