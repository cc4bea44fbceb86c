"""Collects the declarations and problems that readers of a project's files find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imgbuild.errors import InputProblem
from imgbuild.http.credentials import redact_url
from imgbuild.project import addresses, platforms, releases
from imgbuild.project.model import (
    Declarations,
    DeclaredDay,
    DeclaredIndex,
    DeclaredName,
    DeclaredPython,
    DeclaredRequirement,
    FilePlace,
    LocalPackage,
    NotRead,
    RequirementKind,
)
from imgbuild.project.project_files import ProjectFiles, SourceProblem, parent_folder, relative_path
from imgbuild.system import decoding
from imgbuild.system.syntax import parse_requirement, parse_version, valid_requirement
from imgbuild.values import normalize_package

S = TypeVar("S", bound=msgspec.Struct)
SHOWN_CHARACTERS = 200  # characters of a line in a report
VARIABLE = re.compile(r"\$\{?\w+\}?|\$\(|\{\{?\w+\}?\}")
# Credentials of a URL from the environment: `https://${USER}:${TOKEN}@host/simple`.
LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
NO_NAMES: Mapping[str, str] = {}

# The fields that `merge` adds from another reading.
LISTS = (
    *("files", "requirements", "packages", "pythons", "debian", "cuda", "images", "indexes"),
    *("excluded", "unnamed", "conflicts", "left_out", "local_requests"),
)


class LocalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A folder to install (`-e ./verl[vllm]`), relative to the project.

    `name` is the package name in the requirement, if any.
    """

    folder: str
    place: FilePlace
    name: str = ""
    extras: tuple[str, ...] = ()
    no_deps: bool = False
    marker: str = ""


# Debian packages of the interpreter and its installers, but not its headers (python3-dev).
_INTERPRETER = re.compile(
    r"python-is-python3|python(?:3(?:\.\d+)?)?"
    r"(?:-(?:minimal|full|venv|distutils|pip|setuptools|wheel))?"
)


class ProjectReading:
    """Collects declarations for the chosen `extras` and `groups`.

    `names` maps URLs of git repositories without a revision to packages.
    """

    def __init__(
        self,
        sources: ProjectFiles,
        *,
        extras: Iterable[str] = (),
        groups: Iterable[str] = (),
        names: Mapping[str, str] = NO_NAMES,
    ) -> None:
        self.sources = sources
        self.names = names
        self.extras = frozenset(extras)
        self.groups = frozenset(groups)
        self.problems: list[InputProblem] = []
        self.files: list[str] = []
        self.requirements: list[DeclaredRequirement] = []
        self.packages: list[LocalPackage] = []
        self.pythons: list[DeclaredPython] = []
        self.debian: list[DeclaredName] = []
        self.cuda: list[DeclaredName] = []
        self.images: list[DeclaredName] = []
        self.indexes: list[DeclaredIndex] = []
        self.excluded: list[DeclaredName] = []
        self.unnamed: list[DeclaredName] = []
        self.conflicts: list[tuple[str, ...]] = []
        self.available_extras: set[str] = set()
        self.available_groups: set[str] = set()
        self.left_out: list[NotRead] = []
        self.local_requests: list[LocalRequest] = []
        self.cut_off: DeclaredDay | None = None
        # The settings of uv in the project's own pyproject.toml, once that is read.
        self.root: object = None

    def create_child(self) -> ProjectReading:
        """Create an empty object with the same options, to read a file that may be rejected."""
        child = ProjectReading(
            self.sources, extras=self.extras, groups=self.groups, names=self.names
        )
        child.problems = self.problems
        return child

    def merge_child(self, child: ProjectReading) -> None:
        """Add everything that `child` collected."""
        for name in LISTS:
            values: list[Any] = getattr(self, name)
            values += [each for each in getattr(child, name) if each not in values]
        self.available_extras |= child.available_extras
        self.available_groups |= child.available_groups
        self.cut_off = self.cut_off or child.cut_off

    def text(self, name: str) -> str | None:
        """Return the text of the file.

        Record a problem and return None on failure.
        """
        text: str | None = self._read_with(name, self.sources.text)
        return text

    def read_toml(self, name: str) -> dict[str, Any] | None:
        """Parse a TOML file. Record a problem and return None on failure."""
        document: dict[str, Any] | None = self._read_with(name, self.sources.read_toml)
        return document

    def read_yaml(self, name: str) -> Any:
        """Parse a YAML file. Record a problem and return None on failure."""
        return self._read_with(name, self.sources.read_yaml)

    def json(self, name: str) -> Any:
        """Parse a JSON file. Record a problem and return None on failure."""
        return self._read_with(name, self.sources.json)

    def _read_with(self, name: str, reader: Any) -> Any:
        try:
            value = reader(name)
        except SourceProblem as error:
            if error.problem not in self.problems:
                self.problems.append(error.problem)
            return None
        if name not in self.files:
            self.files.append(name)
        return value

    def lock_file(self, name: str, kind: type[S], tool: str) -> S | None:
        """Parse a lock file of `tool` as `kind`. Record a problem and return None on failure."""
        document = self.read_toml(name)
        try:
            return None if document is None else decoding.convert(document, kind)
        except msgspec.ValidationError as error:
            self.add_problem(FilePlace(file=name), f"not a {tool} lock file: {error}")
            return None

    def add_problem(
        self,
        place: FilePlace,
        message: str,
        *,
        value: str | None = None,
        expected: str | None = None,
    ) -> None:
        """Record a problem."""
        self.problems.append(
            InputProblem(
                file=place.file,
                line=place.line or None,
                message=addresses.strip_secrets(message),
                value=shorten_text(value) if value is not None else None,
                expected=expected,
            )
        )

    def add_unread(self, place: FilePlace, text: str, reason: str) -> None:
        """Record a line or file that is unsupported or unused."""
        shown = addresses.strip_secrets(reason)
        note = NotRead(place=place, text=shorten_text(text), reason=shown)
        if note not in self.left_out:
            self.left_out.append(note)

    def add_requirement(
        self,
        text: str,
        place: FilePlace,
        *,
        kind: RequirementKind = "requirement",
        hashes: Iterable[str] = (),
        locked: bool = False,
        no_deps: bool = False,
        marker: str = "",
        path: str = "",
        conda: bool = False,
    ) -> None:
        """Add the PEP 508 requirement `text`, or record a problem if it is invalid.

        `marker` is joined to the marker in `text`. `path` is a folder or file of the project.
        `torch==2.6.0+cu124` is split into `torch==2.6.0` and a CUDA release.
        """
        valid = valid_requirement(text)
        if VARIABLE.search(text) and (valid is None or "${" in str(valid)):
            self.add_unread(place, text, "contains a variable whose value is not in the file")
            return
        try:
            requirement = parse_requirement(text)
        except InvalidRequirement as error:
            self.add_problem(
                place,
                f"not a requirement: {str(error).splitlines()[0]}",
                value=text,
                expected="a requirement such as transformers>=4.50,<5",
            )
            return
        if requirement.url is not None and addresses.split_url(requirement.url) is None:
            self.add_problem(place, "not a URL", value=requirement.url)
            return
        if marker:
            try:
                second = Marker(marker)
            except InvalidMarker:
                self.add_problem(place, "not a PEP 508 marker", value=marker)
                return
            requirement.marker = requirement.marker & second if requirement.marker else second
        by_address = requirement.url is not None
        self._strip_torch_build(requirement, place)
        if by_address and requirement.url is None:
            hashes = ()  # of a file that is not the one of the images
        added = DeclaredRequirement(
            text=str(requirement),
            place=place,
            kind=kind,
            hashes=tuple(sorted(set(hashes))),
            locked=locked,
            no_deps=no_deps,
            path=path,
            conda=conda,
        )
        if added not in self.requirements:
            self.requirements.append(added)

    def _strip_torch_build(self, requirement: Requirement, place: FilePlace) -> None:
        clauses, changed = [], False
        wheel = addresses.wheel_version(requirement.url) if requirement.url else None
        local = wheel.local if wheel and requirement.name in releases.TORCH else None
        if releases.cuda_of_local_version(local):
            requirement.url = None
            requirement.specifier = SpecifierSet(f"=={wheel}")
        for clause in requirement.specifier:
            local = _local_version(clause.version)
            release = releases.cuda_of_local_version(local)
            if release and platforms.is_possible(requirement.marker):
                self.cuda_release(release, place, str(requirement.marker or ""))
            name = requirement.name.lower().replace("_", "-")
            if local is None or name not in releases.TORCH:
                clauses.append(str(clause))
                continue
            changed = True
            clauses.append(f"{clause.operator}{clause.version.partition('+')[0]}")
            if release is None:
                self.add_unread(
                    place, str(requirement), f"images use CUDA builds, not {local} builds"
                )
        if changed:
            requirement.specifier = SpecifierSet(",".join(clauses))

    def request_local(self, request: LocalRequest) -> None:
        """Request a folder of the project as a package."""
        if request not in self.local_requests:
            self.local_requests.append(request)

    def index(
        self,
        url: str,
        place: FilePlace,
        marker: str = "",
        *,
        name: str = "",
        packages: Iterable[str] = (),
        flat: bool = False,
    ) -> None:
        """Add an index, or the CUDA release in its URL.

        If `packages` is given, the index is only for these packages. A `flat` index can be a
        folder, relative to the folder of the file.
        """
        # Credentials belong in ~/.netrc, not in files and output.
        url = LOGIN.sub("", url.strip())
        if VARIABLE.search(url):
            self.add_unread(
                place, url, "the URL contains a variable whose value is not in the file"
            )
            return
        if flat and not re.match(r"https?://", url):
            folder = relative_path(parent_folder(place.file), addresses.url_path(url))
            if folder.startswith(("/", "..")) or not self.sources.is_inside(folder):
                self.add_unread(place, url, "a path outside the project")
                return
            url = f"file:{folder}"
        else:
            url = redact_url(url)
        release = releases.cuda_of_index(url)
        build = releases.other_build(url)
        if release:
            self.cuda_release(release, place, marker)
            if "/nightly" in url:
                reason = f"images use releases instead of nightly builds; CUDA {release} is used"
                self.add_unread(place, url, reason)
        elif build and platforms.is_possible(marker):
            self.add_unread(place, url, f"images use CUDA builds, not {build} builds")
        elif re.match(r"https?://|file:", url) and platforms.is_possible(marker):
            names = tuple(map(normalize_package, packages))
            self.indexes.append(
                DeclaredIndex(
                    url=url, place=place, name=name, flat=flat, packages=names, general=not names
                )
            )
        else:
            self.add_unread(place, url, "an index URL without http or https")

    def cuda_release(self, release: str, place: FilePlace, marker: str = "") -> None:
        """Add a CUDA release, such as "12.4"."""
        entry = DeclaredName(name=release, place=place, marker=marker)
        if entry not in self.cuda:
            self.cuda.append(entry)

    def add_python(self, spec: str, place: FilePlace) -> None:
        """Add a PEP 440 specifier of Python versions, or record a problem if it is invalid."""
        spec = spec.strip()
        if not spec:
            return
        try:
            SpecifierSet(spec)
        except InvalidSpecifier:
            self.add_problem(
                place,
                "not a specifier of Python versions",
                value=spec,
                expected='a specifier such as ">=3.10,<3.13"',
            )
            return
        entry = DeclaredPython(spec=spec, place=place)
        if entry not in self.pythons:
            self.pythons.append(entry)

    def debian_package(self, name: str, place: FilePlace) -> None:
        """Add a Debian package. A version, as in `git=1:2.39`, is ignored."""
        package, _, version = name.partition("=")
        package = package.partition(":")[0].partition("/")[0]
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package):
            self.add_unread(place, name, "not a Debian package name")
            return
        if _INTERPRETER.fullmatch(package):
            self.add_unread(place, package, "the image already contains Python with pip and venv")
            return
        if version:
            self.add_unread(
                place, name, f"Debian's version of {package} is installed, not {version}"
            )
        if all(entry.name != package for entry in self.debian):
            self.debian.append(DeclaredName(name=package, place=place))

    def create_declared(self) -> Declarations:
        """Return all declarations that were read."""
        return Declarations(
            files=tuple(self.files),
            requirements=tuple(self.requirements),
            packages=tuple(self.packages),
            python=tuple(self.pythons),
            debian=tuple(self.debian),
            cuda=tuple(self.cuda),
            images=tuple(self.images),
            indexes=_join_indexes(self.indexes),
            cut_off=self.cut_off,
            extras=tuple(sorted(self.available_extras)),
            groups=tuple(sorted(self.available_groups)),
            excluded=tuple(self.excluded),
            unnamed=tuple(self.unnamed),
            not_read=tuple(self.left_out),
        )


def _join_indexes(indexes: Iterable[DeclaredIndex]) -> tuple[DeclaredIndex, ...]:
    joined: dict[str, DeclaredIndex] = {}
    for each in indexes:
        before = joined.setdefault(each.url, each)
        joined[each.url] = msgspec.structs.replace(
            before,
            name=before.name or each.name,
            packages=tuple(dict.fromkeys((*before.packages, *each.packages))),
            general=before.general or each.general,
        )
    return tuple(joined.values())


def shorten_text(text: str) -> str:
    """Shorten `text` to one line of at most SHOWN characters, and remove secrets."""
    line = addresses.strip_secrets(" ".join(text.split()))
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"


def _local_version(text: str) -> str | None:
    version = parse_version(text)  # None for 2.6.*
    return version.local if version is not None else None
