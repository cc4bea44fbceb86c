"""Compares a user's imports and keyword arguments with tables of releases, without the packages.

Used for packages whose facts are not in the cache. The tables (`audit/names`) list only names that
some releases lack, so a name that no release has is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.audit.code.code_set import possible_roots
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.python_code import CODES
from imgbuild.audit.names import parameters, releases
from imgbuild.audit.names.releases import Existence, PackageNames
from imgbuild.audit.source.facts import Guard, Import, ModuleFacts
from imgbuild.report import ConflictRelation, Severity


class ReleaseCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, and the packages of which all imports could be compared."""

    findings: tuple[CodeFinding, ...] = ()
    compared: frozenset[str] = frozenset()


def check_release_names(
    texts: Sequence[CodeText],
    facts: Mapping[str, ModuleFacts],
    unread: Iterable[str],
    versions: Mapping[str, str],
) -> ReleaseCheck:
    """Compare the uses of the packages `unread` in `texts`.

    `versions` contains the locked version of every package.
    """
    compared = set()
    findings: list[CodeFinding] = []
    for package in unread:
        table = _release_table(package, versions[package])
        uses = [(text, line) for text in texts if text.file in facts
                for line in _imports(facts[text.file], package)]  # fmt: skip
        if all(_is_listed(line, table) for _, line in uses):
            compared.add(package)
        if table is None:
            continue
        for text, line in uses:
            findings += _import_findings(text, line, versions[package])
        for text in dict.fromkeys(text for text, _ in uses):
            findings += _keyword_findings(text, facts[text.file], package, versions)
    # The statements of a program are read twice.
    return ReleaseCheck(findings=tuple(dict.fromkeys(findings)), compared=frozenset(compared))


def _release_table(package: str, version: str) -> PackageNames | None:
    """Return the table of a package, or None if there is none that includes `version`."""
    tables = releases.load_package_names().values()
    table = next((each for each in tables if each.package == package), None)
    return table if table is not None and _is_covered(table, version) else None


def _is_covered(table: PackageNames | Existence, version: str) -> bool:
    """Return whether a table includes a version, or an earlier version of its minor release."""
    parsed = Version(version)
    return parsed >= Version(table.first) and parsed.release[:2] <= Version(table.last).release[:2]


def _imports(facts: ModuleFacts, package: str) -> list[Import]:
    roots = possible_roots(package)
    return [line for line in facts.imports if line.module.partition(".")[0] in roots]


def _is_listed(line: Import, table: PackageNames | None) -> bool:
    """Return whether the table can tell if an import works.

    The name of an installed package can be imported, and the names at its top are all listed.
    """
    if "." not in line.module:
        return table is not None or not line.name
    module = releases.exact_module_existence(line.module)
    return table is not None and (module is not None or bool(_name_existence(line)))


def _name_existence(line: Import) -> Existence | None:
    named = line.name not in ("", "*")
    return releases.name_existence(line.module, line.name) if named else None


def _import_findings(text: CodeText, line: Import, version: str) -> Iterator[CodeFinding]:
    module, name = releases.module_existence(line.module), _name_existence(line)
    if module is not None and not module.allows_version(version):
        message = f"imports {line.module}, which {module.package} {version} does not have"
        yield _finding(text, line.line, line.guards, ConflictRelation.MODULE, message, module)
    elif name is not None and not name.allows_version(version):
        message = f"imports {line.name} from {line.module}, but {name.package} {version} does not"
        message += " define it"
        yield _finding(text, line.line, line.guards, ConflictRelation.NAME, message, name)


def _keyword_findings(
    text: CodeText, facts: ModuleFacts, package: str, versions: Mapping[str, str]
) -> Iterator[CodeFinding]:
    bound = {line.bound: line for line in _imports(facts, package)}
    for call in facts.calls:
        root, _, rest = call.callee.partition(".")
        if root not in bound:
            continue
        path = ".".join(filter(None, (bound[root].name, rest)))
        for keyword in call.keywords:
            existence = _keyword_existence(package, path, keyword)
            version = versions.get(existence.package) if existence is not None else None
            if existence is None or version is None or not existence.spec:
                continue
            if _is_covered(existence, version) and not existence.allows_version(version):
                called = f"{bound[root].module}.{path}"
                message = (
                    f"passes {keyword}= to {called}, which {existence.package} {version} does not"
                )
                message += " accept"
                relation = ConflictRelation.KEYWORD
                yield _finding(text, call.line, call.guards, relation, message, existence)


def _keyword_existence(package: str, path: str, keyword: str) -> Existence | None:
    existence = releases.argument_existence(path, keyword)
    if existence is not None and existence.spec:
        return existence
    for function in (path, f"{path}.__init__"):
        if (existence := parameters.accepting_releases(function, keyword).get(package)) is not None:
            return existence
    return None


def _finding(
    text: CodeText,
    line: int,
    guards: Sequence[Guard],
    relation: ConflictRelation,
    message: str,
    existence: Existence,
) -> CodeFinding:
    """Return a finding, which is a warning if the line runs only under a condition."""
    return text.finding(
        line,
        1,
        code=CODES[relation],
        severity=Severity.WARNING if guards else Severity.ERROR,
        message=message,
        instead=existence.instead,
        remedy="" if existence.instead else f"install {existence.requirement()}",
    )
