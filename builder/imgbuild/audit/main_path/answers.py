"""Evaluates expressions such as `is_vllm_available("0.8")` and `HAS_RAY` in a package set."""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary

from imgbuild.audit.main_path.evaluation import Evaluator
from imgbuild.audit.main_path.values import CallFrame, value_truth
from imgbuild.audit.names import classes
from imgbuild.audit.names.lookup import module_index
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Class, Function, ModuleFacts
from imgbuild.audit.source.tree import walk_tree
from imgbuild.system.syntax import parse_expression

# Package set → its evaluator.
_evaluators: WeakKeyDictionary[ImportablePackages, Evaluator] = WeakKeyDictionary()


def package_set_evaluator(package_set: ImportablePackages) -> Evaluator:
    """Return the cached evaluator of a package set."""
    if package_set not in _evaluators:
        _evaluators[package_set] = Evaluator(package_set)
    return _evaluators[package_set]


def answer_expression(package_set: ImportablePackages, subject: str) -> bool | None:
    """Return whether "module:scope:expression" is true in this package set, or None if unknown.

    The result is cached. `...` represents arguments that are not literals.
    """
    memory = package_set_evaluator(package_set)
    if subject not in memory.subjects:
        memory.subjects[subject] = None  # of an expression that depends on itself
        memory.subjects[subject] = _answer(memory, subject)
    return memory.subjects[subject]


def _answer(memory: Evaluator, subject: str) -> bool | None:
    module, scope, text = subject.split(":", 2)
    facts = memory.package_set.module(module)
    node = parse_subject(text)
    if not isinstance(facts, ModuleFacts) or node is None:
        return None
    names = sorted({part.id for part in walk_tree(node) if isinstance(part, ast.Name)})
    bound = module_index(facts).top
    if not scope and (facts.broken or any(len(bound.get(name, ())) > 1 for name in names)):
        source = memory.source(module)
        if source is None or not source.has_single_values(node):
            return None
    frame = CallFrame(module)
    places = []
    for name in names:
        lookup = classes.resolve_expression(memory.package_set, facts, name, scope=scope)
        if lookup.state == "defined":
            frame.names[name] = memory.value_of(lookup)
        places.append(_place(lookup) or f"{module}:{scope}:{name}")
    key = f"{' '.join(places)} {text}"
    if key not in memory.answers:  # a thousand modules have the same condition
        memory.answers[key] = None
        memory.answers[key] = _truth(memory, node, frame)
    return memory.answers[key]


def _place(lookup: LookupResult) -> str:
    definition, home = lookup.definition, lookup.home
    if isinstance(definition, ModuleFacts):
        return definition.module
    line = definition.line if isinstance(definition, (Class, Function)) else 0
    return f"{home.module}:{line}" if home is not None and line else ""


def _truth(memory: Evaluator, node: ast.expr, frame: CallFrame) -> bool | None:
    state = None
    for end in memory.each_outcome(lambda run: run.value(node, frame)):
        if end is not None and end.raised:
            continue
        # Most are unknown after their first outcome.
        value = value_truth(end.value) if end is not None else None
        if value is None or (state is not None and value != state):
            return None
        state = value
    return state


def parse_subject(text: str) -> ast.expr | None:
    """Return the syntax tree of an expression, or None if it cannot be parsed."""
    try:
        return parse_expression(text)
    except SyntaxError:
        return None
