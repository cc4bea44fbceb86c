"""Runs all checks of a user's code against a package set, and sorts the findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from imgbuild.audit.code import (
    command_lines,
    configurations,
    hydra_files,
    launches,
    option_packages,
    python_code,
    settings_files,
    variable_settings,
    variables,
)
from imgbuild.audit.code.code_set import CodeSet
from imgbuild.audit.code.finding_cache import FindingCache
from imgbuild.audit.code.model import CodeFinding, CodeText, Fork
from imgbuild.audit.code.other_sets import OtherSet
from imgbuild.audit.code.reading import CodeFacts
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.cache.store import Store
from imgbuild.system.collector import pause_collector

_NOQA = re.compile(rb"#\s*noqa:\s*(.+)", re.IGNORECASE)
_CODE = re.compile(rb"[A-Z]+\d+")


class CheckedCode(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, sorted by file and line.

    `absent` contains the packages whose sources are not available.
    """

    findings: tuple[CodeFinding, ...]
    absent: tuple[str, ...]


def check_code(
    package_set: PackageSet,
    texts: Sequence[CodeText],
    store: Store,
    others: Sequence[OtherSet] = (),
    unread: Sequence[str] = (),
    forks: Sequence[Fork] = (),
    key: str = "",
) -> CheckedCode:
    """Return the findings in `texts` for these packages.

    `others` are package sets that are searched for replacements. `unread` are installed packages
    that were not read. A fork in `forks` replaces a package that is missing from the package set,
    and is also checked. `key` stands for all inputs except `texts`. If it is set, the findings in
    each Python file are cached.
    """
    with pause_collector():
        return _run_all_checks(package_set, texts, store, others, unread, forks, key)


def _run_all_checks(
    package_set: PackageSet,
    texts: Sequence[CodeText],
    store: Store,
    others: Sequence[OtherSet],
    unread: Sequence[str],
    forks: Sequence[Fork],
    key: str,
) -> CheckedCode:
    facts = CodeFacts(texts, store)
    base: ImportablePackages = package_set
    packages = [*package_set.packages, *(fork.package for fork in forks)]
    of_forks: list[CodeFinding] = []
    for fork in forks:
        fork_facts = CodeFacts(fork.texts, store, place=f"fork of {fork.package}")
        of_forks += python_code.check_python_code(
            base, packages, fork.texts, fork_facts, others, unread
        )
        base = CodeSet(base, fork.texts, fork_facts, package=fork.package, version=fork.version)
    sources = PackageSources(package_set, [*unread, *(fork.package for fork in forks)])
    findings = [
        *of_forks,
        *python_code.check_python_code(
            base,
            packages,
            texts,
            facts,
            others,
            unread,
            (lambda code: FindingCache(store, key, code, facts)) if key else None,
            package_set.use_in_copied_process,
        ),
        *variables.check_variables(sources, texts, facts.summaries),
        *command_lines.check_command_lines(sources, texts, facts.summaries),
        *configurations.check_configurations(sources, texts),
        *hydra_files.check_hydra_files(sources, texts),
        *launches.check_launches(sources, texts),
        *settings_files.check_settings_files(lambda: CodeSet(base, texts, facts, unread), texts),
        *option_packages.check_option_packages(sources, texts, facts.summaries),
    ]
    by_file = {
        text.file: text for text in (*texts, *(text for fork in forks for text in fork.texts))
    }
    findings_by_file: dict[str, list[CodeFinding]] = {}
    for each in findings:
        findings_by_file.setdefault(each.file, []).append(each)
    shown = [
        each
        for file, group in findings_by_file.items()
        for each in _unaccepted_findings(group, by_file[file])
    ]
    shown.sort(key=lambda each: (each.file, each.cell, each.line, each.column))
    return CheckedCode(findings=tuple(shown), absent=tuple(sorted(sources.absent)))


def _unaccepted_findings(findings: Sequence[CodeFinding], text: CodeText) -> list[CodeFinding]:
    """Return the findings in a file whose lines do not end with `# noqa: CODE`, as in linters."""
    sources = [each for each in (text.source, text.commands) if _NOQA.search(each) is not None]
    lines = [source.splitlines() for source in sources]
    return [each for each in findings if not any(_is_accepted(each, text, part) for part in lines)]


def _is_accepted(finding: CodeFinding, text: CodeText, lines: Sequence[bytes]) -> bool:
    first = text.cells[finding.cell - 1] - 1 if finding.cell else 0
    number = first + finding.line
    accepted = _NOQA.search(lines[number - 1]) if 0 < number <= len(lines) else None
    return accepted is not None and finding.code.encode() in _CODE.findall(accepted[1])


def compared_packages() -> frozenset[str]:
    """Return the packages with options and variables that the user's files can set."""
    programs = command_lines.load_programs()
    names = {name for program in programs for name in (program.package, *program.more)}
    prefixes = variable_settings.load_variable_table().prefixes.values()
    names |= {name for prefix in prefixes for name in prefix.packages}
    return frozenset({*names, "verl"})  # whose overrides are compared


def imported_modules(texts: Sequence[CodeText], store: Store) -> frozenset[str]:
    """Return the top-level modules that the Python files among `texts` import."""
    summaries = CodeFacts(texts, store).summaries.values()
    return frozenset(name for each in summaries for name in each.imports)
