"""Opposites of guards: what holds for the other branch of a condition.

Input: the guards of a branch and the text of its condition. Output: those of the other.
"""

from __future__ import annotations

import re

from imgbuild.audit.source.facts import Guard

OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_SPEC = re.compile(r"(<=|>=|==|!=|<|>)(.+)")


def opposite(guards: tuple[Guard, ...], text: str) -> tuple[Guard, ...]:
    """The guards of the branch that runs where these do not all hold."""
    if not guards:
        return ()
    if len(guards) == 1:
        return (_opposite(guards[0], text),)
    return (Guard("unknown", f"not ({text})"),)


def _opposite(guard: Guard, text: str) -> Guard:
    kind, subject, spec = guard.kind, guard.subject, guard.spec
    found = _SPEC.fullmatch(spec)
    if kind in ("version", "python") and found is not None and "," not in spec:
        return Guard(kind, subject, OPPOSITE[found[1]] + found[2])
    if kind == "present":
        return Guard("absent", subject, spec)
    if kind == "absent":
        return Guard("present", subject, spec)
    if kind == "platform":
        return Guard("platform", subject, "" if spec else "!")
    if kind == "takes":
        return Guard("takes", subject, spec[1:] if spec.startswith("!") else f"!{spec}")
    return Guard("unknown", f"not ({text})")
