"""Restricts Jinja for templates of untrusted checkouts.

Templates can only format the values that imgbuild passes. They cannot access other Python
attributes, call methods that read or change other data, or read files that are not templates. The
size of the output and the number of loop iterations are limited. A value that is output without a
filter must be a plain word.
"""

# A separate module: a security boundary.
from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from imgbuild.system import quoting

LIMIT = 8 << 20  # characters of all texts of one rendering, in between results too
REPETITION = 64  # characters that one repetition of a loop, or one call, counts as
ITEM = 8  # characters that a value in a list or mapping counts as
FILTERS = (
    *("default", "d", "dictsort", "first", "int", "items", "last", "length", "count", "lower"),
    *("map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "string"),
    *("trim", "unique", "upper"),
)
PLAIN_TYPES = (
    str,
    int,
    float,
    bool,
    tuple,
    list,
    dict,
    msgspec.Struct,
    enum.Enum,
    Undefined,
    Macro,
)
TEXT_METHODS = frozenset(
    ("endswith", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rpartition",
     "rstrip", "split", "startswith", "strip", "upper")
)  # fmt: skip
MAPPING_METHODS = frozenset(("get", "items", "keys", "values"))
STRUCT_METHODS = frozenset(("steps",))  # of render.tree.Tree and render.dockerfile.Omission


_COMPILED_TEMPLATES: dict[tuple[Any, ...], Any] = {}


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one rendering. `filters` are added to FILTERS.

    `read` returns the text and the path of a template by name, or None if it does not exist.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(
        self,
        read: Callable[[str], tuple[str, str] | None],
        filters: Mapping[str, Callable[..., object]],
    ) -> None:
        super().__init__(
            loader=jinja2.FunctionLoader(self._find_template),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            # The result of `finalize` is marked as escaped, since no language here is HTML.
            autoescape=True,
            finalize=self._output_markup,
            optimized=False,  # or constants would be computed before anything is counted
        )
        self.globals = {}
        self.filters = {name: JINJA_FILTERS[name] for name in FILTERS}
        self.filters |= {
            name: _wrap_for_plain_texts(function) for name, function in filters.items()
        }
        self.filters |= {
            "list": self._list_items,
            "join": self._join_items,
            "batch": self._batch_items,
        }
        self.filters |= {"_each": self._loop_items, "_concat": self._concatenate}
        # A computation on a value counts as the value, and as the result.
        self.filters = self._count_all_results(self.filters)
        self.filters["_counted"] = self._count_value
        self.tests = self._count_all_results(JINJA_TESTS)
        self._read = read
        self._spent = 0
        self._longest = 0  # characters of the longest template

    # -- objects accessible to templates

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template can read `attr`: a plain value or permitted method."""
        if attr.startswith("_"):
            return False
        return value is None or isinstance(value, PLAIN_TYPES) or self.is_safe_callable(value)

    def is_safe_callable(self, obj: Any) -> bool:
        """Return whether a template can call `obj`: a macro, block, or method of a plain value."""
        if isinstance(obj, Macro | BlockReference):
            return True
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        return (
            (isinstance(owner, str) and name in TEXT_METHODS)
            or (isinstance(owner, dict) and name in MAPPING_METHODS)
            or (isinstance(owner, msgspec.Struct) and name in STRUCT_METHODS)
            or (isinstance(owner, LoopContext) and name in ("cycle", "changed"))
        )

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call `obj` for a template. A call counts as the output of a whole template."""
        self._count_steps(REPETITION + self._longest)
        self._count_value((getattr(obj, "__self__", None), args, kwargs))
        return self._count_value(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Evaluate an operation: sums of numbers or texts, and products of numbers."""
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            self._count_steps(len(left) + len(right))
            return str(left) + str(right)
        if not numbers or operator == "**" or max(abs(left), abs(right)) > LIMIT:
            message = f"{operator} is only available for small numbers"
            raise SecurityError(message)
        return super().call_binop(context, operator, left, right)

    def compile(self, source: Any, name: Any = None, filename: Any = None, *more: Any) -> Any:
        """Compile a template. Renderings with the same filters share the code."""
        key = (source, name, filename, *more, *sorted(self.filters))
        if key not in _COMPILED_TEMPLATES:
            _COMPILED_TEMPLATES[key] = super().compile(source, name, filename, *more)
        return _COMPILED_TEMPLATES[key]

    # -- counted operations

    def _count_steps(self, amount: int) -> None:
        self._spent += amount
        if self._spent > LIMIT:
            message = (
                f"the template has too many loop iterations, or writes more than {LIMIT >> 20} MB"
            )
            raise jinja2.TemplateRuntimeError(message)

    def _count_value(self, value: Any) -> Any:
        """Add the size of `value` and of nested values to the total, and return `value`."""
        rest = [value]
        while rest:
            item = rest.pop()
            self._count_steps(len(item) if isinstance(item, str) else ITEM)
            if isinstance(item, dict):
                rest.extend(item)
                rest.extend(item.values())
            elif isinstance(item, list | tuple):
                rest.extend(item)
        return value

    def _count_all_results(self, functions: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._wrap_with_counting(function) for name, function in functions.items()}

    def _wrap_with_counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # with Jinja's mark of functions that get the environment
        def _call_counted(*args: Any, **kwargs: Any) -> Any:
            args = tuple([*item] if isinstance(item, Iterator) else item for item in args)
            self._count_value((args, kwargs))
            return self._count_value(function(*args, **kwargs))

        return _call_counted

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        *more: Any,
        **named: Any,
    ) -> str:
        rewritten = _CountingTransformer(name, filename).visit(source)
        rewritten.set_environment(self)
        return super()._generate(rewritten, name, filename, *more, **named)

    def _find_template(self, name: str) -> tuple[str, str, Callable[[], bool]] | None:
        source = self._read(name)
        if source is None:
            return None
        self._longest = max(self._longest, len(source[0]))
        return (*source, lambda: True)

    def get_template(self, name: Any, *args: Any, **kwargs: Any) -> jinja2.Template:
        """Load the template `name`. Included templates are counted as output."""
        template = super().get_template(name, *args, **kwargs)
        self._count_steps(REPETITION + self._longest)
        return template

    def _loop_items(self, items: Iterable[Any], size: int) -> list[Any]:
        counted = []
        for item in items:
            self._count_steps(REPETITION + size)
            counted.append(item)
        return counted

    def _list_items(self, items: Iterable[Any]) -> list[Any]:
        return self._loop_items(items, 0)

    def _batch_items(self, items: Iterable[Any], size: int) -> list[list[Any]]:
        """Replace Jinja's `batch` without filling the last list, so that its length is bounded."""
        listed = self._list_items(items)
        return [listed[start : start + size] for start in range(0, len(listed), max(size, 1))]

    def _join_items(self, items: Iterable[Any], between: str = "") -> str:
        return str(self._concatenate(between, *self._list_items(items), joined=True))

    def _concatenate(self, first: Any, *rest: Any, joined: bool = False) -> str:
        """Join texts. The result is quoted if each text is quoted or a plain word."""
        texts = rest if joined else (first, *rest)
        self._count_steps(sum(len(str(text)) + len(str(first)) * joined for text in texts))
        whole = (str(first) if joined else "").join(map(str, texts))
        if all(isinstance(text, int) or hasattr(text, "__html__") or quoting.is_plain(str(text))
               for text in texts):  # fmt: skip
            return quoting.QuotedText(whole)
        return whole

    def _output_markup(self, value: Any) -> Markup:
        if isinstance(value, Undefined):
            value = str(value)  # empty if a condition has no else; an unknown name is an error
        if hasattr(value, "__html__"):
            text = str(value.__html__())
        elif isinstance(value, str | int):
            text = str(value)
            if not quoting.is_plain(text):
                message = (
                    f"{text!r} is not a plain word; use the filter for the context, such as word, "
                    "words, value, quoted, line or comment"
                )
                raise jinja2.TemplateRuntimeError(message)
        else:
            message = f"a value of type {type(value).__name__} cannot be written"
            raise jinja2.TemplateRuntimeError(message)
        self._count_steps(len(text))
        return Markup(text)  # noqa: S704  # it was quoted, or is a plain word


def _wrap_for_plain_texts(function: Callable[..., object]) -> Callable[..., object]:
    def _call_with_plain_texts(*args: Any, **kwargs: Any) -> object:
        return function(
            *map(_plain_value, args), **{name: _plain_value(arg) for name, arg in kwargs.items()}
        )

    return _call_with_plain_texts


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    return [*map(_plain_value, value)] if isinstance(value, list | tuple) else value


class _CountingTransformer(NodeTransformer):
    """Rewrites a template to mark constants as quoted, and to count loop iterations and values."""

    def __init__(self, name: str | None, filename: str | None) -> None:
        self._file = (name, filename)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        if isinstance(node.value, str):
            return nodes.MarkSafe(node, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        first, *rest = node.nodes
        return nodes.Filter(first, "_concat", rest, [], None, None, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            message = "recursive loops are not available"
            raise jinja2.TemplateSyntaxError(message, node.lineno, *self._file)
        size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        line = {"lineno": node.lineno}
        node.iter = nodes.Filter(
            node.iter, "_each", [nodes.Const(size, **line)], [], None, None, **line
        )
        return node

    def _value(self, node: nodes.Expr) -> nodes.Node:
        """Count lists, mappings and parts of them when they are created."""
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        return self._counting_filter(node)

    visit_List = visit_Tuple = visit_Dict = visit_Getitem = _value  # noqa: N815

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._counting_filter(node.expr)
        for operand in node.ops:
            operand.expr = self._counting_filter(operand.expr)
        return node

    @staticmethod
    def _counting_filter(node: nodes.Expr) -> nodes.Filter:
        return nodes.Filter(node, "_counted", [], [], None, None, lineno=node.lineno)

    def _named_statement(self, node: nodes.Node) -> nodes.Node:
        """Keep the template name in a statement as a plain constant."""
        return node

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _named_statement  # noqa: N815
