"""The check `rules`: known failures that no other check can find, from `data/audit/rules.yaml`.

A rule applies where its two packages meet in the versions that it names, or where the package that
it names as missing is absent, and the text of the wheel still contains what it describes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

import msgspec
import yaml

from imgbuild.audit.main_path.policy import within
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.report import Evidence, Finding, Relation, Severity
from imgbuild.values import Arch, normalize

FILE = "data/audit/rules.yaml"
CHECK = "rules"


class RuleEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The evidence of a rule: `text` is a regular expression for one line of `file`.

    `file` is a path in the wheel of the rule's `package`, or of `of`.
    """

    file: str
    text: str
    of: str = ""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`package` in `versions` fails with `other` in `clash` (`spec` are versions that work).

    Or, instead of these three, without the package `missing`.
    """

    id: str
    package: str
    versions: str = ""
    other: str = ""
    clash: str = ""
    spec: str = ""
    missing: str = ""
    why: str
    cure: str
    source: str
    shown: RuleEvidence
    severity: Severity = Severity.ERROR
    arch: tuple[Arch, ...] = ()

    def __post_init__(self) -> None:
        pair = (self.other, self.clash, self.spec)
        if any(pair) if self.missing else not all(pair):
            message = f"rule {self.id}: give other, clash and spec, or missing"
            raise ValueError(message)


@lru_cache(maxsize=1)
def load() -> tuple[Rule, ...]:
    """The rules of this version of imgbuild; their ids are unique."""
    text = resources.files("imgbuild").joinpath(FILE).read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), tuple[Rule, ...])


def check(package_set: PackageSet, rules: Sequence[Rule] | None = None) -> list[Finding]:
    """The findings of `rules` in this package set; the default are those of `load`."""
    found = (_judge(package_set, rule) for rule in (load() if rules is None else rules))
    return [finding for finding in found if finding is not None]


def _judge(package_set: PackageSet, rule: Rule) -> Finding | None:
    own, other = package_set.version(rule.package), package_set.version(rule.other)
    if own is None or (rule.arch and package_set.arch not in rule.arch):
        return None
    if not within(own, rule.versions) or not _applies(package_set, rule, other):
        return None
    line = shown_at(package_set, rule)
    if not line:
        return None
    holder = normalize(rule.shown.of or rule.package)
    place = f"{holder} {package_set.version(holder)} {rule.shown.file}:{line}"
    combination = f"without {rule.missing}" if rule.missing else f"with {rule.other} {other}"
    return Finding(
        check=CHECK,
        severity=rule.severity,
        message=f"{rule.package} {own} {combination}: {rule.why}",
        where=place,
        remedy=rule.cure,
        evidence=Evidence(
            relation=Relation.RULE,
            package=normalize(rule.package),
            version=own,
            file=rule.shown.file,
            line=line,
            other=normalize(rule.other),
            other_version=other or "",
            subject=rule.id,
            spec=rule.spec,
        ),
    )


def _applies(package_set: PackageSet, rule: Rule, other: str | None) -> bool:
    """Whether the version `other` is one of `clash`, or `missing` is absent.

    What a partial package set lacks may be installed.
    """
    if rule.missing:
        return not package_set.partial and package_set.version(rule.missing) is None
    return other is not None and within(other, rule.clash)


def shown_at(package_set: PackageSet, rule: Rule) -> int:
    """The line of the wheel's file that matches the rule; 0 if there is none."""
    source = package_set.read(rule.shown.of or rule.package, rule.shown.file)
    pattern = re.compile(rule.shown.text.encode())
    for number, line in enumerate((source or b"").splitlines(), 1):
        if pattern.search(line):
            return number
    return 0
