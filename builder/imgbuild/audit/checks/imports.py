"""The check `imports`: modules and names of other packages that do not exist.

Input: a world and its main path. Output: findings; an error where the main path fails, a note
where only a corner does.
"""

from __future__ import annotations

from imgbuild.audit.checks.findings import finding, ordered, place_of
from imgbuild.audit.main_path.closure import Level, MainPath, Reached
from imgbuild.audit.main_path.guards import IMPORT, MISSING, Course, judge
from imgbuild.audit.names import search
from imgbuild.audit.names.scopes import scopes
from imgbuild.audit.packages.views import Surroundings
from imgbuild.audit.source.facts import Import, ModuleFacts
from imgbuild.report import Finding, Relation

CHECK = "imports"


def check(world: Surroundings, path: MainPath) -> list[Finding]:
    """All imports across packages that fail in this world."""
    world = path.view(world)
    found: list[Finding] = []
    for module in path.modules():
        facts = world.module(module)
        if isinstance(facts, ModuleFacts):
            found.extend(_of_module(world, path, facts))
    return ordered(found)


def _of_module(world: Surroundings, path: MainPath, facts: ModuleFacts) -> list[Finding]:
    found = []
    here = scopes(facts)
    root = facts.module.partition(".")[0]
    for line in facts.imports:
        if line.module.partition(".")[0] == root:
            continue
        how = path.reached(facts.module, here.runner(line.scope))
        one = _of_import(world, facts, line, how)
        if one is not None:
            found.append(one)
    return found


def _of_import(
    world: Surroundings, facts: ModuleFacts, line: Import, how: Reached | None
) -> Finding | None:
    """What is wrong with one import, if anything.

    A missing package is of interest where a module needs it at its top, without conditions: what
    asks first, or imports it in a function, is written for those who have it.
    """
    course = judge(world, line.guards)
    if not course.runs:
        return None
    problem = _problem(world, facts, line)
    if problem is None:
        return None
    relation, other, subject, text = problem
    place = place_of(world, facts, line.line, how.entry if how else "")
    if place is None or other == place.package:
        return None
    top = not scopes(facts).runner(line.scope)
    caught = course.catches(*(IMPORT if relation is Relation.NAME else MISSING))
    if relation is Relation.PACKAGE and (caught or not top or not course.certain):
        return None
    error = not caught and _fails(how, course, relation, top=top)
    return finding(
        world,
        CHECK,
        place,
        relation=relation,
        other=other,
        subject=subject,
        text=text,
        error=error,
    )


def _fails(how: Reached | None, course: Course, relation: Relation, *, top: bool) -> bool:
    """Whether the main path itself breaks here.

    A missing package must surely lie on it. A function that imports something for itself, and runs
    in some cases only, does so to spare the other cases.
    """
    if how is None or not course.clear:
        return False
    if relation is Relation.PACKAGE:
        return how.level is Level.CERTAIN
    return how.level <= (Level.REMOTE if top else Level.LIKELY)


def _problem(
    world: Surroundings, facts: ModuleFacts, line: Import
) -> tuple[Relation, str, str, str] | None:
    """What is wrong with an import: relation, other package, subject, text."""
    root = line.module.partition(".")[0]
    if world.exists(line.module) is False:
        other = world.owner(line.module) or ""
        if not other:
            if root == "__main__" or _is_vendored(world, facts, root):
                return None
            missing = line.module if world.exists(root) else root
            text = f"imports {line.module}, which no package of this world brings"
            return Relation.PACKAGE, "", missing, text
        if world.module(line.module) is not None:
            return None
        text = f"imports {line.module}, which {other} {world.version(other)} does not have"
        return Relation.MODULE, other, line.module, text
    if not line.name or line.name == "*":
        return None
    found = search.lookup(world, line.module, line.name)
    if found.state != "absent":
        return None
    other = world.owner(line.module) or ""
    version = world.version(other)
    if version is None:
        return None
    text = f"imports {line.name} from {line.module}, which {other} {version} does not have there"
    return Relation.NAME, other, f"{line.module}:{line.name}", text


def _is_vendored(world: Surroundings, facts: ModuleFacts, root: str) -> bool:
    """Whether the importing package carries `root` in a folder that it adds to the path itself."""
    package = world.owner(facts.module)
    modules = world.modules_of(package) if package is not None else ()
    return any(f".{root}." in f"{module}." for module in modules)
