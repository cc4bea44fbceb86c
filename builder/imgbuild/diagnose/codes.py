"""Explains each code for `imgbuild explain` and docs/reference/failures.md."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from imgbuild.audit.code import kinds as code_kinds
from imgbuild.audit.code.kinds import FindingKind
from imgbuild.diagnose import rules
from imgbuild.diagnose.rules import FailureRule


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A code, its title and its explanation."""

    code: str
    title: str
    text: str
    example: str = ""


def all_explanations() -> dict[str, Explanation]:
    """Return the explanations of all codes, in order."""
    return {
        each.code: each
        for each in sorted(_iterate_explanations(), key=lambda each: int(each.code[3:]))
    }


def current_code(code: str) -> str:
    """Return the code of the findings that had `code` in an earlier version."""
    earlier = {each.code: each.earlier for each in rules.load_rules()}
    earlier |= {now: kind.earlier for now, kind in rules.derived_kinds().items()}
    return next((now for now, codes in earlier.items() if code in codes), code)


def all_failures() -> list[Explanation]:
    """The explanations of failures in logs, sorted by title."""
    failures = [
        *map(rule_explanation, rules.load_rules()),
        *(_kind_explanation(code, kind) for code, kind in rules.derived_kinds().items()),
    ]
    return sorted(failures, key=lambda failure: failure.title.casefold())


def _iterate_explanations() -> Iterator[Explanation]:
    yield from all_failures()
    for code, kind in code_kinds.load_finding_kinds().items():
        yield _kind_explanation(code, kind)


def _kind_explanation(code: str, kind: FindingKind) -> Explanation:
    parts = (kind.text.strip(), f"Cure: {kind.cure.strip()}" if kind.cure else "")
    text = "\n\n".join(filter(None, parts))
    return Explanation(code=code, title=kind.title, text=text, example=kind.example)


def rule_explanation(rule: FailureRule) -> Explanation:
    """Return the explanation of a rule: cause, cure, sources and example."""
    parts = [f"Cause: {fill_placeholders(rule.cause)}.", f"Cure: {fill_placeholders(rule.cure)}."]
    if rule.role == "consequence":
        parts.append(
            "It is a consequence of another failure, which is listed first if it is in the log."
        )
    if rule.sources:
        parts.append(f"Sources: {', '.join(rule.sources)}.")
    return Explanation(code=rule.code, title=rule.title, text=" ".join(parts), example=rule.example)


def fill_placeholders(text: str) -> str:
    """Replace each placeholder in `text` by its name in capitals."""
    return rules.PLACEHOLDER.sub(lambda match: match[1].upper(), text)
