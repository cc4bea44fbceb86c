"""A user's Python against a package set: the audit's checks of imports and calls, with columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.audit.checks import calls, imports
from imgbuild.audit.checks.findings import SEVERITY_ORDER
from imgbuild.audit.code import other_sets
from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.locate import CodeTree
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.other_sets import Elsewhere, OtherSet
from imgbuild.audit.main_path import policy
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.report import Evidence, Finding, Relation, Severity

# The code of each kind of finding that the checks make; data/audit/code_kinds.yaml explains them.
CODES = {
    Relation.PACKAGE: "IMG101",
    Relation.MODULE: "IMG101",
    Relation.NAME: "IMG101",
    Relation.KEYWORD: "IMG102",
    Relation.ARGUMENT: "IMG103",
    Relation.ATTRIBUTE: "IMG104",
    Relation.SUBSCRIPT: "IMG105",
    Relation.REGISTERED: "IMG106",
}
SYNTAX = "IMG107"
# Files that are not run in an image: what they import need not be there.
_DEVELOPMENT = re.compile(
    r"(?:^|/)(?:tests?/|docs?/|test_[^/]*\.py$|[^/]*_test\.py$"
    r"|(?:setup|conftest|noxfile|conf|tasks)\.py$)"
)
_PREFIX = f"{CODE} 0 "


def check(
    package_set: ImportablePackages,
    packages: Sequence[str],
    texts: Sequence[CodeText],
    facts: Mapping[str, ModuleFacts],
    others: Sequence[OtherSet] = (),
    unread: Sequence[str] = (),
) -> list[CodeFinding]:
    """What fails in the Python files `texts`, whose facts are `facts`, with these packages.

    `unread` are packages that are installed and were not read.
    """
    code = CodeSet(package_set, texts, facts, unread)
    path = code.path()
    # Any package may be at fault, not only those that the audit of a package set walks.
    rules = msgspec.structs.replace(policy.load(), walk=frozenset(packages))
    places = {text.file: text for text in code.code.values()}
    trees = {file: CodeTree(text) for file, text in places.items()}
    findings = [
        _finding(code, finding, finding.evidence, places, trees, others)
        for finding in (*imports.check(code, path), *calls.check(code, path, rules))
        if finding.evidence is not None and not _is_local(finding.evidence, places)
    ]
    broken = [
        CodeFinding(
            check="code",
            code=SYNTAX,
            severity=Severity.WARNING,
            message=f"cannot be parsed: {each.broken}",
            where=f"{file}:1:1",
            file=file,
            line=1,
        )
        for file, each in facts.items()
        if each.broken
    ]
    return _unique([*findings, *broken])


def _unique(findings: Sequence[CodeFinding]) -> list[CodeFinding]:
    """Each finding once, as severe as it is anywhere: a program's statements are read twice."""
    unique: dict[tuple[str, str, str], CodeFinding] = {}
    for finding in sorted(findings, key=lambda finding: SEVERITY_ORDER[finding.severity]):
        unique.setdefault((finding.where, finding.code, finding.message), finding)
    return list(unique.values())


def _is_local(evidence: Evidence, places: Mapping[str, CodeText]) -> bool:
    """Whether the subject is the user's: a relative import, or of a file next to the script.

    Python imports such a file first. A package that no package set has may lie in a folder above.
    """
    root = re.split(r"[.:(]", evidence.subject, maxsplit=1)[0]
    here = Path(places[evidence.file].root)
    folders = [here, *here.parents] if evidence.relation is Relation.PACKAGE else [here]
    return not root or any(
        Path(folder, name).exists()
        for folder in folders
        for name in (f"{root}.py", root, f"src/{root}")
        if folder is here or folder.parent != folder
    )


def _finding(
    code: CodeSet,
    finding: Finding,
    evidence: Evidence,
    places: Mapping[str, CodeText],
    trees: Mapping[str, CodeTree],
    others: Sequence[OtherSet],
) -> CodeFinding:
    """A finding of a check, as one of the user's code."""
    tree, text = trees[evidence.file], places[evidence.file]
    severity = finding.severity
    if evidence.relation is Relation.PACKAGE and severity is Severity.ERROR:
        if _DEVELOPMENT.search(text.file):
            severity = Severity.NOTE
        elif not tree.always_runs(evidence.line):
            severity = Severity.WARNING
    line, column = tree.place(evidence)
    cell, line = text.place(line)
    elsewhere = Elsewhere()
    if severity is not Severity.NOTE:
        elsewhere = other_sets.find(code, evidence, others)
    return CodeFinding(
        check="code",
        code=CODES[evidence.relation],
        severity=severity,
        message=finding.message.removeprefix(_PREFIX),
        where=f"{text.file}:{f'cell {cell}:' if cell else ''}{line}:{column}",
        remedy=_remedy(evidence, elsewhere),
        evidence=msgspec.structs.replace(evidence, package="", version="", line=line),
        file=text.file,
        line=line,
        column=column,
        cell=cell,
        instead=elsewhere.instead,
        since=elsewhere.since,
        targets=elsewhere.targets,
    )


def _remedy(evidence: Evidence, elsewhere: Elsewhere) -> str:
    """What to do: the name that there is now, or the version and the target that has this one."""
    parts = [f"use {elsewhere.instead}"] if elsewhere.instead else []
    if elsewhere.targets:
        shown = ", ".join(elsewhere.targets[:2])
        what = f"{evidence.other} {elsewhere.having} has it" if evidence.other else "it is there"
        parts.append(f"{what} (target {shown})")
    elif evidence.relation is Relation.PACKAGE:
        parts.append(f"add the package that provides {evidence.subject}")
    return ", or ".join(parts)
