"""Checks that imported modules and names exist: the check `imports`.

A finding on the main path is an error. Elsewhere, it is a note. The note becomes a warning if
importing the module certainly fails and another package uses the module, even if only on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

import msgspec

from imgbuild.audit.checks import standard
from imgbuild.audit.checks.findings import (
    FindingPlace,
    create_finding,
    finding_place,
    sort_findings,
)
from imgbuild.audit.main_path.closure import Level, MainPath, Reached
from imgbuild.audit.main_path.guards import IMPORT, MISSING_ERRORS, Course, judge_guards
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import stdlib_module
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.extensions import other_builds
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Attribute, Guard, Import, ModuleFacts, OpaqueModule
from imgbuild.report import ConflictRelation, Finding, Severity

CHECK = "imports"
# Package set → whether a package has a module of another name in a separate folder.
_vendored_modules: WeakKeyDictionary[ImportablePackages, dict[tuple[str, str], bool]] = (
    WeakKeyDictionary()
)


def check_imports(package_set: ImportablePackages, path: MainPath) -> list[Finding]:
    """Return findings for imports from other packages that fail in this package set."""
    package_set = path.view(package_set)
    findings: list[Finding] = []
    users = _ModuleUsers(package_set, path)
    for facts in path.module_facts(package_set):
        findings.extend(_module_findings(package_set, path, facts, users))
    return sort_findings(findings)


class _ModuleUsers:
    def __init__(self, package_set: ImportablePackages, path: MainPath) -> None:
        self._package_set = package_set
        self._path = path

    def of(self, module: str) -> FindingPlace | None:
        return self._places.get(module)

    @cached_property
    def _places(self) -> dict[str, FindingPlace]:
        places: dict[str, FindingPlace] = {}
        for facts in self._path.module_facts(self._package_set):
            root = facts.module.partition(".")[0]
            for module, line, guards in _named_modules(facts):
                if "." not in module or module.partition(".")[0] == root or module in places:
                    continue
                place = finding_place(self._package_set, facts, line)
                real = (guard for guard in guards if guard.kind != "typing")
                if place is not None and judge_guards(self._package_set, real).runs:
                    places[module] = place
        return places


def _named_modules(facts: ModuleFacts) -> Iterator[tuple[str, int, tuple[Guard, ...]]]:
    """Yield the modules in import statements or strings (`LazyLoader`), with line and guards."""
    for line in facts.imports:
        yield line.module, line.line, line.guards
        yield f"{line.module}.{line.name}", line.line, line.guards
    for call in facts.calls:
        for text in call.literals:
            yield text, call.line, call.guards


def _module_findings(
    package_set: ImportablePackages, path: MainPath, facts: ModuleFacts, users: _ModuleUsers
) -> list[Finding]:
    findings = []
    here = module_scopes(facts)
    root = facts.module.partition(".")[0]
    for line in facts.imports:
        if line.module.partition(".")[0] == root:
            continue
        how = path.reached(facts.module, here.scope_runner(line.scope))
        default = (facts.module, line.line) in path.default
        finding = _import_finding(package_set, facts, line, how, default=default, users=users)
        if finding is not None:
            findings.append(finding)
    return findings


def _import_finding(
    package_set: ImportablePackages,
    facts: ModuleFacts,
    line: Import,
    how: Reached | None,
    *,
    default: bool,
    users: _ModuleUsers,
) -> Finding | None:
    """Return the finding for an import, or None if it does not fail.

    A missing package is reported if a module imports it at the top level without a condition. Code
    that tests for the package, or imports it in a function, is for installations that include the
    package. Such code is reported only if it runs with the `default` configuration of an entry
    point.
    """
    course = judge_guards(package_set, line.guards)
    attributes = (Attribute(0, expression, scope=line.scope) for expression in course.asked)
    if not course.runs or any(
        standard.missing_stdlib_name(package_set, facts, attribute) for attribute in attributes
    ):
        return None
    root = line.module.partition(".")[0]
    # The content of a package is not needed to exclude the standard library.
    if package_set.owner(root) is None and stdlib_module(package_set, root):
        problem = _stdlib_problem(package_set, facts, line)
    else:
        problem = _problem(package_set, facts, line)
    if problem is None:
        return None
    relation, other, subject, text = problem
    place = finding_place(package_set, facts, line.line, how.entry if how else "")
    if place is None or other == place.package:
        return None
    builds = other_builds(package_set.files(other), package_set.modules_of(other))
    for module in {line.module, f"{line.module}.{line.name}"} & builds.keys():
        # Without `other` nothing is learned: the other package is correct for another Python.
        other, subject = "", module
        text = other_build(package_set, module, builds[module])
    top = not module_scopes(facts).scope_runner(line.scope)
    missing = relation is ConflictRelation.PACKAGE
    errors = IMPORT if relation is ConflictRelation.NAME else MISSING_ERRORS
    caught = course.catches_error(*errors)
    user = how is not None and how.user
    shown = default or ((user or top) and course.certain)
    if missing and (caught or not shown):
        return None
    error = not caught and (default or import_fails(how, course, relation, top=top))
    using = None
    if top and course.certain and not (error or caught or missing):
        using = users.of(facts.module)
        text += f"; {using.package} uses this module ({using.file}:{using.line})" if using else ""
    result = create_finding(
        package_set,
        CHECK,
        place,
        relation=relation,
        other=other,
        subject=subject,
        text=text,
        error=error,
        preferred=_preferred_imports(package_set, line, other),
    )
    if using is not None:
        result = msgspec.structs.replace(result, severity=Severity.WARNING)
    return result


def _preferred_imports(
    package_set: ImportablePackages, line: Import, other: str
) -> tuple[tuple[str, ...], ...]:
    """Return the imports from `other` that the code tries before it falls back to `line`."""
    attempts = (
        tuple(guard.subject.split(", "))
        for guard in line.guards
        if other and guard.kind == "absent" and not guard.spec
    )
    return tuple(
        subjects
        for subjects in attempts
        if all(package_set.owner(subject.partition(":")[0]) == other for subject in subjects)
    )


def other_build(package_set: ImportablePackages, module: str, pythons: Sequence[str]) -> str:
    """Return a message about an import of a module that its wheel contains only for `pythons`."""
    return (
        f"imports {module}, which its wheel contains only for Python {' and '.join(pythons)};"
        f" this package set has Python {package_set.python}"
    )


def import_fails(
    how: Reached | None, course: Course, relation: ConflictRelation, *, top: bool
) -> bool:
    """Return whether the main path fails at this import.

    It fails if the import certainly runs and is not optional. If a function that runs only in some
    cases imports a package, its callers avoid the import in the other cases.
    """
    if how is None or not course.is_understood("" if top else "function"):
        return False
    if relation is ConflictRelation.PACKAGE:
        return how.level is Level.CERTAIN and not how.optional
    return how.level <= (Level.REMOTE if top else Level.LIKELY)


def _problem(
    package_set: ImportablePackages, facts: ModuleFacts, line: Import
) -> tuple[ConflictRelation, str, str, str] | None:
    """Return the problem of an import (relation, other package, subject and text), or None."""
    root = line.module.partition(".")[0]
    if package_set.exists(line.module) is False:
        other = package_set.owner(line.module) or ""
        if not other or _is_in_namespace(package_set, line.module):
            if root == "__main__" or _is_vendored(package_set, facts, root):
                return None
            missing = line.module if package_set.exists(root) else root
            text = f"imports {line.module}, which no package in this package set provides"
            return ConflictRelation.PACKAGE, "", missing, text
        if package_set.module(line.module) is not None:
            return None
        text = f"imports {line.module}, which {other} {package_set.version(other)} does not have"
        return ConflictRelation.MODULE, other, line.module, text
    if not line.name or line.name == "*":
        return None
    lookup_result = look_up(package_set, line.module, line.name)
    if lookup_result.state != "absent":
        return None
    other = package_set.owner(line.module) or ""
    version = package_set.version(other)
    if version is None:
        return None
    text = f"imports {line.name} from {line.module}, but {other} {version} does not define it"
    return ConflictRelation.NAME, other, f"{line.module}:{line.name}", text


def _stdlib_problem(
    package_set: ImportablePackages, facts: ModuleFacts, line: Import
) -> tuple[ConflictRelation, str, str, str] | None:
    python = f"Python {package_set.python}"
    if package_set.exists(line.module) is False:
        text = f"imports {line.module}, which {python} does not have"
        return ConflictRelation.MODULE, "", line.module, text
    if look_up(package_set, line.module, line.name).state != "absent":
        return None
    if standard.is_assigned(package_set, facts, line.module, line.name):
        return None
    text = f"imports {line.name} from {line.module}, but {python} does not define it"
    return ConflictRelation.NAME, "", f"{line.module}:{line.name}", text


def _is_in_namespace(package_set: ImportablePackages, module: str) -> bool:
    """Return whether `module` would be in a namespace that several packages share: google.cloud.x.

    The module may then belong to a package that is not installed.
    """
    parent = module.rpartition(".")[0]
    while parent and package_set.exists(parent) is False:
        parent = parent.rpartition(".")[0]
    ancestors = [package_set.module(name) for name in (parent, module.partition(".")[0]) if parent]
    return bool(ancestors) and all(
        isinstance(entry, OpaqueModule) and entry.why == "namespace" for entry in ancestors
    )


def _is_vendored(package_set: ImportablePackages, facts: ModuleFacts, root: str) -> bool:
    """Return whether the importing package has `root` in a folder that it adds to sys.path.

    The path of the folder can contain names that Python cannot import:
    wandb/vendor/gql-0.2.0/wandb_gql. A folder without modules, such as a configuration group, does
    not count.
    """
    package = package_set.owner(facts.module)
    if package is None:
        return False
    memory = _vendored_modules.setdefault(package_set, {})
    if (package, root) not in memory:
        modules, files = package_set.modules_of(package), package_set.files(package)
        memory[package, root] = any(f".{root}." in f"{module}." for module in modules) or any(
            f"/{root}/" in file and file.endswith((".py", ".so")) for file in files
        )
    return memory[package, root]
