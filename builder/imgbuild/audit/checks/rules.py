"""Checks package sets for known failures that no other check can find: the check `rules`.

The rules are in `data/audit/rules.yaml`. A rule applies to the listed Python versions, in one of
three cases: two packages have listed versions, a package lacks another package, or a wheel lacks a
module for this Python. In each case, the wheel must contain the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from imgbuild.audit.checks.findings import SEVERITY_ORDER
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import is_within
from imgbuild.values import Arch, normalize_package

CHECK = "rules"


class RuleEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The evidence of a rule: `text` is a regular expression for a line of `file`.

    `file` is a path in the wheel of the package `of`, which by default is the rule's `package`.
    """

    file: str
    text: str
    of: str = ""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A known failure of `package` in `versions`.

    The failure occurs with `other` in versions `clash`, but not in versions `spec`. Alternatively,
    it occurs without the package `missing`, or if the package's wheel does not contain the module
    `lacks` for this Python and no other package provides the module `unless`.

    `python` is a specifier of the affected Python versions, such as "<3.11". By default, all are
    affected.

    `gpu` lists the affected compute capabilities. By default, all are affected. A rule with `gpu`
    applies to targets with such a GPU, and is a warning for a package set without GPUs.
    """

    id: str
    package: str
    versions: str = ""
    other: str = ""
    clash: str = ""
    spec: str = ""
    missing: str = ""
    lacks: str = ""
    unless: str = ""
    python: str = ""
    gpu: tuple[str, ...] = ()
    why: str
    cure: str
    source: str
    shown: RuleEvidence
    severity: Severity = Severity.ERROR
    arch: tuple[Arch, ...] = ()

    def __post_init__(self) -> None:
        pair = (self.other, self.clash, self.spec)
        alone = self.missing or self.lacks
        if (any(pair) and (self.missing or not all(pair))) or not (any(pair) or alone):
            message = f"rule {self.id}: set other, clash and spec, or missing, or lacks"
            raise ValueError(message)


@lru_cache(maxsize=1)
def load_rules() -> tuple[Rule, ...]:
    """Return the bundled rules, whose IDs are unique."""
    return yaml_data.load_yaml_data(files.data("audit/rules.yaml"), tuple[Rule, ...])


def check_rules(
    package_set: PackageSet, rules: Sequence[Rule] | None = None, *, gpu: Sequence[str] = ()
) -> list[Finding]:
    """Return the findings of `rules` (by default the bundled rules) in this package set.

    `gpu` lists the compute capabilities of the target, and is empty for other package sets.
    """
    findings = (
        _apply_rule(package_set, rule, gpu) for rule in (load_rules() if rules is None else rules)
    )
    return [finding for finding in findings if finding is not None]


def drop_explained_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those about modules that a rule's finding explains.

    A finding that is more severe than the rule's finding is not dropped.
    """
    modules = {rule.id: rule.lacks for rule in load_rules() if rule.lacks}
    explained = {
        (evidence.package, modules[evidence.subject]): SEVERITY_ORDER[finding.severity]
        for finding in findings
        if finding.check == CHECK and (evidence := finding.evidence) and evidence.subject in modules
    }

    def _is_explained(finding: Finding) -> bool:
        evidence = finding.evidence
        of_rule = explained.get((evidence.package, evidence.subject)) if evidence else None
        return of_rule is not None and SEVERITY_ORDER[finding.severity] >= of_rule

    return [finding for finding in findings if not _is_explained(finding)]


def _apply_rule(package_set: PackageSet, rule: Rule, gpu: Sequence[str]) -> Finding | None:
    version, other = package_set.version(rule.package), package_set.version(rule.other)
    if version is None or (rule.arch and package_set.arch not in rule.arch):
        return None
    if not is_within(package_set.python, rule.python):
        return None
    if rule.gpu and gpu and set(rule.gpu).isdisjoint(gpu):
        return None
    if not is_within(version, rule.versions) or not _rule_applies(package_set, rule, other):
        return None
    line = evidence_line(package_set, rule)
    if not line:
        return None
    holder = normalize_package(rule.shown.of or rule.package)
    place = f"{holder} {package_set.version(holder)} {rule.shown.file}:{line}"
    unsure = rule.gpu and not gpu and rule.severity is Severity.ERROR
    return Finding(
        check=CHECK,
        severity=Severity.WARNING if unsure else rule.severity,
        message=f"{rule.package} {version} {_failure_condition(package_set, rule)}: {rule.why}",
        where=place,
        remedy=rule.cure,
        evidence=Evidence(
            relation=ConflictRelation.RULE,
            package=normalize_package(rule.package),
            version=version,
            file=rule.shown.file,
            line=line,
            other=normalize_package(rule.other),
            other_version=other or "",
            subject=rule.id,
            spec=rule.spec,
        ),
    )


def _failure_condition(package_set: PackageSet, rule: Rule) -> str:
    """Return the circumstances of the failure: "with numpy 1.26.4", "on Python 3.11"."""
    circumstances = [f"without {rule.missing}"] if rule.missing else []
    circumstances += [f"with {rule.other} {package_set.version(rule.other)}"] if rule.other else []
    circumstances += [f"on Python {package_set.python}"] if rule.lacks or rule.python else []
    return " ".join(circumstances)


def _rule_applies(package_set: PackageSet, rule: Rule, other: str | None) -> bool:
    """Return whether the installed versions and modules match a rule.

    `other` is the version of the other package. In a partial package set, missing packages may be
    installed.
    """
    if rule.lacks and package_set.exists(rule.lacks) is not False:
        return False
    if rule.unless and (package_set.version(rule.unless) or package_set.exists(rule.unless)):
        return False
    if rule.missing:
        return not package_set.partial and package_set.version(rule.missing) is None
    return not rule.other or (other is not None and is_within(other, rule.clash))


def evidence_line(package_set: PackageSet, rule: Rule) -> int:
    """Return the line number in the wheel that matches the rule's evidence, or 0 if none does."""
    source = package_set.read(rule.shown.of or rule.package, rule.shown.file)
    pattern = re.compile(rule.shown.text.encode())
    for number, line in enumerate((source or b"").splitlines(), 1):
        if pattern.search(line):
            return number
    return 0
