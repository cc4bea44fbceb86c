"""Finds assignments to attributes that the class of an object no longer has."""

# A separate module: one check.
from __future__ import annotations

from collections.abc import Iterable, Iterator

from imgbuild.audit.checks.findings import finding_at, finding_place
from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.main_path.guards import judge_guards
from imgbuild.audit.names.scopes import find_meaning
from imgbuild.audit.source.facts import Class, ModuleFacts
from imgbuild.report import ConflictRelation, Finding, Severity


def check_assigned_attributes(
    code: CodeSet, path: MainPath, modules: Iterable[str]
) -> Iterator[Finding]:
    """Yield a warning for each assignment to an attribute that a class of a package lacks.

    Python accepts the assignment, and the package ignores it. The attribute may be the user's own,
    unless another version of the class has it.
    """
    package_set = path.view(code)
    for name in modules:
        facts = code.module(name)
        if not isinstance(facts, ModuleFacts):
            continue
        for store in facts.stores:
            what = find_meaning(package_set, facts, store)
            holder = what.holder
            if what.found.state != "absent" or holder is None or holder.home is None:
                continue
            other = code.owner(holder.home.module)
            place = finding_place(code, facts, store.line)
            if not isinstance(holder.definition, Class) or other in (None, CODE) or place is None:
                continue
            course = judge_guards(package_set, store.guards)
            if course.runs and course.clear and not course.asked:
                version = code.version(other or "") or ""
                text = f"sets {what.path}, but its class in {other} {version} does not have"
                yield finding_at(
                    place,
                    "calls",
                    Severity.WARNING,
                    f"{place.package} {place.version} {text} this attribute",
                    relation=ConflictRelation.ATTRIBUTE,
                    remedy="",
                    subject=what.path,
                    other=other,
                    other_version=version,
                )
