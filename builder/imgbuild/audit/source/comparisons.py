"""Reads comparisons with the Python version, a platform or the parameters of a callable.

`main_path.guards` evaluates the resulting guards with the semantics of CPython. Code tests for a
parameter (`"x" in inspect.signature(f).parameters`) if it differs between releases of another
package.
"""

from __future__ import annotations

import ast
import re

from imgbuild.audit.source.facts import FIELDS, Guard
from imgbuild.audit.source.name_values import NameValues
from imgbuild.audit.source.text import dotted_name, string_value

OPPOSITE_OPERATORS = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_SPEC = re.compile(r"(<=|>=|==|!=|<|>)(.+)")
_NAMES = frozenset(("sys.version_info", "version_info"))
_ITEMS = {"major": "[0]", "minor": "[1]", "micro": "[2]"}
MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
# Accelerators that images do not support, and names of variables with the kind of one.
_DEVICES = frozenset(("hip", "hpu", "mps", "musa", "npu", "tpu", "xpu"))
_DEVICE = re.compile(r"(?:.*[._])?(?:device|device_type|device\.type|accelerator)", re.IGNORECASE)
# Functions that return a signature, its attributes, and functions that keep the names.
_SIGNATURES = frozenset(("signature", "getfullargspec", "getargspec"))
_TABLES = frozenset(("parameters", "args", "kwonlyargs", "kwonlydefaults"))
_COPYING_FUNCTIONS = frozenset(("set", "list", "tuple", "dict", "frozenset", "sorted"))
UNNAMED_CALLABLE = "?"  # a callable that is not a dotted name


def opposite_guards(guards: tuple[Guard, ...], text: str) -> tuple[Guard, ...]:
    """Return the guards of the branch that runs if not all of `guards` are true."""
    if not guards:
        return ()
    if len(guards) == 1:
        return (_opposite_guard(guards[0], text),)
    return (Guard("unknown", f"not ({text})"),)


def _opposite_guard(guard: Guard, text: str) -> Guard:
    kind, subject, spec = guard.kind, guard.subject, guard.spec
    match = _SPEC.fullmatch(spec)
    if kind in ("version", "python") and match is not None and "," not in spec:
        return Guard(kind, subject, OPPOSITE_OPERATORS[match[1]] + match[2])
    if kind == "present":
        return Guard("absent", subject, spec)
    if kind == "absent":
        return Guard("present", subject, spec)
    if kind in ("platform", "result"):
        return Guard(kind, subject, "" if spec else "!")
    if kind == "takes":
        return Guard("takes", subject, spec[1:] if spec.startswith("!") else f"!{spec}")
    return Guard("unknown", f"not ({text})")


def python_guard(left: ast.expr, sign: str, right: ast.expr) -> Guard | None:
    """Return the guard of a comparison with sys.version_info, or None for other comparisons."""
    part = _part(left)
    if part is None:
        left, right, sign = right, left, MIRROR[sign]
        part = _part(left)
    if part is None:
        return None
    is_index = part.startswith("[") and ":" not in part
    literal = _items([right] if is_index else right.elts if isinstance(right, ast.Tuple) else [])
    return Guard("python", part, sign + literal) if literal else None


def _part(node: ast.expr) -> str | None:
    """Return the compared part of version_info: "" for all of it, "[0]" or "[:2]".

    Returns None for other expressions.
    """
    if isinstance(node, ast.Call):  # tuple(sys.version_info[:2])
        whole = dotted_name(node.func) == "tuple" and len(node.args) == 1 and not node.keywords
        return _part(node.args[0]) if whole else None
    if dotted_name(node) in _NAMES:
        return ""
    if isinstance(node, ast.Attribute) and dotted_name(node.value) in _NAMES:
        return _ITEMS.get(node.attr)
    if isinstance(node, ast.Subscript) and dotted_name(node.value) in _NAMES:
        return _slice(node.slice)
    return None


def _slice(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Slice):
        place = _number(node)
        return f"[{place}]" if place is not None else None
    first = 0 if node.lower is None else _number(node.lower)
    end = None if node.upper is None else _number(node.upper)
    return f"[:{end}]" if first == 0 and end and node.step is None else None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _items(nodes: list[ast.expr]) -> str:
    """Return literals joined by dots: 3.12.0.beta for (3, 12, 0, "beta")."""
    values = [node.value if isinstance(node, ast.Constant) else None for node in nodes]
    plain = all(
        type(value) is int or (isinstance(value, str) and value.isalpha()) for value in values
    )
    return ".".join(map(str, values)) if plain else ""


def platform_guard(left: ast.expr, sign: str | None, right: ast.expr) -> Guard | None:
    """Return the guard of a comparison with a platform or device name, or None for others."""
    name = dotted_name(left.func if isinstance(left, ast.Call) else left)
    text = string_value(right)
    if text is None or sign not in ("==", "!="):
        return None
    spec = "" if sign == "==" else "!"
    if text in _DEVICES and _DEVICE.fullmatch(name):
        return Guard("platform", text, spec)
    subject = {"sys.platform": text, "platform.system": text.lower(), "os.name": text}.get(name)
    if subject is None:
        return None
    subject = {"windows": "win32", "nt": "win32", "posix": "linux"}.get(subject, subject)
    return Guard("platform", subject, spec)


class Signatures:
    """Recognizes expressions for the parameters of callables."""

    def __init__(self, names: NameValues) -> None:
        """Use the values of `names`, for example the result of `inspect.signature(f)`."""
        self.names = names

    def find_callable(self, node: ast.expr) -> str:
        """Return the callable whose parameters an expression returns, or "" for other expressions.

        For the fields of a dataclass X, the result is "X.__dataclass_fields__".
        """
        if isinstance(node, ast.NamedExpr):
            return self.find_callable(node.value)
        if isinstance(node, ast.Name):
            return self.names.value(node.id).parameters_of
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, (ast.SetComp, ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            return self._callable_of_fields(node)
        return self._callable_of_call(node) if isinstance(node, ast.Call) else ""

    def _attribute(self, node: ast.Attribute) -> str:
        if node.attr in _TABLES:
            return self.find_callable(node.value)
        name = dotted_name(node)
        if name.endswith(FIELDS):
            return name
        return name.removesuffix(".__code__.co_varnames") if node.attr == "co_varnames" else ""

    def _callable_of_call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "values", "copy"):
            return "" if node.args else self.find_callable(node.func.value)
        if len(node.args) != 1:
            return ""
        last = dotted_name(node.func).rpartition(".")[2]
        if last in _SIGNATURES:
            return dotted_name(node.args[0]) or UNNAMED_CALLABLE
        if last == "fields":
            name = dotted_name(node.args[0])
            return f"{name}{FIELDS}" if name else ""
        return self.find_callable(node.args[0]) if last in _COPYING_FUNCTIONS else ""

    def _callable_of_fields(
        self, node: ast.SetComp | ast.ListComp | ast.GeneratorExp | ast.DictComp
    ) -> str:
        """Return the callable in a comprehension over fields or parameters.

        An example is `{field.name for field in fields(X)}`.
        """
        part = node.generators[0]
        if len(node.generators) != 1 or part.ifs:
            return ""
        target, source = part.target, part.iter
        call = source.func if isinstance(source, ast.Call) else source
        if isinstance(call, ast.Attribute) and call.attr == "items":
            source = call.value
            target = target.elts[0] if isinstance(target, ast.Tuple) else node
        variable = target.id if isinstance(target, ast.Name) else ""
        name = dotted_name(node.key if isinstance(node, ast.DictComp) else node.elt)
        return (
            self.find_callable(source)
            if variable and name in (variable, f"{variable}.name")
            else ""
        )

    def parameter_test(self, test: ast.expr) -> tuple[str, str] | None:
        """Return the callable and the parameter in `"x" in P`, `"x" not in P` or `P.get("x")`.

        The parameter is "" if it is not a literal.
        """
        holder, name = "", None
        if isinstance(test, ast.Compare):
            if len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn)):
                holder, name = self.find_callable(test.comparators[0]), test.left
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.args:
            called = test.func
            holder = self.find_callable(called.value) if called.attr == "get" else ""
            name = test.args[0]
        return (holder, string_value(name) or "") if holder else None
