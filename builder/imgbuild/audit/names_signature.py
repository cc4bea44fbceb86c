"""What a call of a function or class may pass.

Comes in: a definition that a lookup found. Goes out: its Signature, or None where anything could
change it (an unknown decorator, base or metaclass).
"""

from __future__ import annotations

from imgbuild.audit.facts import Class, Function, Parameter
from imgbuild.audit.names_classes import (
    ancestors,
    bare,
    decorator_name,
    follow,
    metaclass,
    resolve,
)
from imgbuild.audit.names_lookup import index
from imgbuild.audit.names_model import Found, Modules, Signature

# Decorators that leave a function's parameters as they are, by their last part.
_KEEPS = frozenset(
    [
        "staticmethod",
        "classmethod",
        "no_grad",
        "inference_mode",
        "enable_grad",
        "lru_cache",
        "cache",
        "wraps",
        "override",
        "abstractmethod",
        "final",
        "contextmanager",
        "asynccontextmanager",
        "overload",
        "typechecked",
        "deprecated",
        "torch_compile",
        "compile",
        "jit",
        "ignore",
        "unused",
        "export",
        "is_jit_compatible",
        "experimental",
        "add_start_docstrings",
        "add_end_docstrings",
        "add_start_docstrings_to_model_forward",
        "auto_docstring",
        "replace_return_docstrings",
        "can_return_tuple",
        "instrument",
        "profile",
        "rank_zero_only",
        "add_code_sample_docstrings",
        "copy_func",
    ]
)
_CLASS_KEEPS = frozenset(
    [
        "final",
        "runtime_checkable",
        "total_ordering",
        "deprecated",
        "experimental",
        "requires",
        "auto_docstring",
        "add_start_docstrings",
        "add_end_docstrings",
        "export",
    ]
)
_DATACLASS = frozenset(
    ("dataclass", "dataclasses.dataclass", "config", "pydantic_dataclass", "dc.dataclass")
)


def signature(modules: Modules, found: Found, *, bound: bool = True) -> Signature | None:
    """The parameters of calling what was found; None if they cannot be told.

    For a method `bound` says that it is called on an instance (or is a classmethod): self is left
    out then. A class answers with what its construction takes.
    """
    found = follow(modules, found)
    if found.state != "defined" or found.ambiguous:
        return None
    definition = found.definition
    if isinstance(definition, Function):
        return _of_function(definition, method=found.owner is not None, bound=bound)
    if isinstance(definition, Class):
        return _of_class(modules, found)
    return None


def _of_function(function: Function, *, method: bool, bound: bool) -> Signature | None:
    names = [decorator_name(text) for text in function.decorators]
    if any(name not in _KEEPS for name in names):
        return None
    parameters = function.parameters
    if method and "staticmethod" not in names and (bound or "classmethod" in names):
        if not parameters and not function.varargs:
            return None
        parameters = parameters[1:]
    return Signature(parameters=parameters, varargs=function.varargs, varkw=function.varkw)


def _of_class(modules: Modules, found: Found) -> Signature | None:
    if metaclass(modules, found) is None:
        return None
    for one in ancestors(modules, found):
        definition, home = one.definition, one.home
        if not isinstance(definition, Class) or home is None:
            return _of_base(modules, found, one)
        if "__new__" in definition.methods:
            return None
        style = _style(definition)
        if style is None:
            return None
        inits = index(home).members.get(f"{definition.name}.__init__")
        if inits:
            init = inits[-1]
            if len(inits) > 1 or not isinstance(init, Function):
                return None
            return _of_function(init, method=True, bound=True)
        if "__init__" in definition.methods:
            return None
        if style == "dataclass":
            return _of_fields(modules, one)
    return Signature()


def _style(definition: Class) -> str | None:
    """What makes the constructor: "dataclass", or "" for the class; None if it cannot be told."""
    style = ""
    for text in definition.decorators:
        name = decorator_name(text)
        if text.partition("(")[0] in _DATACLASS or name == "dataclass":
            style = "dataclass" if "init=False" not in text.replace(" ", "") else style
        elif name not in _CLASS_KEEPS:
            return None
    return style


def _of_fields(modules: Modules, found: Found) -> Signature | None:
    """The parameters that @dataclass makes: the fields of its dataclass ancestors, then its own."""
    fields: dict[str, Parameter] = {}
    for one in reversed(ancestors(modules, found)):
        definition = one.definition
        if not isinstance(definition, Class):
            return None
        if _style(definition) != "dataclass":
            continue
        for field in definition.fields:
            annotation = field.annotation
            if not annotation or "ClassVar" in annotation or annotation.endswith("KW_ONLY"):
                continue
            if not field.init:
                fields.pop(field.name, None)
                continue
            fields[field.name] = Parameter(
                name=field.name, default=field.default, annotation=annotation
            )
    return Signature(parameters=tuple(fields.values()))


def _of_base(modules: Modules, found: Found, base: Found) -> Signature | None:
    """What the readable classes before an unreadable base make of it: structs and named tuples."""
    if not isinstance(found.definition, Class):
        return None
    name = base.trace[0] if base.trace else ""
    if name.rpartition(".")[2] != "NamedTuple" or found.home is None:
        return None
    if resolve(modules, found.home, bare(name)).definition is not None:
        return None
    return Signature(
        parameters=tuple(
            Parameter(name=field.name, default=field.default, annotation=field.annotation)
            for field in found.definition.fields
            if field.annotation
        )
    )
