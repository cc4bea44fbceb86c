"""Determines whether another release uses the item in a finding in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from packaging.version import Version

from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.facts import Attribute, Call, Import, ModuleFacts, VersionWindow
from imgbuild.errors import IntegrityError
from imgbuild.learn.boundaries import NAMED_TESTS, PackageRelease, ReleaseCatalogue
from imgbuild.report import ConflictRelation, Evidence

ItemUse = Import | Call | Attribute | VersionWindow
# The arguments of a call: positional, keywords, and whether it uses * or **.
CallShape = tuple[int, tuple[str, ...], bool, bool]


def same_use(
    release_catalogue: ReleaseCatalogue, evidence: Evidence
) -> Callable[[PackageRelease], bool]:
    """Return a function that checks whether a release uses the same item in the same file.

    A moved file is recognized by its name. A use under additional conditions, such as on the
    version of the other package, or in a function instead of at import, is not the same. The
    function always returns False for evidence that cannot be checked in one file.
    """
    if evidence.relation not in (*NAMED_TESTS, ConflictRelation.PACKAGE, ConflictRelation.WINDOW):
        return lambda _: False
    package, subject, file = evidence.package, evidence.subject, evidence.file
    modules = _modules_of_evidence(release_catalogue, evidence)
    shapes = _shapes(modules, evidence)
    uses = _uses_of_evidence(modules, evidence, shapes)
    guards = tuple(dict.fromkeys(use.guards for _, use in uses))
    on_import = any(_runs_on_import(facts, use) for facts, use in uses)

    def _uses_item(release: PackageRelease) -> bool:
        try:
            wheel = release_catalogue.wheel(package, release)
        except IntegrityError:
            return False  # an sdist that cannot be read

        def _compute_use() -> bool:
            package_set = release_catalogue.create_package_set({package: release})
            return any(
                set(use.guards) <= {*same}
                for facts in _files(package_set, package, file)
                for use in _uses_of_item(facts, evidence, shapes)
                if _runs_on_import(facts, use) or not on_import
                for same in guards
            )

        item = (evidence.relation, subject, file, shapes)
        key = ("uses", *item, guards, on_import, wheel.sha256)
        return release_catalogue.compute_cached(key, _compute_use, bool)

    return _uses_item


def _modules_of_evidence(
    release_catalogue: ReleaseCatalogue, evidence: Evidence
) -> tuple[ModuleFacts, ...]:
    package, version = evidence.package, Version(evidence.version)
    releases = release_catalogue.readable_releases(package)
    release = next((each for each in releases if each.version == version), None)
    if release is None:
        return ()
    return tuple(
        _files(release_catalogue.create_package_set({package: release}), package, evidence.file)
    )


def runs_on_import(release_catalogue: ReleaseCatalogue, evidence: Evidence) -> bool:
    """Return whether the use in the evidence runs at import of its module, or is not found."""
    modules = _modules_of_evidence(release_catalogue, evidence)
    uses = _uses_of_evidence(modules, evidence, _shapes(modules, evidence))
    return not uses or any(_runs_on_import(facts, use) for facts, use in uses)


def _runs_on_import(facts: ModuleFacts, use: ItemUse) -> bool:
    return not module_scopes(facts).scope_runner(use.scope)


def _uses_of_evidence(
    modules: Iterable[ModuleFacts], evidence: Evidence, shapes: Iterable[CallShape]
) -> tuple[tuple[ModuleFacts, ItemUse], ...]:
    """Return the use in the evidence and its module, or all uses if the line is not found."""
    uses = [(facts, use) for facts in modules for use in _uses_of_item(facts, evidence, shapes)]
    at_line = [(facts, use) for facts, use in uses if use.line == evidence.line]
    return tuple(at_line or uses)


def _shapes(modules: Iterable[ModuleFacts], evidence: Evidence) -> tuple[CallShape, ...]:
    return tuple(
        _shape(call)
        for facts in modules
        for call in facts.calls
        if evidence.relation is ConflictRelation.ARGUMENT
        if call.line == evidence.line and _is_call_of(call, evidence.subject)
    )


def _shape(call: Call) -> CallShape:
    return (call.positional, tuple(sorted(call.keywords)), call.star, call.double_star)


def _is_call_of(call: Call, subject: str) -> bool:
    callee = subject.partition("(")[0]
    return call.callee.rpartition(".")[2] == callee.replace(":", ".").rpartition(".")[2]


def _files(package_set: PackageSet, package: str, file: str) -> Iterator[ModuleFacts]:
    """Yield the module of `file`, or else the modules of files with the same name."""
    modules = package_set.modules_of(package)
    name = file.rpartition("/")[2]
    same = [module for module, path in modules.items() if path == file]
    if not same and name != "__init__.py":
        same = [module for module, path in modules.items() if path.endswith(f"/{name}")]
    for module in sorted(same):
        facts = package_set.module(module)
        if isinstance(facts, ModuleFacts):
            yield facts


def _uses_of_item(
    facts: ModuleFacts, evidence: Evidence, shapes: Iterable[CallShape]
) -> Iterable[ItemUse]:
    subject, calls = evidence.subject, facts.calls
    in_brackets = subject.removesuffix(")").rpartition("(")[2]
    match evidence.relation:
        case ConflictRelation.MODULE | ConflictRelation.PACKAGE:
            return (line for line in facts.imports if _imports_module(line, subject))
        case ConflictRelation.NAME:
            module, _, name = subject.partition(":")
            named = (each for each in facts.imports if (each.module, each.name) == (module, name))
            return (*named, *_attribute_reads(facts, name))
        case ConflictRelation.KEYWORD:
            keyed = (each for each in calls if in_brackets in each.keywords)
            return (each for each in keyed if _is_call_of(each, subject))
        case ConflictRelation.ARGUMENT:
            return (each for each in calls if _shape(each) in shapes and _is_call_of(each, subject))
        case ConflictRelation.REGISTERED:
            return (each for each in calls if in_brackets in each.literals[:1])
        case ConflictRelation.WINDOW:
            return facts.windows
        case _:
            return _attribute_reads(facts, subject)


def _imports_module(line: Import, module: str) -> bool:
    below = line.module == module or line.module.startswith(f"{module}.")
    return below or f"{line.module}.{line.name}" == module


def _attribute_reads(facts: ModuleFacts, path: str) -> tuple[ItemUse, ...]:
    """Return the attributes and calls whose last name is the last component of a path."""
    name = path.rpartition(".")[2]
    read = (each for each in facts.attributes if each.expression.rpartition(".")[2] == name)
    called = (each for each in facts.calls if each.callee.rpartition(".")[2] == name)
    return (*read, *called)
