"""Finds reads of attributes that a class had in an older release but does not have now.

A class with `__getattr__` may have any attribute, so the names in the class are not sufficient. An
attribute certainly does not exist if two conditions are met: the class defined the attribute when
the reading package was released, and the current sources of the class and its bases do not contain
the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

import msgspec

from imgbuild.audit.checks.findings import create_finding, finding_place
from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.closure import Level, MainPath
from imgbuild.audit.main_path.guards import ATTRIBUTE, judge_guards
from imgbuild.audit.names import classes, receivers
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.facts import AssignedName, Attribute, Class, ModuleFacts
from imgbuild.learn.boundaries import ReleaseCatalogue, lacks_item, never_mentions, newest_at_time
from imgbuild.report import ConflictRelation, Evidence, Finding

CHECK = "calls"
_UNION = re.compile(r"(?:typing\.)?(?:Union|Optional)\[(.*)\]")


class AttributeRead(msgspec.Struct, frozen=True):
    """A read, in code that runs, of an attribute that a class of another package may have."""

    facts: ModuleFacts
    line: int
    entry: str
    own: str
    other: str
    subject: str


def check_removed_attributes(
    package_set: PackageSet,
    path: MainPath,
    open_releases: Callable[[], ReleaseCatalogue],
    *,
    published: Collection[str] = (),
) -> list[Finding]:
    """Return reads of attributes that existed when the reading package was released, but not now.

    `open_releases` returns the releases of packages, and is called only if there are candidates.
    Reads between `published` packages are skipped, because they were checked when the target was
    locked.
    """
    release_catalogue: ReleaseCatalogue | None = None
    findings: dict[tuple[str, int, str], Finding] = {}
    for read in _attribute_reads(package_set, path, published):
        # One finding suffices for a union of classes that lack the same attribute.
        key = (read.facts.module, read.line, read.subject.rpartition(".")[2])
        if key in findings:
            continue
        release_catalogue = release_catalogue or open_releases()
        if _had_attribute(package_set, release_catalogue, read):
            place = finding_place(package_set, read.facts, read.line, read.entry)
            if place is not None:
                findings[key] = create_finding(
                    package_set,
                    CHECK,
                    place,
                    relation=ConflictRelation.ATTRIBUTE,
                    other=read.other,
                    subject=read.subject,
                    text=f"reads {read.subject}, which is no longer in {read.other} "
                    f"{package_set.version(read.other)}",
                    error=True,
                )
    return list(findings.values())


def _had_attribute(
    package_set: PackageSet, release_catalogue: ReleaseCatalogue, read: AttributeRead
) -> bool:
    """Return whether the attribute existed when the reading package's release was uploaded."""
    release = release_catalogue.release(read.own, package_set.version(read.own) or "0")
    then = newest_at_time(
        release_catalogue.package_releases(read.other),
        release.upload_time if release is not None else None,
    )
    if release is None or then is None:
        return False
    evidence = Evidence(
        relation=ConflictRelation.ATTRIBUTE,
        package=read.own,
        version=str(release.version),
        other=read.other,
        subject=read.subject,
    )
    return lacks_item(release_catalogue, evidence, then) is False


def _attribute_reads(
    package_set: PackageSet, path: MainPath, published: Collection[str]
) -> Iterator[AttributeRead]:
    for facts in path.module_facts(package_set):
        for fact in facts.attributes:
            yield from _resolve_read(package_set, path, facts, fact, published)


def _resolve_read(
    package_set: PackageSet,
    path: MainPath,
    facts: ModuleFacts,
    fact: Attribute,
    published: Collection[str],
) -> Iterator[AttributeRead]:
    how = (
        path.reached(facts.module, module_scopes(facts).scope_runner(fact.scope))
        if fact.receiver
        else None
    )
    if how is None or how.level >= Level.REMOTE:
        return
    course = judge_guards(package_set, fact.guards)
    if (
        not course.runs
        or not course.clear
        or course.catches_error(*ATTRIBUTE)
        or fact.expression in course.asked
    ):
        return
    package, name = package_set.owner(facts.module), fact.expression.rpartition(".")[2]
    for path_to, holder in _classes(package_set, facts, fact.receiver, fact.scope):
        other = package_set.owner(holder.home.module) if holder.home is not None else None
        if (
            package is None
            or other is None
            or other == package
            or other not in policy.load_policy().walk
        ):
            continue
        if package in published and other in published:
            continue
        open_ended = classes.find_member(package_set, holder, name).state == "unknown"
        if (
            open_ended
            and never_mentions(package_set, holder, name)
            and not _defines_attribute(package_set, other, name)
        ):
            yield AttributeRead(facts, fact.line, how.entry, package, other, f"{path_to}.{name}")


def _defines_attribute(package_set: PackageSet, package: str, name: str) -> bool:
    roots = {module.partition(".")[0] for module in package_set.modules_of(package)}
    return any(
        defines_name(package_set.wheels[package].text(root).source, name) for root in sorted(roots)
    )


def defines_name(source: bytes, name: str) -> bool:
    """Return whether `source` defines, assigns or quotes `name`."""
    plain = name.encode()
    word = re.escape(plain)
    given = re.compile(rb"(?<=def )%b\b|\b%b\b\s*[:=]|(?<=[\"'])%b[\"']" % (word, word, word))
    at = source.find(plain)
    while at >= 0:
        if given.match(source, at):
            return True
        at = source.find(plain, at + 1)
    return False


def _classes(
    package_set: PackageSet, facts: ModuleFacts, receiver: str, scope: str
) -> Iterator[tuple[str, LookupResult]]:
    """Yield path and class for each possible class of a receiver.

    A receiver whose type is a union has several classes.
    """
    lookup_result = receivers.receiver_class(package_set, facts, receiver, scope=scope)
    text, home = receiver, facts
    named = classes.resolve_expression(package_set, facts, receiver.removesuffix("()"), scope=scope)
    if isinstance(lookup_result.definition, Class):
        if named.trace:
            yield named.trace[0].lstrip("*").replace(":", "."), lookup_result
        return
    if isinstance(named.definition, AssignedName) and named.home is not None:
        text, home, scope = named.definition.value, named.home, ""
    for part in union_parts(text):
        if part != receiver:
            yield from _classes(package_set, home, part, scope)


def union_parts(text: str) -> list[str]:
    """Return the members of a union annotation, with or without quotes.

    Examples are "Union[A, B[C]]" and "A | None".
    """
    text = text.strip().strip("\"'")
    union = _UNION.fullmatch(text)
    inner = union[1] if union is not None else text
    depth, members = 0, [""]
    for letter in inner:
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and letter in ",|":
            members.append("")
        else:
            members[-1] += letter
    names_of = [part.strip().strip("\"'") for part in members]
    return [part for part in names_of if part and part != "None"]
