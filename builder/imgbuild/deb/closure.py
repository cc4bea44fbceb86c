"""Resolves dependencies of Debian packages.

The result is sorted by name and depends only on the arguments. Recommends are ignored.
"""

# A separate module: a pure function.
from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from imgbuild.deb.control import Clause, DebRelation, parse_clauses
from imgbuild.deb.debian_version import satisfies_relation, version_key
from imgbuild.errors import InputError, InputProblem, NoSolution

NEEDS = ("Pre-Depends", "Depends")
CONFLICT_FIELDS = {"Conflicts": "conflicts with", "Breaks": "breaks"}
PRIORITIES = ("required", "important", "standard", "optional", "extra")

Paragraph = Mapping[str, str]


class Provider(msgspec.Struct, frozen=True):
    """A package that satisfies a dependency.

    If `real` is False, only the Provides field of the package contains the name of the dependency.
    """

    package: Paragraph
    version: str
    real: bool


class DebianArchive:
    """Looks up packages of an index by name or by a name in their Provides field.

    If the index has several versions of a package, the newest version is used.
    """

    def __init__(self, paragraphs: Iterable[Paragraph]) -> None:
        self.packages: dict[str, Paragraph] = {}
        for paragraph in paragraphs:
            existing = self.packages.get(paragraph["Package"])
            if existing is None or version_key(existing["Version"]) < version_key(
                paragraph["Version"]
            ):
                self.packages[paragraph["Package"]] = paragraph
        # Parsed when a name is needed: packages of Debian provide 40,000 names.
        self._provided: dict[str, list[tuple[Paragraph, str]]] = {}
        for paragraph in self.packages.values():
            if text := paragraph.get("Provides"):
                for part in text.split(","):
                    name = part.partition("(")[0].partition(":")[0].strip()
                    self._provided.setdefault(name, []).append((paragraph, part))

    def providers(self, relation: DebRelation) -> list[Provider]:
        """Return the packages that satisfy `relation`.

        The package with this name comes first. The other packages are sorted by priority.
        """
        package = self.packages.get(relation.name)
        real = [Provider(package, package["Version"], real=True)] if package is not None else []
        provided = (
            Provider(paragraph, each.version, real=False)
            for paragraph, part in self._provided.get(relation.name, [])
            for (each,) in parse_clauses(part)
        )
        virtual = sorted(provided, key=_preference)
        return [provider for provider in (*real, *virtual) if _provider_fits(provider, relation)]


def resolve_dependencies(
    archive: DebianArchive, requested: Sequence[str], *, file: str, have: Sequence[str] = ()
) -> list[Paragraph]:
    """Resolve the essential and the `requested` packages, with dependencies, sorted by name.

    The packages in `have` are included, but their dependencies are not resolved again.

    Raises InputError, with `file` in the message, if the archive lacks a requested package. Raises
    NoSolution, with the reasons, if a dependency is unsatisfiable or packages conflict.
    """
    _check_names(archive, requested, file)
    essential = sorted(
        name for name, package in archive.packages.items() if package.get("Essential") == "yes"
    )
    chosen: dict[str, Paragraph] = {name: archive.packages[name] for name in have}
    because: dict[str, str] = {}
    queue: deque[str] = deque()

    def _choose_provider(name: str, reason: str) -> None:
        if name not in chosen:
            chosen[name] = archive.packages[name]
            because[name] = reason
            queue.append(name)

    for name in requested:
        _choose_provider(
            name, "required in addition to the base" if have else "required by the base"
        )
    for name in () if have else essential:
        _choose_provider(name, "essential")
    while queue:
        name = queue.popleft()
        for clause in package_dependencies(chosen[name]):
            if any(_is_satisfied(archive, relation, chosen) for relation in clause):
                continue
            options = [provider for relation in clause for provider in archive.providers(relation)]
            if not options:
                raise _no_solution(name, clause, because)
            _choose_provider(options[0].package["Package"], name)
    _check_conflicts(archive, chosen)
    return [chosen[name] for name in sorted(chosen)]


def package_dependencies(package: Paragraph) -> list[Clause]:
    """Return the dependencies of `package`: Pre-Depends, then Depends."""
    return [clause for field in NEEDS for clause in parse_clauses(package.get(field, ""))]


def _is_satisfied(
    archive: DebianArchive, relation: DebRelation, chosen: Mapping[str, Paragraph]
) -> bool:
    return any(provider.package["Package"] in chosen for provider in archive.providers(relation))


def _provider_fits(provider: Provider, relation: DebRelation) -> bool:
    if not relation.relation:
        return True
    # Policy 7.5: an unversioned Provides satisfies no versioned relation.
    if not provider.version:
        return False
    return satisfies_relation(provider.version, relation.relation, relation.version)


def _preference(provider: Provider) -> tuple[int, str]:
    priority = provider.package.get("Priority", "optional")
    rank = PRIORITIES.index(priority) if priority in PRIORITIES else len(PRIORITIES)
    return rank, provider.package["Package"]


def _check_names(archive: DebianArchive, requested: Sequence[str], file: str) -> None:
    problems = []
    for name in requested:
        if name not in archive.packages:
            near = difflib.get_close_matches(name, archive.packages, n=1)
            problems.append(
                InputProblem(
                    file=file,
                    message="the Debian archive has no such package",
                    value=name,
                    nearest=near[0] if near else None,
                )
            )
    if problems:
        message = f"the base requires packages that are not in the archive ({len(problems)})"
        raise InputError(message, problems=tuple(problems))


def _check_conflicts(archive: DebianArchive, chosen: Mapping[str, Paragraph]) -> None:
    reasons: list[str] = []
    for name, package in sorted(chosen.items()):
        for field, verb in CONFLICT_FIELDS.items():
            for (relation,) in parse_clauses(package.get(field, "")):
                # A package may conflict with a name that it provides: it then conflicts with other
                # providers.
                hits = {provider.package["Package"] for provider in archive.providers(relation)} - {
                    name
                }
                reasons.extend(
                    f"{name} {verb} {relation}, which {hit} {chosen[hit]['Version']} satisfies"
                    for hit in sorted(hits & chosen.keys())
                )
    if reasons:
        message = "the base's Debian packages conflict with each other"
        raise NoSolution(
            message, reasons=tuple(reasons), hint="remove one of these packages from the base"
        )


def _no_solution(name: str, clause: Clause, because: Mapping[str, str]) -> NoSolution:
    text = " | ".join(str(relation) for relation in clause)
    reasons = [f"{name} depends on {text}, but no package in the archive satisfies this dependency"]
    while because.get(name, "") in because:
        reasons.append(f"{name} is required by {because[name]}")
        name = because[name]
    reasons.append(f"{name}: {because[name]}")
    message = f"no package in the Debian archive satisfies {text}"
    return NoSolution(
        message,
        reasons=tuple(reasons),
        hint="add a package that satisfies the dependency to the base's packages",
    )
