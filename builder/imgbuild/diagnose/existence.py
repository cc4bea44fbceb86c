"""Explains a missing name by the releases that contain it."""

from __future__ import annotations

import re

from imgbuild.audit.names import releases
from imgbuild.audit.names.releases import Existence
from imgbuild.diagnose import requirements
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

# Sentences of a note, in English or Chinese.
OWNER = r"(?P<callee>[A-Z]\w{2,40}(?:Config|Trainer|Args|Params))"
MISSES = r"(?:还?没有|不支持|不接受|has no\b|lacks\b|does(?: not|n't) (?:have|accept|support)\b)"
LACKS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?<!\w){OWNER}\((?P<name>[a-z]\w{{1,60}})=[^()]{{0,60}}\).{{0,60}}?{MISSES}",
        rf"(?<!\w){OWNER} ?(?:里|中|类)?{MISSES}[ `'\"]{{0,3}}(?P<name>[a-z]\w{{1,60}})(?!\w)",
        rf"\b(?P<name>[a-z]\w{{1,60}}).{{0,60}}?(?<!\w){OWNER} ?(?:里|中|类)?{MISSES}",
    )
)


def is_in_log_version(existence: Existence, facts: LogFacts) -> bool:
    """Whether the version in the log has the name, so that another reason must be found."""
    version = facts.versions.get(existence.package, "")
    return bool(version) and existence.allows_version(version)


def noted_argument_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause for a line that says in words that a class lacks an argument."""
    for match in filter(None, (pattern.search(text) for pattern in LACKS)):
        existence = releases.argument_existence(match["callee"], match["name"])
        if existence is not None and existence.spec:
            what = f"the argument {match['name']} of {match['callee']}"
            return existence_reason(existence, what, f"remove {match['name']}", "IMG904", facts)
    return None


def existence_reason(
    existence: Existence, what: str, remove: str, code: str, facts: LogFacts, caller: str = ""
) -> Reason:
    """Return the reason according to `existence`.

    The cure is a change of the code or a pin. `caller` is the package that uses the name. Users
    cannot change its code.
    """
    cures = []
    user = releases.package_name(caller)
    version = facts.versions.get(existence.package, "")
    if (
        version
        and existence.spec
        and existence.covers_version(version)
        and is_in_log_version(existence, facts)
    ):
        package = existence.package
        return Reason(
            code=code,
            cause=f"{existence.change_sentence(what)}, and the log shows {package} {version}, which"
            f" has it: another {package} is imported",
            cure=f"compare python -m pip show {package} with the folder that the program imports"
            " (print its __file__ and __version__): restart the notebook's kernel after an update,"
            f" and remove a second {package} (a checkout in the working directory, ~/.local,"
            " another environment on PATH)",
        )
    if user and user != existence.package:
        newer = not existence.spec or existence.removing_version
        cures.append(f"use {'a newer' if newer else 'an older'} {user}, which does not use it")
    elif _is_opposite(existence.instead, what):
        cures.append(f"{remove} ({existence.instead}, the opposite, is off by default)")
    elif existence.instead:
        cures.append(f"use {existence.instead}")
    elif not existence.spec or existence.removing_version:
        cures.append(remove)
    known = user in facts.versions or version
    if known and (pin := requirements.pin_cure(existence.package, caller, facts)):
        cures = [pin]
    elif existence.spec:
        added = user and not existence.removing_version
        span = requirements.newest_specifier(user, existence.package) if added else ""
        limit = f", in the range that this {user} requires (the newest: {span})" if span else ""
        cures.insert(0 if user else len(cures), f"install {existence.requirement()}{limit}")
    cause = existence.change_sentence(what)
    if version:
        cause += f" (the log shows {existence.package} {version})"
    return Reason(
        code=code,
        cause=cause,
        cure=", or ".join(cures),
        confidence="high" if existence.spec else "medium",
    )


def _is_opposite(instead: str, what: str) -> bool:
    """Whether the name that replaces `what` enables what the old one disabled."""
    old = instead.replace("enable_", "disable_", 1)
    return instead.startswith("enable_") and old in what.replace("-", "_")
