"""Whether a call is true in a package set: `is_vllm_available("0.8")`; see `evaluation`."""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary

from imgbuild.audit.main_path.evaluation import Evaluation, Evaluator
from imgbuild.audit.main_path.values import CallFrame, FunctionValue, truth
from imgbuild.audit.names import search
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Function, ModuleFacts

# Package set → its evaluator.
_evaluators: WeakKeyDictionary[ImportablePackages, Evaluator] = WeakKeyDictionary()


def evaluator(package_set: ImportablePackages) -> Evaluator:
    """The evaluator of a package set, cached."""
    if package_set not in _evaluators:
        _evaluators[package_set] = Evaluator(package_set)
    return _evaluators[package_set]


def answer(package_set: ImportablePackages, asked: str) -> bool | None:
    """Whether "module:scope:call" is true in this package set, cached; None if that is not known.

    `...` stands for arguments that are not literals.
    """
    one = evaluator(package_set)
    if asked not in one.asked:
        one.asked[asked] = None  # while it is being found
        one.asked[asked] = _answer(one, asked)
    return one.asked[asked]


def _answer(one: Evaluator, asked: str) -> bool | None:
    module, scope, text = asked.split(":", 2)
    facts = one.package_set.module(module)
    if not isinstance(facts, ModuleFacts):
        return None
    callee, _, given = text.partition("(")
    found = search.resolve(one.package_set, facts, callee, scope=scope)
    if found.state != "defined" or not isinstance(found.definition, Function):
        return None
    key = f"{found.home.module if found.home else ''} {found.definition.line} {given}"
    if key not in one.answers:  # the same function is asked in a thousand places
        called, call = one.value_of(found), _parsed(text)
        one.answers[key] = None
        if isinstance(called, FunctionValue) and call is not None:
            one.answers[key] = _truth(one, module, called, call)
    return one.answers[key]


def _truth(one: Evaluator, module: str, called: FunctionValue, call: ast.Call) -> bool | None:
    def _ask(run: Evaluation) -> object:
        frame = CallFrame(module)
        frame.names[""] = called  # as it is called at other places, too
        renamed = ast.Call(ast.Name("", ast.Load()), call.args, call.keywords)
        return run.value(renamed, frame)

    ended = [end for end in one.outcomes(_ask) if not end.raised]
    states = {truth(end.value) for end in ended}
    return states.pop() if len(states) == 1 else None


def _parsed(text: str) -> ast.Call | None:
    try:
        found = ast.parse(text if text.endswith(")") else f"{text}()", mode="eval").body
    except SyntaxError:
        return None
    return found if isinstance(found, ast.Call) else None
