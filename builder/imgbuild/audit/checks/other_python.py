"""Finds imports of extension modules that a package has only for other versions of Python.

An abi3 wheel is compatible with any Python, but can contain a module only as
`_C.cpython-312-x86_64-linux-gnu.so`. An import of such a module is an error on the main path.
Elsewhere it is a warning, because the package works without this part. In a `try` statement, it is
a note. Files that are never imported are not reported, because they may be loaded by path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from imgbuild.audit.checks.findings import create_finding, finding_place, sort_findings
from imgbuild.audit.checks.imports import CHECK, import_fails, other_build
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.main_path.guards import IMPORT, MISSING_ERRORS, judge_guards
from imgbuild.audit.main_path.view import PackageSetView
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.extensions import other_builds
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.reading import EXCLUDED_FOLDERS
from imgbuild.audit.source.facts import Import, ModuleFacts
from imgbuild.report import ConflictRelation, Finding, Severity


def check_other_python(package_set: PackageSet, path: MainPath) -> list[Finding]:
    """Return the most severe finding for each module that only other Python versions can load."""
    view = path.view(package_set)
    findings: list[Finding] = []
    for package, builds in _builds(package_set):
        for module, pythons in sorted(builds.items()):
            if package_set.exists(module) is False:
                text = other_build(view, module, pythons)
                findings += sort_findings(
                    finding
                    for name in _importers(package_set, package, module)
                    for finding in _module_findings(view, path, name, module, text)
                )[:1]
    return sort_findings(findings)


def _builds(package_set: PackageSet) -> Iterator[tuple[str, Mapping[str, list[str]]]]:
    """Yield packages that have modules only for other Python versions.

    Incompatible wheels are omitted, because another check reports them.
    """
    for package in package_set.packages:
        wheel = package_set.wheels[package].wheel.file
        if not wheel.endswith(".whl") or package_set.tags.is_compatible(wheel):
            builds = other_builds(package_set.files(package), package_set.modules_of(package))
            if builds:
                yield package, builds


def _importers(package_set: PackageSet, package: str, module: str) -> list[str]:
    parent, _, stem = module.rpartition(".")
    modules = package_set.modules_of(package)
    importers = {name for name in modules if name.rpartition(".")[0] not in modules}
    for top in importers.copy():
        words = set(package_set.mentioning(top, stem))
        if parent:
            named = set(package_set.mentioning(top, parent.rpartition(".")[2]))
            words = {name for name in words if name in named or _is_below(name, parent)}
        importers |= words
    package_set.prefetch(sorted(importers))
    return sorted(importers)


def _module_findings(
    view: PackageSetView, path: MainPath, name: str, missing: str, text: str
) -> Iterator[Finding]:
    facts = view.module(name)
    if not isinstance(facts, ModuleFacts):
        return
    for line in facts.imports:
        named = f"{line.module}.{line.name}" == missing and not _is_bound(view, facts, line)
        if named or _is_below(line.module, missing):
            finding = _import_finding(view, path, facts, line, missing, text)
            if finding is not None:
                yield finding


def _import_finding(
    view: PackageSetView, path: MainPath, facts: ModuleFacts, line: Import, missing: str, text: str
) -> Finding | None:
    """Return the finding for an import, or None if the import does not run in this package set."""
    course = judge_guards(view, line.guards)
    runner = module_scopes(facts).scope_runner(line.scope)
    how = path.reached(facts.module, runner)
    place = finding_place(view, facts, line.line, how.entry if how else "")
    if not course.runs or place is None:
        return None
    caught = course.catches_error(*(MISSING_ERRORS if _is_below(line.module, missing) else IMPORT))
    error = not caught and import_fails(how, course, ConflictRelation.MODULE, top=not runner)
    if not error and not EXCLUDED_FOLDERS.isdisjoint(facts.module.split(".")):
        return None
    import_finding = create_finding(
        view,
        CHECK,
        place,
        relation=ConflictRelation.MODULE,
        other="",
        subject=missing,
        text=text,
        error=error,
    )
    severity = Severity.ERROR if error else Severity.NOTE if caught else Severity.WARNING
    return msgspec.structs.replace(import_finding, severity=severity)


def _is_below(module: str, parent: str) -> bool:
    return f"{module}.".startswith(f"{parent}.")


def _is_bound(view: PackageSetView, facts: ModuleFacts, line: Import) -> bool:
    """Return whether another statement of package x may bind the name in `from x import _C`."""
    if facts.module == line.module:
        assigned = (
            assignment.name == line.name and assignment.line < line.line
            for assignment in facts.assigned
        )
        return facts.dynamic or line.name in facts.lazy or any(assigned)
    return look_up(view, line.module, line.name).state != "absent"
