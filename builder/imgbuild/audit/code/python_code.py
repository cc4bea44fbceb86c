"""Compares imports and calls in a user's Python code with a package set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import msgspec

from imgbuild.audit.checks import calls, imports
from imgbuild.audit.checks.findings import SEVERITY_ORDER, missing_package_remedy
from imgbuild.audit.code import other_sets, overridden
from imgbuild.audit.code.assigned_attributes import check_assigned_attributes
from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.finding_cache import (
    Conditions,
    FileFindings,
    FindingCache,
    package_conditions,
)
from imgbuild.audit.code.locate import CodeTree
from imgbuild.audit.code.model import MOST_IN_FILE, CodeFinding, CodeText
from imgbuild.audit.code.other_sets import OtherSet, Replacement
from imgbuild.audit.code.reading import CodeFacts
from imgbuild.audit.code.wheel_sources import recommended_name
from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.guards import guard_results
from imgbuild.audit.main_path.policy import MainPathPolicy
from imgbuild.audit.names.classes import LOADED_NAMES
from imgbuild.audit.names.releases import Existence
from imgbuild.audit.packages.library import DownloadRequired
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity
from imgbuild.system import decoding, forked

# The code of each kind of finding that the checks make; data/audit/code_kinds.yaml explains them.
CODES = {
    ConflictRelation.PACKAGE: "IMG101",
    ConflictRelation.MODULE: "IMG101",
    ConflictRelation.NAME: "IMG101",
    ConflictRelation.KEYWORD: "IMG102",
    ConflictRelation.ARGUMENT: "IMG103",
    ConflictRelation.ATTRIBUTE: "IMG104",
    ConflictRelation.SUBSCRIPT: "IMG105",
    ConflictRelation.REGISTERED: "IMG106",
    ConflictRelation.RESULT: "IMG111",
    ConflictRelation.VALUE: "IMG112",
    ConflictRelation.ANNOTATION: "IMG112",
}
SYNTAX = "IMG107"
PARSED_LINE = re.compile(r" \(<unknown>, line (?P<line>\d+)\)$")
# Files that are not run in an image: their imports need not exist there.
_DEVELOPMENT = re.compile(
    r"(?:^|/)(?:tests?/|docs?/|test_[^/]*\.py$|[^/]*_test\.py$"
    r"|(?:setup|conftest|noxfile|conf|tasks)\.py$)"
)
# What is before and after a name that a class binds.
_CLASS_BINDING = (rb"^[ \t]+", rb"[ \t]*(?::|=(?!=))[^\n]*(?<![,\s])[ \t]*$")  # no keyword
_NOQA_LINES = 4  # folders above a script that may contain a project's packages
_PREFIX = f"{CODE} 0 "
SHARE = 512 << 10  # bytes of source that are worth a share of a process


def check_python_code(
    package_set: ImportablePackages,
    packages: Sequence[str],
    texts: Sequence[CodeText],
    facts: CodeFacts,
    others: Sequence[OtherSet] = (),
    unread: Sequence[str] = (),
    cache: Callable[[CodeSet], FindingCache] | None = None,
    copied: Callable[[], AbstractContextManager[None]] | None = None,
) -> list[CodeFinding]:
    """Return the findings in the Python files `texts`, whose facts are `facts`.

    `unread` are installed packages that were not read. Files whose findings are in the `cache` are
    not checked again. If the packages can be `copied`, many files are checked in several processes.
    """
    code = CodeSet(package_set, texts, facts, unread)
    # Any package may be at fault, not only those that the audit of a package set walks.
    rules = msgspec.structs.replace(policy.load_policy(), walk=frozenset(packages))
    places = {text.file: text for text in code.code_by_module.values()}
    kept = cache(code) if cache is not None else None
    known: dict[str, FileFindings] = {}
    if kept is not None:
        stored = {file: kept.read(file) for file in places}
        known = {file: each for file, each in stored.items() if each and _is_current(each, code)}
    new = {name: text for name, text in code.code_by_module.items() if text.file not in known}
    states = guard_results(code)
    states.update(kept.read_conditions() if kept is not None and new else ())
    before = len(states)
    checked = _check_modules(code, new, rules, others, copied)
    known |= checked
    if kept is not None:
        if len(states) > before:
            kept.write_conditions(package_conditions(code))
        for file, entry in checked.items():
            kept.write(file, entry)
        kept.save()
    broken = [
        _syntax_finding(file, each.broken) for file, each in facts.summaries.items() if each.broken
    ]
    broken += [_syntax_finding(text.file, text.broken) for text in texts if text.broken]
    defined = _UserAttributes(texts)
    found = [each for group in known.values() for each in group.findings if not defined.has(each)]
    return _unique_findings([*found, *broken])


class _CheckedFiles(msgspec.Struct, frozen=True, array_like=True):
    """What a forked copy of this process returns: findings by file, and results of conditions."""

    findings: dict[str, FileFindings]
    conditions: Conditions


class _UserAttributes:
    """The attributes that classes of the user's code define."""

    def __init__(self, texts: Sequence[CodeText]) -> None:
        self._sources = [text.source for text in texts if text.kind == "python"]
        self._defined: dict[str, bool] = {}

    def has(self, finding: CodeFinding) -> bool:
        """Whether a subclass of the user may define the attribute that a class lacks."""
        evidence = finding.evidence
        if evidence is None or evidence.relation is not ConflictRelation.ATTRIBUTE:
            return False
        name = evidence.subject.rpartition(".")[2]
        if name not in self._defined:
            word = name.encode()
            pattern = re.compile(
                rb"\bdef[ \t]+" + word + rb"\(|" + word.join(_CLASS_BINDING), re.MULTILINE
            )
            self._defined[name] = any(
                word in source and pattern.search(source) for source in self._sources
            )
        return self._defined[name]


def _check_modules(
    code: CodeSet,
    new: Mapping[str, CodeText],
    rules: MainPathPolicy,
    others: Sequence[OtherSet],
    copied: Callable[[], AbstractContextManager[None]] | None,
) -> dict[str, FileFindings]:
    """Return the findings in the modules `new` by file.

    Forked copies of this process check shares of the modules.
    """
    look = _ReplacementCache(code, others)
    processes = forked.copy_limit() if copied is not None else 1
    # Neighbouring files use the same packages.
    shares = forked.split_shares(
        sorted(new.items()), lambda item: len(item[1].source), processes, SHARE
    )

    def _check_shares(shares: Iterable[Iterable[tuple[str, CodeText]]]) -> dict[str, FileFindings]:
        findings: dict[str, FileFindings] = {}
        for share in shares:
            findings |= _module_findings(look, dict(share), rules, others)
        return findings

    def _check_copied(shares: Iterable[Iterable[tuple[str, CodeText]]]) -> bytes:
        findings: dict[str, FileFindings] = {}
        with copied() if copied is not None else nullcontext(), suppress(DownloadRequired):
            for share in shares:
                findings |= _module_findings(look, dict(share), rules, others)
        return msgspec.msgpack.encode(_CheckedFiles(findings, package_conditions(code)))

    findings, copies = forked.compute_shares(shares, _check_shares, _check_copied, processes)
    for data in filter(None, copies):
        checked = decoding.decode_msgpack(data, _CheckedFiles)
        findings |= checked.findings
        guard_results(code).update(checked.conditions)
    # A copy ends early if a file must be downloaded.
    left = [(name, text) for name, text in new.items() if text.file not in findings]
    return findings | _check_shares([left] if left else [])


def _module_findings(
    look: _ReplacementCache,
    new: Mapping[str, CodeText],
    rules: MainPathPolicy,
    others: Sequence[OtherSet],
) -> dict[str, FileFindings]:
    """Return the findings in these modules by file."""
    code = look.code
    path = code.path(new)
    by_file: dict[str, list[tuple[Finding, Evidence]]] = {}
    assigned = [
        each
        for each in check_assigned_attributes(code, path, new)
        if each.evidence is not None and _was_in_package(look, each.evidence)
    ]
    local: dict[str, list[Evidence]] = {}
    for finding in (
        *imports.check_imports(code, path),
        *calls.check_calls(code, path, rules),
        *assigned,
    ):
        evidence = finding.evidence
        if evidence is not None and _is_local(evidence, code):
            local.setdefault(evidence.file, []).append(evidence)
        elif evidence is not None:
            by_file.setdefault(evidence.file, []).append((finding, evidence))
    texts = {text.file: text for text in new.values()}
    findings: dict[str, list[CodeFinding]] = {file: [] for file in texts}
    for file, group in by_file.items():
        group.sort(key=lambda each: SEVERITY_ORDER[each[0].severity])
        findings[file] += _file_findings(look, texts[file], group[:MOST_IN_FILE])
    for each in overridden.check_overridden_methods(code, others, new):
        findings[each.file].append(each)
    return {
        file: FileFindings(tuple(entries), tuple(local.get(file, ())))
        for file, entries in findings.items()
    }


def _was_in_package(look: _ReplacementCache, evidence: Evidence) -> bool:
    """Whether another version has the missing attribute, so it is not the user's own."""
    return bool(look.find(evidence).having) or other_sets.published_existence(evidence) is not None


def _is_current(stored: FileFindings, code: CodeSet) -> bool:
    """Whether stored findings are current.

    The user's folders must still contain, and lack, the same modules as when the findings were
    stored.
    """
    evidence = [each.evidence for each in stored.findings if each.evidence is not None]
    return all(_is_local(each, code) for each in stored.local) and not any(
        _is_local(each, code) for each in evidence
    )


def _syntax_finding(file: str, message: str) -> CodeFinding:
    """Return the finding for an invalid Python file. The parser's message ends with the line."""
    match = PARSED_LINE.search(message)
    line = max(1, int(match["line"])) if match else 1
    return CodeFinding(
        check="code",
        code=SYNTAX,
        severity=Severity.WARNING,
        message=f"cannot be parsed: {PARSED_LINE.sub('', message)}",
        where=f"{file}:{line}:1",
        file=file,
        line=line,
    )


def _unique_findings(findings: Sequence[CodeFinding]) -> list[CodeFinding]:
    """Return the findings without duplicates, each with its highest severity.

    The statements of a program are read twice, so findings are duplicated.
    """
    unique: dict[tuple[str, str, str], CodeFinding] = {}
    for finding in sorted(findings, key=lambda finding: SEVERITY_ORDER[finding.severity]):
        unique.setdefault((finding.where, finding.code, finding.message), finding)
    return list(unique.values())


def _is_local(evidence: Evidence, code: CodeSet) -> bool:
    """Whether the subject is part of the user's code: a relative import, or a file next to it.

    Python imports a file next to the script first. A package that is in no package set may be in a
    parent folder. Names that a user's module imports from a package are not part of the user's
    code.
    """
    root = re.split(r"[.:(]", evidence.subject, maxsplit=1)[0]
    if evidence.other and code.owner(root) == CODE:
        return False
    here = Path(code.root(evidence.file))
    if not root or (here / f"{root}.py").is_file() or (here / root / "__init__.py").is_file():
        return True
    if evidence.relation is not ConflictRelation.PACKAGE:
        return False  # an installed package comes before a folder without __init__
    for folder in (here, *here.parents[:_NOQA_LINES]):
        if _has_module(folder, root) or _has_module(folder / "src", root):
            return True
        if (folder / ".git").exists():
            break
    return False


def _has_module(folder: Path, name: str) -> bool:
    """Whether a folder contains a module, or a folder of modules, named `name`."""
    inner = folder / name
    return (folder / f"{name}.py").is_file() or (inner.is_dir() and any(inner.glob("*.py")))


class _ReplacementCache:
    """Looks up replacements, once for each missing name."""

    def __init__(self, code: CodeSet, others: Sequence[OtherSet]) -> None:
        self.code = code
        self._others = others
        self._memory: dict[tuple[str, str, str], Replacement] = {}

    def find(self, evidence: Evidence) -> Replacement:
        """Return the result of `other_sets.find_replacement`, cached."""
        key = (evidence.relation, evidence.subject, evidence.other)
        if key not in self._memory:
            self._memory[key] = other_sets.find_replacement(self.code, evidence, self._others)
        return self._memory[key]


def _file_findings(
    look: _ReplacementCache, text: CodeText, group: Sequence[tuple[Finding, Evidence]]
) -> list[CodeFinding]:
    """Return the findings in one file. The syntax tree is released afterwards."""
    tree = CodeTree(text, look.code)
    return [_finding(look, finding, evidence, text, tree) for finding, evidence in group]


def _severity(
    look: _ReplacementCache, finding: Finding, evidence: Evidence, text: CodeText, tree: CodeTree
) -> Severity:
    """Return the severity of a finding in the user's code.

    The severity is a warning if the line may not run, or may not fail. A parameter may be an object
    of a subclass with more attributes than the annotated class.
    """
    if finding.severity is not Severity.ERROR:
        return finding.severity
    if evidence.relation is ConflictRelation.ANNOTATION:
        return Severity.WARNING  # Python does not check it
    if evidence.relation is ConflictRelation.PACKAGE:
        if _DEVELOPMENT.search(text.file):
            return Severity.NOTE
        if tree.changes_search_path or not tree.always_runs(evidence.line):
            return Severity.WARNING
    if (
        tree.may_be_guarded(evidence.line)
        or tree.is_unused(evidence.line)
        or tree.is_replaced(evidence)
    ):
        return Severity.WARNING
    if evidence.relation is ConflictRelation.ATTRIBUTE:
        # Subclasses of a base of transformers may have it.
        *_, owner, name = ["", *evidence.subject.split(".")]
        if owner in LOADED_NAMES and look.code.sources.is_defined_below("transformers", name):
            return Severity.WARNING
    if tree.concerns_parameter(evidence) and not _was_in_package(look, evidence):
        return Severity.WARNING
    return Severity.ERROR


def _finding(
    look: _ReplacementCache, finding: Finding, evidence: Evidence, text: CodeText, tree: CodeTree
) -> CodeFinding:
    """Convert a finding of a check to a finding in the user's code."""
    severity = _severity(look, finding, evidence, text, tree)
    # Notes are many, and are only shown on request: their trees are not read.
    note = severity is Severity.NOTE
    line, column = (evidence.line, 1) if note else tree.place(evidence)
    cell, line = text.place(line)
    elsewhere = Replacement() if note else look.find(evidence)
    published = (
        other_sets.published_existence(evidence) if not note and not elsewhere.since else None
    )
    advice = ""
    if evidence.relation is ConflictRelation.NAME and ":" in evidence.subject and not note:
        advice = look.code.sources.advice(*evidence.subject.split(":", 1))
    return CodeFinding(
        check="code",
        code=CODES[evidence.relation],
        severity=severity,
        message=finding.message.removeprefix(_PREFIX),
        where=f"{text.file}:{f'cell {cell}:' if cell else ''}{line}:{column}",
        remedy=advice or _remedy(evidence, elsewhere, published),
        evidence=msgspec.structs.replace(evidence, package="", version="", line=line),
        file=text.file,
        line=line,
        column=column,
        cell=cell,
        instead=recommended_name(advice) or elsewhere.instead,
        since=elsewhere.since
        or (published.removing_version or published.adding_version if published else ""),
        targets=elsewhere.targets,
    )


def _remedy(evidence: Evidence, elsewhere: Replacement, published: Existence | None) -> str:
    """Return the remedy: to use the replacement, or a version or target that has the name."""
    parts = [f"use {elsewhere.instead}"] if elsewhere.instead else []
    if elsewhere.instead and elsewhere.targets and not elsewhere.since:
        having = f"{evidence.other} {elsewhere.having}"
        parts = [f"use {elsewhere.instead}, which {having} has (target {elsewhere.targets[0]})"]
    elif elsewhere.targets:
        shown = ", ".join(elsewhere.targets[:2])
        what = f"{evidence.other} {elsewhere.having} has it" if evidence.other else "available"
        parts.append(f"{what} (target {shown})")
    elif published is not None:
        parts.append(f"install {published.requirement()}")
    elif evidence.relation is ConflictRelation.PACKAGE:
        parts.append(missing_package_remedy(evidence.subject))
    return ", or ".join(parts)
