"""Reads conditions, and returns the guards under which each branch of a test runs.

A condition on data instead of installed packages has no guards, because both branches may run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from imgbuild.audit.source.comparisons import (
    MIRROR,
    OPPOSITE_OPERATORS,
    Signatures,
    opposite_guards,
    platform_guard,
    python_guard,
)
from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.name_values import (
    UNKNOWN_VALUE,
    Branches,
    Guards,
    NameValue,
    NameValues,
    literal_value,
)
from imgbuild.audit.source.text import (
    BUILTINS,
    OPERATORS,
    SourceText,
    dotted_name,
    empty_collection,
    evaluated_text,
    string_value,
)
from imgbuild.audit.source.versions import VersionReader, part_comparison

DATA: Branches = ((), ())

# A condition with one of these words that is not understood depends on what is installed.
_SURROUNDINGS = (
    *("avail", "platform", "version", "hasattr", "environ", "getenv", "envs.", "is_cuda"),
    *("is_rocm", "is_hip", "is_xpu", "is_npu", "is_cpu", "is_tpu", "is_hpu", "sys.", "find_spec"),
    *("import", "_AVAIL", "HAS_", "VERSION", "greater", "newer", "older", "at_least"),
)
_CONDITIONS = (
    *(ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.Subscript, ast.UnaryOp),
    *(ast.Name, ast.Attribute),
)
_FINDERS = frozenset(("find_spec", "find_loader", "find_module"))
_PACKAGE_PREDICATES = frozenset(
    (
        *("is_package_available", "_is_package_available", "package_available"),
        *("_package_available", "module_available", "is_module_available", "_module_available"),
        *("is_installed", "_is_installed", "_is_package_importable", "is_importable"),
        *("has_module", "_has_module", "RequirementCache", "ModuleAvailableCache"),
        *("check_if_package_installed", "_try_import"),
    )
)


class ConditionReader:
    """Reads conditions, with the values that names have at the position of the condition."""

    def __init__(self, source: SourceText, module: str, names: NameValues) -> None:
        self.source = source
        self.module = module
        self.scope = ""  # the qualified name of the function that is being read
        self.names = names
        self.versions = VersionReader(names)
        # Changes the guards of each condition, if given.
        self.refine: Callable[[ast.expr, Branches], Branches] | None = None
        self.signatures = Signatures(names)
        self._surroundings = [word for word in _SURROUNDINGS if word.encode() in source.whole]

    def read(self, test: ast.expr) -> Branches:
        """Return the guards for a true test, and the guards for a false test."""
        branches = self._read_by_type(test)
        return branches if self.refine is None else self.refine(test, branches)

    def _read_by_type(self, test: ast.expr) -> Branches:
        kind = type(test)
        if kind is ast.UnaryOp and isinstance(test.op, ast.Not):  # type: ignore[attr-defined]
            yes, no = self.read(test.operand)  # type: ignore[attr-defined]
            return no, yes
        if isinstance(test, ast.BoolOp):
            return self._guards_of_boolean(test)
        if isinstance(test, ast.NamedExpr):
            return self.read(test.value)
        if (
            isinstance(test, ast.IfExp)
            and (branches := self._guards_of_conditional(test)) is not None
        ):
            return branches
        branches = None
        if isinstance(test, ast.Compare):
            branches = self._guards_of_parameter(test) or self._guards_of_comparison(test)
        elif isinstance(test, ast.Call):
            branches = self._guards_of_parameter(test) or self._guards_of_call(test)
        elif isinstance(test, (ast.Name, ast.Attribute)):
            branches = self._guards_of_name(test)
        elif isinstance(test, ast.Subscript):  # _is_package_available("x", …)[0]
            branches = self._guards_of_first(test)
        if branches is not None:
            return branches
        text = self.source.short_text(test)
        local = isinstance(test, ast.Name) and self.names.is_local(test.id)
        if (not local and self._concerns_surroundings(text)) or self.versions.depends_on_version(
            test
        ):
            return self._guards_of_result(test) or self._unknown_branches(text)
        yes, no = self._unknown_branches(text)
        says = self.versions.version_conditions(test)
        return yes if says[0] else (), no if says[1] else ()

    def _unknown_branches(self, text: str) -> Branches:
        return (Guard("unknown", text),), (Guard("unknown", f"not ({text})"),)

    def _guards_of_result(self, test: ast.expr) -> Branches | None:
        """Return the guards of `is_nvtx_available()` or `HAS_RAY`, to evaluate in a package set."""
        text = evaluated_text(test, self.names.is_local)
        if not text:
            return None
        return self._both_branches(test, Guard("result", f"{self.module}:{self.scope}:{text}"))

    def guards_during_import(self, test: ast.expr, *, at_top: bool) -> Branches:
        """Return the guards of a test that seems to depend on data.

        The top level of a module cannot depend on data. `at_top` means that the test is outside of
        classes. In a class, it could refer to the names of the class.
        """
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yes, no = self.guards_during_import(test.operand, at_top=at_top)
            return no, yes
        if isinstance(test, ast.Call):
            evaluated = dotted_name(test.func) not in BUILTINS
        else:  # IS_WASM, which another module may define
            evaluated = at_top and dotted_name(test).rpartition(".")[2].isupper()
        return (evaluated and not self.scope and self._guards_of_result(test)) or DATA

    def value(self, node: ast.expr) -> NameValue:
        """Return the value that a name has after it is bound to this expression."""
        if isinstance(node, ast.Constant):
            return literal_value(node.value)
        if (
            isinstance(node, ast.Name)
            and (name_value := self.names.value(node.id)) != UNKNOWN_VALUE
        ):
            return name_value
        empty = empty_collection(node)
        package = self.versions.package(node)
        literal = "" if package else self.versions.literal_version(node)
        truthy: Guards = ()
        falsy: Guards = ()
        if isinstance(node, _CONDITIONS):
            yes, no = DATA if package else self.read(node)
            if any(guard.kind != "unknown" for guard in (*yes, *no)):
                truthy, falsy = yes, no
        name_value = NameValue(
            package=package,
            literal=literal,
            parameters_of=self.signatures.find_callable(node),
            truthy=None if empty else truthy,
            falsy=falsy,
            is_literal=empty or bool(literal),
            derived=not (package or truthy or falsy) and self.versions.depends_on_version(node),
        )
        return UNKNOWN_VALUE if name_value == UNKNOWN_VALUE else name_value

    def _both_branches(self, test: ast.expr, *guards: Guard) -> Branches:
        return guards, opposite_guards(guards, self.source.short_text(test))

    def _guards_of_boolean(self, test: ast.BoolOp) -> Branches:
        """Return the guards of `and` or `or`.

        If an operand is data, the other branch may always run.
        """
        parts = [self.read(value) for value in test.values]
        every = isinstance(test.op, ast.And)
        if not every:
            parts = [(no, yes) for yes, no in parts]
        together = tuple(dict.fromkeys(guard for yes, _ in parts for guard in yes))
        open_part = any(not yes and not no for yes, no in parts)
        text = self.source.short_text(test)
        other: Guards = ()
        if not open_part and together:
            other = (Guard("unknown", f"not ({text})" if every else text),)
            if len(parts) == 1 or len(together) == 1:
                other = opposite_guards(together, text)
        return (together, other) if every else (other, together)

    def _guards_of_conditional(self, test: ast.IfExp) -> Branches | None:
        """Return the guards of `True if … else False`."""
        if not isinstance(test.body, ast.Constant) or not isinstance(test.orelse, ast.Constant):
            return None
        yes, no = self.read(test.test)
        if bool(test.body.value) == bool(test.orelse.value):
            return None
        return (yes, no) if test.body.value else (no, yes)

    def _guards_of_name(self, test: ast.Name | ast.Attribute) -> Branches | None:
        name = dotted_name(test)
        last = name.rpartition(".")[2]
        if last == "TYPE_CHECKING":
            return (Guard("typing"),), ()
        name_value = self.names.value(name)
        if name_value.as_condition is None:
            return None
        return (
            name_value.as_condition
            if all(name_value.as_condition)
            else self._one_branch(test, *name_value.as_condition)
        )

    def _one_branch(self, test: ast.expr, yes: Guards, no: Guards) -> Branches:
        text = self.source.short_text(test)
        if not self._concerns_surroundings(text):
            return yes, no
        unknown = self._unknown_branches(text)
        return yes or unknown[0], no or unknown[1]

    def unpacked(self, node: ast.expr, count: int) -> list[NameValue] | None:
        """Return the values of `count` names to which an expression is unpacked, or None.

        `_is_package_available("x", return_version=True)` returns a condition and a version.
        """
        if isinstance(node, ast.Tuple) and len(node.elts) == count:
            starred = any(isinstance(item, ast.Starred) for item in node.elts)
            return None if starred else [self.value(item) for item in node.elts]
        if not isinstance(node, ast.Call) or count != 2 or not node.args:
            return None
        yes, no = self._guards_of_call(node) or DATA
        package = string_value(node.args[0]) or ""
        if dotted_name(node.func).rpartition(".")[2] not in _PACKAGE_PREDICATES or not yes:
            return None
        return [NameValue(truthy=yes, falsy=no), NameValue(package=package.replace("-", "_"))]

    def _guards_of_first(self, test: ast.Subscript) -> Branches | None:
        zero = isinstance(test.slice, ast.Constant) and test.slice.value == 0
        return (
            self._guards_of_call(test.value) if zero and isinstance(test.value, ast.Call) else None
        )

    def _guards_of_call(self, test: ast.Call) -> Branches | None:
        name = dotted_name(test.func)
        last = name.rpartition(".")[2]
        if last == "bool" and len(test.args) == 1:
            return self.read(test.args[0])
        if name == "sys.platform.startswith" and test.args:
            return self._both_branches(test, Guard("platform", string_value(test.args[0]) or "?"))
        if (last, len(test.args)) in (("hasattr", 2), ("getattr", 3)):
            return self._guards_of_hasattr(test)
        if (last in _FINDERS or last in _PACKAGE_PREDICATES) and test.args:
            return self._guards_of_package(test)
        if last == "compare_versions" and len(test.args) == 3:
            return self._guards_of_operator(
                test, self._condition_subject(test.args[0]), test.args[1], test.args[2]
            )
        return None

    def _guards_of_hasattr(self, test: ast.Call) -> Branches | None:
        """Return the guards of `hasattr(x, "a")` or `getattr(x, "a", None)`."""
        subject, name = dotted_name(test.args[0]), string_value(test.args[1])
        if not subject or not name:
            return None
        guard = Guard("handled", "AttributeError", f"{subject}.{name}")
        if len(test.args) == 2:
            return (guard,), (Guard("unknown", f"not ({self.source.short_text(test)})"),)
        soft = isinstance(test.args[2], ast.Constant) and not test.args[2].value
        return ((guard,), ()) if soft else None

    def _guards_of_package(self, test: ast.Call) -> Branches | None:
        text = string_value(test.args[0])
        if text is None and isinstance(test.args[0], ast.Name):
            text = self.names.value(test.args[0].id).literal
        match = re.fullmatch(r"([A-Za-z_][\w.-]*)\s*([<>=!~].*)?", text or "")
        if match is None:
            return None
        least = next((v for v in map(self.versions.literal_version, test.args[1:]) if v), "")
        spec = match[2] or (f">={least}" if least else "")
        return self._both_branches(test, Guard("present", match[1].replace("-", "_"), spec))

    def _condition_subject(self, node: ast.expr) -> str:
        return string_value(node) or self.versions.package(node)

    def _guards_of_operator(
        self, test: ast.expr, module: str, operator: ast.expr, version: ast.expr
    ) -> Branches | None:
        sign, text = string_value(operator), self.versions.literal_version(version)
        if not module or sign not in OPPOSITE_OPERATORS or not text:
            return None
        return self._both_branches(test, Guard("version", module.replace("-", "_"), sign + text))

    def _guards_of_parameter(self, test: ast.Compare | ast.Call) -> Branches | None:
        """Return the guards of `"x" in inspect.signature(f).parameters`."""
        parameter = self.signatures.parameter_test(test)
        if parameter is None:
            return None
        callee, name = parameter
        if not name:
            return self._both_branches(test, Guard("unknown", self.source.short_text(test)))
        yes, no = self._both_branches(
            test, Guard("takes", f"{self.module}:{self.scope}:{callee}", name)
        )
        opposed = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)
        return (no, yes) if opposed else (yes, no)

    def _guards_of_comparison(self, test: ast.Compare) -> Branches | None:
        operands = [test.left, *test.comparators]
        branches = self._guards_of_python_version(test, operands)
        if branches is None and len(operands) == 2:
            branches = self._guards_of_none_test(test) or self._guards_of_platform(test)
        if branches is not None:
            return branches
        if len(operands) == 2 and (sign := OPERATORS.get(type(test.ops[0]))) is not None:
            part = part_comparison(self.versions, operands[0], sign, operands[1])
            if part is not None:
                return self._both_branches(test, Guard("version", *part))
        clauses = []
        subject = ""
        for left, operator, right in zip(operands[:-1], test.ops, operands[1:], strict=True):
            sign = OPERATORS.get(type(operator))
            if sign is None:
                return None
            package, version = self.versions.package(left), self.versions.literal_version(right)
            if not (package and version):
                package, version = self.versions.package(right), self.versions.literal_version(left)
                sign = MIRROR[sign]
            if not (package and version) or subject not in ("", package):
                return None
            subject = package
            clauses.append(sign + version)
        return self._both_branches(test, Guard("version", subject, ",".join(clauses)))

    def _guards_of_python_version(
        self, test: ast.Compare, operands: list[ast.expr]
    ) -> Branches | None:
        """Return the guards of comparisons such as `(3, 9) <= sys.version_info < (3, 12)`."""
        guards = []
        for left, operator, right in zip(operands[:-1], test.ops, operands[1:], strict=True):
            sign = OPERATORS.get(type(operator))
            guard = python_guard(left, sign, right) if sign is not None else None
            if guard is None:
                return None
            guards.append(guard)
        return self._both_branches(test, *guards)

    def _guards_of_none_test(self, test: ast.Compare) -> Branches | None:
        """Return the guards of `find_spec("x") is not None`, `vllm is None`, `flag is True`."""
        right = test.comparators[0]
        operator, left = test.ops[0], test.left
        if not isinstance(operator, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
            return None
        if not isinstance(right, ast.Constant):
            return None
        if type(right.value) not in (bool, type(None)):  # 1 == True, but 1 is not a condition
            yes, no = self.names.value(dotted_name(left)).as_condition or DATA
            number = type(right.value) in (int, float)
            return (
                self._unknown_branches(self.source.short_text(test))
                if number and yes != no
                else None
            )
        is_understood = (
            isinstance(left, ast.Call)
            or self.names.value(dotted_name(left)).as_condition is not None
        )
        yes, no = self.read(left) if is_understood else DATA
        if not yes and not no:
            return None
        same = isinstance(operator, (ast.Is, ast.Eq)) == (right.value is True)
        return (yes, no) if same else (no, yes)

    def _guards_of_platform(self, test: ast.Compare) -> Branches | None:
        guard = platform_guard(test.left, OPERATORS.get(type(test.ops[0])), test.comparators[0])
        return self._both_branches(test, guard) if guard is not None else None

    def _concerns_surroundings(self, text: str) -> bool:
        """Return whether a condition depends on what is installed."""
        return any(word in text for word in self._surroundings)
