"""Finds locked targets that have a missing name, and the name that replaces it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

import msgspec
from packaging.version import Version

from imgbuild.audit.names import classes, releases, signatures
from imgbuild.audit.names.lookup import look_up, module_index
from imgbuild.audit.names.model import CallSignature, LookupResult
from imgbuild.audit.names.releases import Existence, renamed_parameter
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Class, Function, ModuleFacts
from imgbuild.errors import FetchFailed
from imgbuild.matrix.notes import nearest_choice
from imgbuild.report import ConflictRelation, Evidence

TYPO_SIMILARITY = 0.85  # similarity of a name to a suggestion
MOST_SETS = 12  # versions of a package that are looked at
_RENAMING_DECORATOR = re.compile(
    r"deprecate_kwarg\(\s*[\"'](\w+)[\"'],(?:.*,)?\s*new_name=[\"'](\w+)[\"']", re.DOTALL
)


class OtherSet(msgspec.Struct, frozen=True):
    """The package set of a target, with the facts that imgbuild contains."""

    target: str
    versions: Mapping[str, str]
    open: Callable[[], ImportablePackages]


class Replacement(msgspec.Struct, frozen=True):
    """The replacement of a missing name. `since` is the first version without the name."""

    instead: str = ""
    since: str = ""
    targets: tuple[str, ...] = ()
    having: str = ""  # the nearest version with the name, or with `instead`


def find_replacement(
    package_set: ImportablePackages, evidence: Evidence, others: Sequence[OtherSet]
) -> Replacement:
    """Return the replacement for the name missing in `evidence`.

    The result also lists the targets that have the missing name.
    """
    package = evidence.other
    having: dict[str, list[str]] = {}
    lacking: list[str] = [evidence.other_version] if evidence.other_version else []
    new_name = ""
    published = published_existence(evidence)
    opened_sets: dict[str, tuple[OtherSet, ImportablePackages]] = {}
    for other in _sort_by_version_distance(package, evidence, others):
        version = other.versions.get(package, "")
        if version in having:
            having[version].append(other.target)
            continue
        if version and version in lacking:
            continue
        if len(having) + len(lacking) > MOST_SETS:
            break
        opened = other.open()
        opened_sets.setdefault(version, (other, opened))
        # The tables have parameters, of which not all are attributes.
        is_attribute = evidence.relation is ConflictRelation.ATTRIBUTE
        if published is None or is_attribute or not published.covers_version(version):
            has = _has_name(opened, evidence)
        else:
            has = published.allows_version(version)
        if has:
            having[version] = [other.target]
            if Version(version or "0") < Version(evidence.other_version or "0"):
                new_name = new_name or _renamed_parameter(package_set, opened, evidence)
            new_name = new_name or _parameter_from_decorator(opened, package_set, evidence)
        elif has is False and version:
            lacking.append(version)
    near = next(iter(having), "")
    instead = (
        _parameter_from_table(package_set, evidence)
        or _parameter_from_decorator(package_set, package_set, evidence)
        or new_name
        or _most_similar_name(package_set, evidence, nearly=bool(near))
    )
    if not near and not new_name:
        spelled = _corrected_parameter(evidence, instead, opened_sets)
        if spelled is not None:
            return spelled
    since = ""
    if near and package:
        newest = max(map(Version, having))
        later = [Version(version) for version in lacking if Version(version) > newest]
        since = str(min(later)) if later else str(min(map(Version, having)))
    return Replacement(instead, since, tuple(having[near]) if near else (), near)


def published_existence(evidence: Evidence) -> Existence | None:
    """Return the releases that have a name, according to the release table.

    Return None if this release may have the name.
    """
    subject, existence = evidence.subject, None
    match evidence.relation:
        case ConflictRelation.KEYWORD:
            path, _, keyword = subject.removesuffix(")").partition("(")
            owner = path.rpartition(".")[2].rpartition(":")[2]
            existence = releases.argument_existence(owner, keyword)
        case ConflictRelation.NAME if ":" in subject:
            existence = releases.name_existence(*subject.split(":", 1))
        case ConflictRelation.MODULE:
            existence = releases.module_existence(subject)
        case ConflictRelation.ATTRIBUTE:
            owner, _, name = subject.replace(":", ".").rpartition(".")
            existence = releases.member_existence(owner.rpartition(".")[2], name)
    if existence is None or existence.package != evidence.other:
        return None
    return existence if existence.change(evidence.other_version) else None


def _corrected_parameter(
    evidence: Evidence, here: str, opened: Mapping[str, tuple[OtherSet, ImportablePackages]]
) -> Replacement | None:
    """Return a parameter of another version that is the likely correction of a typo.

    The parameter must be more similar to the mistyped name than all parameters of `here`.
    """
    path, _, keyword = evidence.subject.removesuffix(")").partition("(")
    if evidence.relation is not ConflictRelation.KEYWORD:
        return None
    best = SequenceMatcher(None, keyword, here).ratio()
    for version, (other, package_set) in opened.items():
        signature = _signature(package_set, path)
        names = [item.name for item in signature.parameters] if signature is not None else []
        name = nearest_choice(keyword, names) or ""
        if SequenceMatcher(None, keyword, name).ratio() > max(best, TYPO_SIMILARITY):
            return Replacement(instead=name, targets=(other.target,), having=version)
    return None


def _sort_by_version_distance(
    package: str, evidence: Evidence, others: Sequence[OtherSet]
) -> Iterable[OtherSet]:
    """Return the targets with the package, sorted by the distance of its version."""
    if not package:
        return others
    fitting = [other for other in others if package in other.versions]
    versions = sorted({Version(other.versions[package]) for other in fitting})
    here = Version(evidence.other_version)

    def _distance(other: OtherSet) -> int:
        between = sorted((here, Version(other.versions[package])))
        return sum(between[0] <= version <= between[1] for version in versions)

    return sorted(fitting, key=_distance)


def resolve_path(package_set: ImportablePackages, path: str) -> LookupResult:
    """Return the object at a dotted path. As many components as possible are modules."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        module = package_set.module(".".join(parts[:end]))
        if isinstance(module, ModuleFacts):
            result = LookupResult(state="defined", definition=module, home=module)
            for part in parts[end:]:
                result = classes.find_member(package_set, result, part)
                if result.state != "defined":
                    break
            return result
    return LookupResult(state="unknown")


def has_member(package_set: ImportablePackages, path: str, name: str) -> bool:
    """Whether the class at `path` has a member, according to the cached facts."""
    try:
        return (
            classes.find_member(package_set, resolve_path(package_set, path), name).state
            == "defined"
        )
    except FetchFailed:
        return False


def _has_name(package_set: ImportablePackages, evidence: Evidence) -> bool | None:
    """Whether a package set has the item missing in `evidence`.

    Return None if the cached facts do not show it.
    """
    subject = evidence.subject
    try:
        match evidence.relation:
            case ConflictRelation.PACKAGE | ConflictRelation.MODULE:
                return package_set.exists(subject)
            case ConflictRelation.NAME if ":" in subject:
                state = look_up(package_set, *subject.split(":", 1)).state
                return None if state == "unknown" else state == "defined"
            case ConflictRelation.KEYWORD:
                path, _, keyword = subject.removesuffix(")").partition("(")
                signature = _signature(package_set, path)
                return None if signature is None else signature.accepts_keyword(keyword)
            case ConflictRelation.NAME | ConflictRelation.ATTRIBUTE:
                state = resolve_path(package_set, subject.replace(":", ".")).state
                return None if state == "unknown" else state == "defined"
    except FetchFailed:
        pass
    return None


def _signature(package_set: ImportablePackages, path: str) -> CallSignature | None:
    try:
        return signatures.find_signature(package_set, resolve_path(package_set, path))
    except FetchFailed:
        return None


def _renamed_parameter(
    here: ImportablePackages, other: ImportablePackages, evidence: Evidence
) -> str:
    """Return the parameter that replaces the missing one, based on its position in `other`."""
    path, _, keyword = evidence.subject.removesuffix(")").partition("(")
    if evidence.relation is not ConflictRelation.KEYWORD:
        return ""
    signatures_of = [_signature(each, path) for each in (here, other)]
    if signatures_of[0] is None or signatures_of[1] is None:
        return ""
    now, before = ([item.name for item in each.parameters] for each in signatures_of if each)
    new = [name for name in now if name not in before]
    if keyword not in before:
        return ""
    at = before.index(keyword)
    same_place = at < len(now) and now[:at][-1:] == before[:at][-1:]
    return now[at] if same_place and now[at] in new else ""


def _parameter_from_decorator(
    package_set: ImportablePackages, here: ImportablePackages, evidence: Evidence
) -> str:
    """Return the new name of a parameter, from a decorator of `here` that lists both names."""
    path, _, keyword = evidence.subject.removesuffix(")").partition("(")
    if evidence.relation is not ConflictRelation.KEYWORD:
        return ""
    signature = _signature(here, path)
    try:
        functions = _called_functions(package_set, path)
    except FetchFailed:
        return ""
    for function in functions:
        for text in function.decorators:
            match = _RENAMING_DECORATOR.search(text)
            if (
                match
                and match[1] == keyword
                and (signature is None or signature.accepts_keyword(match[2]))
            ):
                return match[2]
    return ""


def _called_functions(package_set: ImportablePackages, path: str) -> list[Function]:
    """Return the function at a path or, if it is a class, the constructors of its ancestors."""
    result = classes.follow_assignment(package_set, resolve_path(package_set, path))
    functions = [result.definition] if isinstance(result.definition, Function) else []
    if isinstance(result.definition, Class):
        for ancestor in classes.class_ancestors(package_set, result):
            if isinstance(ancestor.definition, Class) and ancestor.home is not None:
                members = module_index(ancestor.home).members
                inits = members.get(f"{ancestor.definition.name}.__init__", ())
                functions += [each for each in inits if isinstance(each, Function)]
    return functions


def _parameter_from_table(package_set: ImportablePackages, evidence: Evidence) -> str:
    """Return the new name of a parameter, from the table of renamed parameters.

    The signature must contain the new name.
    """
    if evidence.relation is ConflictRelation.ATTRIBUTE:
        path, _, old = evidence.subject.rpartition(".")
    elif evidence.relation is ConflictRelation.KEYWORD:
        path, _, old = evidence.subject.removesuffix(")").partition("(")
    else:
        return ""
    name = renamed_parameter(evidence.other, path.rpartition(".")[2], old)
    signature = _signature(package_set, path) if name else None
    names = [item.name for item in signature.parameters] if signature is not None else []
    is_attribute = evidence.relation is ConflictRelation.ATTRIBUTE
    return (
        name
        if name in names or (name and is_attribute and has_member(package_set, path, name))
        else ""
    )


def _most_similar_name(package_set: ImportablePackages, evidence: Evidence, *, nearly: bool) -> str:
    """Return the most similar existing name.

    With `nearly`, the name must be a likely correction. A name that exists in another version is
    not a typo.
    """
    name = _nearest_name(package_set, evidence)
    wrong = re.split(r"[.:(]", evidence.subject.removesuffix(")"))[-1]
    last = name.rpartition(".")[2]
    if last == wrong:
        return ""  # it is defined only under a condition that is false
    if name and nearly:
        return name if SequenceMatcher(None, wrong, last).ratio() >= TYPO_SIMILARITY else ""
    return name


def _nearest_name(package_set: ImportablePackages, evidence: Evidence) -> str:
    subject = evidence.subject
    match evidence.relation:
        case ConflictRelation.KEYWORD:
            path, _, keyword = subject.removesuffix(")").partition("(")
            signature = _signature(package_set, path)
            names = [item.name for item in signature.parameters] if signature else []
            return nearest_choice(keyword, names) or ""
        case ConflictRelation.NAME if ":" in subject:
            module, _, name = subject.partition(":")
            facts = package_set.module(module)
            if isinstance(facts, ModuleFacts):
                return nearest_choice(name, {*module_index(facts).top, *facts.lazy}) or ""
        case ConflictRelation.ATTRIBUTE:
            owner, _, name = subject.rpartition(".")
            names_of = classes.instance_attributes(package_set, resolve_path(package_set, owner))
            public = [each for each in names_of or () if not each.startswith("__")]
            return nearest_choice(name, public) or ""
        case ConflictRelation.MODULE:
            parent, _, name = subject.rpartition(".")
            package = package_set.owner(subject)
            if package is not None:
                modules = package_set.modules_of(package)
                return nearest_choice(subject, modules) or "" if parent and name else ""
    return ""
