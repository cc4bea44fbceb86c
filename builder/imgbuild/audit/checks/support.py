"""The check `support`: windows that packages declare in their code, and what they were built for.

Comes in: a world and its main path. Goes out: findings. What raises on the main path is an error,
what raises only for some data or in a corner is a note, what warns is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.audit.checks import support_files
from imgbuild.audit.checks.findings import Place, ordered, place_of
from imgbuild.audit.main_path.closure import Level, MainPath
from imgbuild.audit.main_path.guards import State, evaluate
from imgbuild.audit.main_path.policy import within
from imgbuild.audit.names.scopes import scopes
from imgbuild.audit.packages.package_set import World
from imgbuild.audit.source.comparisons import OPPOSITE
from imgbuild.audit.source.facts import Guard, ModuleFacts, Window
from imgbuild.report import Evidence, Finding, Relation, Severity

CHECK = "support"
_COMPARED = re.compile(r"(==|!=|\^=|!\^=)@(\w+)")
_CLAUSE = re.compile(r"(<=|>=|==|!=|<|>)([^,]+)")


def check(world: World, path: MainPath) -> list[Finding]:
    """All windows that this world lies outside of."""
    found: list[Finding] = []
    for module in path.modules():
        facts = world.module(module)
        if isinstance(facts, ModuleFacts):
            found += [
                one for window in facts.windows for one in _of_window(world, path, facts, window)
            ]
    for declared in support_files.declared(world):
        place = Place(
            declared.package, world.version(declared.package) or "", declared.file, declared.line
        )
        severity = Severity.ERROR if declared.raises else Severity.WARNING
        found.append(_finding(world, place, declared.other, declared.text, declared.spec, severity))
    return ordered(found)


def _of_window(
    world: World, path: MainPath, facts: ModuleFacts, window: Window
) -> Iterator[Finding]:
    about = window.guards[-1]
    other, version = package_of(world, about.subject)
    if version is None:
        return
    states = [state(world, guard) for guard in window.guards]
    if State.SKIPPED in states or states[-1] is not State.RUNS or _caught(window):
        return
    here = scopes(facts)
    runner = here.runner(window.scope)
    how = path.reached(facts.module, runner)
    sure = not {State.UNKNOWN, State.DATA} & set(states)
    sure = sure and how is not None and how.level < Level.REMOTE
    if window.outcome == "warn" and not sure:
        return
    if here.is_method(runner) and window.outcome == "raise":
        sure = sure and path.calls(facts.module, runner)
    place = place_of(world, facts, window.line, how.entry if how else "")
    if place is None or place.package == other:
        return
    severity = Severity.NOTE
    if sure:
        severity = Severity.ERROR if window.outcome == "raise" else Severity.WARNING
    spec = allowed(world, about)
    where = f"in {window.scope}" if window.scope else "when it is imported"
    verb = f"raises {window.name}" if window.outcome == "raise" else "warns"
    text = f"{verb} {where} with {other} {version}" + (f": it wants {other}{spec}" if spec else "")
    if not sure and State.DATA in states:
        text += " (in some cases)"
    yield _finding(world, place, other, text, spec, severity)


def _caught(window: Window) -> bool:
    """Whether somebody around it catches what it raises."""
    if window.outcome == "warn":
        return False
    names = {window.name, "Exception", "BaseException", ""}
    if window.name == "ModuleNotFoundError":
        names.add("ImportError")
    caught = {
        name
        for guard in window.guards
        if guard.kind == "handled" and not guard.spec
        for name in re.split(r"[,\s|]+", guard.subject)
    }
    return not names.isdisjoint(caught)


def package_of(world: World, subject: str) -> tuple[str, str | None]:
    """The package that a guard means by its name or by what it is imported as, and its version."""
    version = world.version(subject)
    if version is not None:
        return subject.replace("_", "-"), version
    owner = world.owner(subject)
    return (owner or subject), (world.version(owner) if owner is not None else None)


def state(world: World, guard: Guard) -> State:
    """What `world` makes of a guard of a window."""
    if guard.kind == "version":
        version = package_of(world, guard.subject)[1]
        compared = _COMPARED.fullmatch(guard.spec)
        if compared is not None:
            return _compared(world, version, compared[1], compared[2])
        if guard.spec.startswith("!") and not guard.spec.startswith("!="):
            if version is None:
                return State.UNKNOWN
            return State.SKIPPED if within(version, guard.spec[1:]) else State.RUNS
    if guard.kind in ("unknown", "data"):
        asked = re.fullmatch(
            r"_?(?:has|is|have)_(\w+?)(?:_available|_installed)?\(\)", guard.subject
        )
        if asked is not None and package_of(world, asked[1])[1] is not None:
            return State.RUNS  # a predicate of the module itself, of a package that is there
    return evaluate(world, guard)


def _compared(world: World, version: str | None, sign: str, subject: str) -> State:
    other = package_of(world, subject)[1]
    if version is None or other is None:
        return State.UNKNOWN
    if sign.endswith("^="):
        same = version.startswith(Version(other).public)
    else:
        same = Version(version) == Version(other)
    return State.RUNS if same != sign.startswith("!") else State.SKIPPED


def allowed(world: World, guard: Guard) -> str:
    """The versions of its subject that a guard of a refusal leaves out; "" if no specifier can."""
    compared = _COMPARED.fullmatch(guard.spec)
    if compared is not None:
        version = package_of(world, compared[2])[1]
        return f"=={version}" if version is not None and compared[1].startswith("!") else ""
    if guard.spec.startswith("!") and not guard.spec.startswith("!="):
        return str(SpecifierSet(guard.spec[1:]))
    clause = _CLAUSE.fullmatch(guard.spec)
    return OPPOSITE[clause[1]] + clause[2] if clause is not None else ""


def _finding(
    world: World, place: Place, other: str, text: str, spec: str, severity: Severity
) -> Finding:
    version = world.version(other) or ""
    message = f"{place.package} {place.version} {text}"
    if severity is Severity.ERROR and place.entry:
        message += f" (used by {place.entry})"
    wanted = f"{other}{spec}" if spec else f"another {other}"
    return Finding(
        check=CHECK,
        severity=severity,
        message=message,
        where=str(place),
        remedy=f"choose {wanted}, or another version of {place.package}",
        evidence=Evidence(
            relation=Relation.WINDOW,
            package=place.package,
            version=place.version,
            file=place.file,
            line=place.line,
            other=other,
            other_version=version,
            subject=f"{other} {version}",
            spec=spec,
        ),
    )
