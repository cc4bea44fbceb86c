"""Names that a module's `__getattr__` rejects by a table (separate: reads the sources of wheels).

numpy 2 has `__expired_attributes__` with the replacement of each removed name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.locate import CodeTree
from imgbuild.audit.code.model import CodeFinding
from imgbuild.audit.main_path.guards import ATTRIBUTE, IMPORT, judge
from imgbuild.audit.source.facts import Attribute, Call, Import, ModuleFacts, import_target
from imgbuild.audit.source.text import string
from imgbuild.errors import FetchFailed
from imgbuild.report import Evidence, Relation, Severity
from imgbuild.system.syntax import parse_source

REJECTED = "IMG101"
_ADVICE = 160  # characters of a table's text
_INSTEAD = re.compile(r"`?(?:np|numpy)\.(\w+)`?")
Table = Mapping[str, str]  # rejected name → the advice of the package


def check(code: CodeSet, modules: Iterable[str]) -> Iterator[CodeFinding]:
    """The uses of such names in `modules` of the user."""
    tables: dict[str, Table] = {}
    for name in modules:
        facts = code.module(name)
        if isinstance(facts, ModuleFacts):
            yield from _of_module(code, facts, code.code[name].file, name, tables)


def _of_module(
    code: CodeSet, facts: ModuleFacts, file: str, name: str, tables: dict[str, Table]
) -> Iterator[CodeFinding]:
    text = code.code[name]
    tree = CodeTree(text)
    for fact, module, used in _uses(facts):
        package = code.owner(module)
        if package is None or package == CODE:
            continue
        if module not in tables:
            tables[module] = _table(code, package, module)
        if used not in tables[module]:
            continue
        course = judge(code, fact.guards)
        errors = IMPORT if isinstance(fact, Import) else ATTRIBUTE
        if not course.runs or course.catches(*errors) or course.asked:
            continue
        version = code.version(package) or ""
        evidence = Evidence(
            relation=Relation.NAME,
            package="",
            version="",
            other=package,
            other_version=version,
            subject=f"{module}:{used}",
            file=file,
            line=fact.line,
        )
        line, column = tree.place(evidence)
        advice = tables[module][used]
        match = _INSTEAD.search(advice)
        yield text.finding(
            line,
            column,
            code=REJECTED,
            severity=Severity.ERROR if course.clear else Severity.WARNING,
            message=f"uses {module}.{used}, which {package} {version} does not have",
            instead=match[1] if match else "",
            remedy=advice,
        )


def _uses(facts: ModuleFacts) -> Iterator[tuple[Import | Call | Attribute, str, str]]:
    """The uses of names of modules that are imported under one name: use, module, name."""
    bound: dict[str, set[str]] = {}
    for line in facts.imports:
        if line.name not in ("", "*"):
            yield line, line.module, line.name
        module, name = import_target(line)
        bound.setdefault(line.bound, set()).add(f"{module}.{name}" if name else module)
    reads: tuple[Call | Attribute, ...] = (*facts.calls, *facts.attributes)
    for fact in reads:
        expression = fact.callee if isinstance(fact, Call) else fact.expression
        first, *rest = expression.split(".")
        modules = bound.get(first, set())
        if rest and len(modules) == 1 and not fact.receiver:
            yield fact, next(iter(modules)), rest[0]


def _table(code: CodeSet, package: str, module: str) -> Table:
    """The names that `__getattr__` of a module rejects."""
    facts = code.module(module)
    tree = _tree(code, package, facts)
    if not isinstance(facts, ModuleFacts) or tree is None:
        return {}
    rejected: dict[str, str] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "__getattr__":
            for name in _raising(function):
                rejected |= _literal(tree, name)
                for line in facts.imports:
                    if line.bound == name and line.name:
                        other = _tree(code, package, code.module(line.module))
                        rejected |= _literal(other, line.name) if other is not None else {}
    return rejected


def _tree(code: CodeSet, package: str, facts: object) -> ast.Module | None:
    if not isinstance(facts, ModuleFacts) or not (facts.dynamic or facts.assigned):
        return None
    try:
        source = code.read(package, facts.file)
        return parse_source(source) if source is not None else None
    except (SyntaxError, ValueError, RecursionError, MemoryError, FetchFailed):
        return None


def _raising(function: ast.FunctionDef) -> Iterator[str]:
    """The tables X of `if attr in X: raise AttributeError(…)`."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Compare)
            and isinstance(node.test.ops[0], ast.In)
            and isinstance(node.test.comparators[0], ast.Name)
            and isinstance(node.body[0], ast.Raise)
        ):
            yield node.test.comparators[0].id


def _literal(tree: ast.Module, name: str) -> dict[str, str]:
    """The keys and texts of the dictionary assigned to `name`, if it is a literal."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {
                key: (string(value) or "")[:_ADVICE]
                for item, value in pairs
                if item is not None and (key := string(item))
            }
    return {}
