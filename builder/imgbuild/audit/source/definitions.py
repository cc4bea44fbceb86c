"""Functions and the fields of classes, as their definitions say.

Input: a definition. Output: the fact.
"""

from __future__ import annotations

import ast
import re

from imgbuild.audit.source.facts import Field, Function, Guard, Parameter
from imgbuild.audit.source.passing import passed_on
from imgbuild.audit.source.text import Source, dotted

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_RETURN = re.compile(rb"\breturn\b\s*([\w.]*)(\(?)")


def function_of(
    source: Source,
    node: FunctionNode,
    name: str,
    decorators: tuple[str, ...],
    guards: tuple[Guard, ...],
) -> Function:
    """A function by its qualified name."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    bare = len(plain) - len(given.defaults)
    parameters = [
        _parameter(
            source, item, "positional" if i < len(given.posonlyargs) else "any", default=i >= bare
        )
        for i, item in enumerate(plain)
    ]
    parameters += [
        _parameter(source, item, "keyword", default=default is not None)
        for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    returns = source.short(node.returns) if node.returns is not None else ""
    if not returns and "classmethod" in decorators and plain:
        returns = _makes_self(source, node, plain[0].arg.encode())
    return Function(
        name,
        node.lineno,
        tuple(parameters),
        given.vararg is not None,
        given.kwarg is not None,
        decorators,
        returns,
        guards,
        *passed_on(node),
    )


def _makes_self(source: Source, node: FunctionNode, cls: bytes) -> str:
    """Self if all that a classmethod returns is what it made of cls."""
    text = source.span(node)
    found = _RETURN.findall(text)
    made = {cls + b"("}
    for name, call in found:
        if not call and re.search(rb"\b" + name + rb"\s*=\s*" + cls + rb"\(", text):
            made.add(name)
    return "Self" if found and all(name + call in made for name, call in found) else ""


def _parameter(source: Source, item: ast.arg, kind: str, *, default: bool) -> Parameter:
    annotation = source.short(item.annotation) if item.annotation is not None else ""
    return Parameter(item.arg, kind, default, annotation)  # type: ignore[arg-type]


def field_of(source: Source, name: str, node: ast.AnnAssign) -> Field:
    """An annotated name of a class; `field(…)` says whether it has a default."""
    default, init = node.value is not None, True
    if isinstance(node.value, ast.Call) and dotted(node.value.func).endswith("ield"):
        given = {item.arg: item.value for item in node.value.keywords}
        default = "default" in given or "default_factory" in given or bool(node.value.args)
        flag = given.get("init")
        init = not (isinstance(flag, ast.Constant) and flag.value is False)
    return Field(
        name,
        node.lineno,
        source.short(node.annotation),
        default,
        init,
        value_of(source, node.value),
    )


def value_of(source: Source, node: ast.expr | None) -> str:
    """What Assigned and Field say of a value."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        return f"{name}()" if name else ""
    if isinstance(node, (ast.Subscript, ast.BinOp)):
        text = source.short(node)
        return text if text[0].isalpha() and "(" not in text and "…" not in text else ""
    return dotted(node) if node is not None else ""
