"""Evaluates expressions: names, calls, attributes and comprehensions (see `evaluation`)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from imgbuild.audit.main_path import operations
from imgbuild.audit.main_path.interpreter import Interpreter
from imgbuild.audit.main_path.intrinsics import DISTRIBUTIONS, INTRINSICS, LARGEST_VALUE, METHODS
from imgbuild.audit.main_path.values import (
    UNKNOWN,
    BoundValueMethod,
    CallFrame,
    EvaluatedError,
    FunctionValue,
    ModuleValue,
    ObjectInstance,
    OpaqueObject,
    VersionText,
    count_items,
    is_fully_known,
    is_key,
    value_truth,
)

_LOGS = frozenset(
    (
        *("debug", "info", "warning", "error", "exception", "critical", "log", "warn"),
        *("warning_once", "info_once", "debug_once", "warn_once", "advice", "warning_advice"),
    )
)
# Expressions that create new values, whose size counts as steps.
_MAKERS = frozenset(
    (
        *(ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.Subscript, ast.JoinedStr),
        *(ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.Call),
    )
)


class ExpressionValues(Interpreter):
    """Evaluates the expressions of an evaluation."""

    def condition_holds(self, test: ast.expr, frame: CallFrame) -> bool:
        """Return whether a condition is true. An unknown condition is true in some evaluations."""
        truth_value = value_truth(self.value(test, frame))
        return self.choose_branch() if truth_value is None else truth_value

    def value(self, node: ast.expr, frame: CallFrame) -> object:
        """Return the value of an expression."""
        self.count_steps()
        reader = self._readers.get(type(node))
        if reader is None:
            return UNKNOWN
        value = reader(self, node, frame)
        if type(node) in _MAKERS:
            self.count_steps(count_items(value, LARGEST_VALUE))
        return value

    def _constant_value(self, node: ast.Constant, _: CallFrame) -> object:
        return UNKNOWN if node.value is ... else node.value

    def _name_value(self, node: ast.Name, frame: CallFrame) -> object:
        return self.read(node.id, frame)

    def _attribute_value(self, node: ast.Attribute, frame: CallFrame) -> object:
        return self.attribute(self.value(node.value, frame), node.attr)

    def _sequence_value(self, node: ast.Tuple | ast.List | ast.Set, frame: CallFrame) -> object:
        items: list[object] = []
        for item in node.elts:
            value = self.value(item.value if isinstance(item, ast.Starred) else item, frame)
            if not isinstance(item, ast.Starred):
                items.append(value)
            elif isinstance(value, (tuple, list)):
                items.extend(value)
            else:
                return UNKNOWN
        if isinstance(node, ast.Tuple):
            return tuple(items)
        if isinstance(node, ast.List):
            return items
        return frozenset(items) if all(map(is_key, items)) else UNKNOWN

    def _dict_value(self, node: ast.Dict, frame: CallFrame) -> object:
        mapping: dict[object, object] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            name = self.value(key, frame) if key is not None else UNKNOWN
            if not is_key(name):
                return UNKNOWN
            mapping[name] = self.value(item, frame)
        return mapping

    def _boolean_value(self, node: ast.BoolOp, frame: CallFrame) -> object:
        every = isinstance(node.op, ast.And)
        value: object = UNKNOWN
        for part in node.values:
            value = self.value(part, frame)
            truth_value = value_truth(value)
            if truth_value is None and part is not node.values[-1]:
                truth_value = self.choose_branch()
                value = OpaqueObject(truth_value)
            if truth_value is not None and truth_value != every:
                return value
        return value

    def _unary_value(self, node: ast.UnaryOp, frame: CallFrame) -> object:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth_value = value_truth(value)
            return UNKNOWN if truth_value is None else not truth_value
        if isinstance(node.op, ast.USub) and type(value) in (int, float):
            return -value  # type: ignore[operator]
        return UNKNOWN

    def _binary_value(self, node: ast.BinOp, frame: CallFrame) -> object:
        return self.apply_operator(
            node.op, self.value(node.left, frame), self.value(node.right, frame)
        )

    def apply_operator(self, sign: ast.AST, left: object, right: object) -> object:
        """Return the result of `left sign right`, where `sign` is an operator."""
        return operations.apply_operator(sign, left, right)

    def _comparison_value(self, node: ast.Compare, frame: CallFrame) -> object:
        left = self.value(node.left, frame)
        answer: object = True
        for sign, item in zip(node.ops, node.comparators, strict=True):
            right = self.value(item, frame)
            answer = self._compare_values(sign, left, right)
            if value_truth(answer) is False:
                return answer
            if answer == UNKNOWN:
                return UNKNOWN
            left = right
        return answer

    def _compare_values(self, sign: ast.cmpop, left: object, right: object) -> object:
        if isinstance(sign, (ast.Is, ast.IsNot)):
            same = operations.is_identical(left, right)
            return UNKNOWN if same is None else same == isinstance(sign, ast.Is)
        if isinstance(sign, (ast.In, ast.NotIn)):
            is_contained = operations.is_contained(left, right)
            return UNKNOWN if is_contained is None else is_contained == isinstance(sign, ast.In)
        if ModuleValue("sys.version_info") in (left, right):
            return self._python_version_value(sign, left, right)
        return self.apply_operator(sign, left, right)

    def _python_version_value(self, sign: ast.cmpop, left: object, right: object) -> object:
        """Return the result of a comparison such as `sys.version_info >= (3, 10)`.

        At most two numbers can be compared.
        """
        if not isinstance(right, tuple) or not is_fully_known(right) or len(right) > 2:
            return UNKNOWN
        version = self.attribute(left, "[:2]")
        if not isinstance(version, tuple):
            return UNKNOWN
        same = version[: len(right)] == right
        if isinstance(sign, (ast.Lt, ast.LtE)):  # version_info has more items
            return version < right and not same
        if isinstance(sign, (ast.Gt, ast.GtE)):
            return version > right or same
        return isinstance(sign, ast.NotEq)

    def _conditional_value(self, node: ast.IfExp, frame: CallFrame) -> object:
        return self.value(
            node.body if self.condition_holds(node.test, frame) else node.orelse, frame
        )

    def _named_expression_value(self, node: ast.NamedExpr, frame: CallFrame) -> object:
        frame.names[node.target.id] = self.value(node.value, frame)
        return frame.names[node.target.id]

    def _subscript_value(self, node: ast.Subscript, frame: CallFrame) -> object:
        owner = self.value(node.value, frame)
        if owner == ModuleValue("sys.version_info"):
            version = self.attribute(owner, "[:2]")
            cut = ast.unparse(node.slice)
            if not isinstance(version, tuple) or cut not in ("0", "1", ":2"):
                return UNKNOWN
            return version if cut == ":2" else version[int(cut)]
        if isinstance(node.slice, ast.Slice):
            return self._slice_value(node.slice, owner, frame)
        key = self.value(node.slice, frame)
        if owner == ModuleValue(DISTRIBUTIONS):
            names = INTRINSICS[f"{DISTRIBUTIONS}.get"](self, (key,), {})
            if names is None:
                raise EvaluatedError(KeyError.__name__)
            if names == UNKNOWN:
                self.may_raise()
            return names
        if not is_fully_known(key) or not isinstance(owner, (str, tuple, list, dict)):
            self.may_raise()
            return UNKNOWN
        try:
            return owner[key]  # type: ignore[call-overload, index]
        except (LookupError, TypeError) as error:
            raise EvaluatedError(type(error).__name__, certain=False) from None

    def _slice_value(self, node: ast.Slice, owner: object, frame: CallFrame) -> object:
        ends = []
        for part in (node.lower, node.upper, node.step):
            end = None if part is None else self.value(part, frame)
            if end is not None and not isinstance(end, int):
                return UNKNOWN
            ends.append(end)
        if not isinstance(owner, (str, tuple, list)):
            return UNKNOWN
        if ends[-1] == 0:
            raise EvaluatedError(ValueError.__name__, certain=False)
        return owner[slice(*ends)]

    def _text_value(self, node: ast.JoinedStr, frame: CallFrame) -> object:
        texts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.value(part.value, frame)
                if (
                    part.format_spec is not None
                    or part.conversion != -1
                    or not is_fully_known(value)
                ):
                    return UNKNOWN
                try:
                    texts.append(str(value))
                except ValueError:  # an integer with too many digits
                    return UNKNOWN
            else:
                texts.append(str(self.value(part, frame)))
        return "".join(texts)

    def _comprehension_value(
        self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp, frame: CallFrame
    ) -> object:
        items = self.value(node.generators[0].iter, frame)
        target = node.generators[0].target
        if len(node.generators) != 1 or node.generators[0].is_async:
            return UNKNOWN
        if not isinstance(items, (tuple, list, dict, frozenset)):
            return UNKNOWN
        values = []
        for item in items:
            inner = CallFrame(frame.module, frame)
            self.assign_target(target, item, inner)
            if all(self.condition_holds(test, inner) for test in node.generators[0].ifs):
                values.append(self.value(node.elt, inner))
        if isinstance(node, ast.SetComp):
            return frozenset(values) if all(map(is_key, values)) else UNKNOWN
        return values

    def _dict_comprehension(self, node: ast.DictComp, frame: CallFrame) -> object:
        pairs = ast.ListComp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)
        items = self._comprehension_value(pairs, frame)
        if not isinstance(items, list) or not all(is_key(key) for key, _ in items):
            return UNKNOWN
        return dict(items)

    def assign_target(self, target: ast.expr, value: object, frame: CallFrame) -> None:
        """Bind the names in `target`."""
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            count = len(target.elts)
            items: Sequence[object] = [UNKNOWN] * count
            plain = not any(isinstance(element, ast.Starred) for element in target.elts)
            if plain and isinstance(value, (tuple, list)) and len(value) == count:
                items = value
            for element, item in zip(target.elts, items, strict=True):
                self.assign_target(element, item, frame)
        elif isinstance(target, ast.Starred):
            self.assign_target(target.value, UNKNOWN, frame)
        elif isinstance(target, ast.Subscript):
            if isinstance(target.value, ast.Call):  # vars(self)["name"] = …
                self.value(target.value, frame)
            self.invalidate_value(target.value, frame)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, frame)
            if isinstance(owner, ObjectInstance):
                self.assign_attribute(owner, target.attr, value)

    def invalidate_value(self, node: ast.expr, frame: CallFrame) -> None:
        """Mark a collection that may be changed as unknown, under all names that refer to it."""
        while isinstance(node, (ast.Starred, ast.Subscript)):
            node = node.value
        holder = frame.binding_frame(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or holder is None:
            return
        value = holder.names[node.id]
        if not isinstance(value, (list, dict)):
            return
        around: CallFrame | None = frame
        while around is not None:
            for name, other in around.names.items():
                if other is value or _contains_identical(other, value):
                    around.names[name] = UNKNOWN
            around = around.outer

    def _call_value(self, node: ast.Call, frame: CallFrame) -> object:
        called = self.value(node.func, frame)
        given: list[object] = []
        for item in node.args:
            value = self.value(item.value if isinstance(item, ast.Starred) else item, frame)
            if not isinstance(item, ast.Starred):
                given.append(value)
            elif isinstance(value, (tuple, list)):
                given.extend(value)
            else:
                given.append(...)
        named: dict[str, object] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
                named.update(value)
            else:
                given.append(...)
        if called == ModuleValue("builtins.super"):
            return self.parent(frame, given)
        if called == UNKNOWN and isinstance(node.func, ast.Attribute) and node.func.attr in _LOGS:
            return UNKNOWN  # which does not raise
        pure = isinstance(called, BoundValueMethod) or (
            isinstance(called, ModuleValue) and called.name in INTRINSICS
        )
        if not pure:
            for item in (*node.args, *(keyword.value for keyword in node.keywords)):
                self.invalidate_value(item, frame)
            if isinstance(node.func, ast.Attribute):
                self.invalidate_value(node.func.value, frame)
        return self.apply_call(called, given, named)

    def _lambda_value(self, node: ast.Lambda, frame: CallFrame) -> object:
        return FunctionValue(node, frame)

    _readers: ClassVar[
        dict[type[ast.expr], Callable[[ExpressionValues, Any, CallFrame], object]]
    ] = {
        ast.Constant: _constant_value,
        ast.Name: _name_value,
        ast.Attribute: _attribute_value,
        ast.Tuple: _sequence_value,
        ast.List: _sequence_value,
        ast.Set: _sequence_value,
        ast.Dict: _dict_value,
        ast.BoolOp: _boolean_value,
        ast.UnaryOp: _unary_value,
        ast.BinOp: _binary_value,
        ast.Compare: _comparison_value,
        ast.IfExp: _conditional_value,
        ast.NamedExpr: _named_expression_value,
        ast.Subscript: _subscript_value,
        ast.JoinedStr: _text_value,
        ast.GeneratorExp: _comprehension_value,
        ast.ListComp: _comprehension_value,
        ast.SetComp: _comprehension_value,
        ast.DictComp: _dict_comprehension,
        ast.Call: _call_value,
        ast.Lambda: _lambda_value,
    }


def _contains_identical(holder: object, value: object) -> bool:
    """Return whether a collection contains the same object as `value`."""
    items = tuple(holder.values()) if isinstance(holder, dict) else holder
    return isinstance(items, (tuple, list)) and any(item is value for item in items)


def bound_method(value: object, name: str) -> object:
    """Return a method of a plain value, or UNKNOWN if the method is not supported."""
    methods = METHODS.get(str if isinstance(value, str) else type(value), ())
    versioned = isinstance(value, VersionText) and name in ("endswith", "find", "count")
    return BoundValueMethod(value, name) if name in methods and not versioned else UNKNOWN
