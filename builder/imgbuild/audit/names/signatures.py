"""Determines the parameters of functions and classes.

The parameters are unknown (None) if an unrecognized decorator, base class or metaclass may change
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import msgspec

from imgbuild.audit.names.classes import (
    PLAIN_DECORATORS,
    class_ancestors,
    decorator_name,
    find_metaclass,
    follow_assignment,
    full_name,
    resolve_expression,
)
from imgbuild.audit.names.lookup import SameFacts, module_index
from imgbuild.audit.names.model import (
    CallSignature,
    LookupResult,
    Modules,
    cached_results,
    module_sources,
)
from imgbuild.audit.source.facts import SUPER_INIT, Class, Function, ModuleFacts, Parameter

# Decorators that keep a function's parameters, by their last part.
_KEEPING_DECORATORS = frozenset(
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
        "deprecate_args",
        "deprecate_kwargs",
    ]
)
# A decorator of transformers that takes one more keyword, under the name that it used to have.
_RENAMING_DECORATOR = re.compile(r"deprecate_kwarg\(\s*[\"'](\w+)[\"']")
_NEW_NAME = re.compile(r"deprecate_kwarg\(.*\bnew_name=[\"'](\w+)[\"']", re.DOTALL)
# How many callees deep `**kwargs` are followed.
_DEPTH = 4


def find_signature(
    modules: Modules, lookup_result: LookupResult, *, bound: bool = True
) -> CallSignature | None:
    """Return the parameters of a function or of a class's constructor, or None if unknown.

    With `bound`, the method is called on an instance (or is a classmethod), and self is omitted. If
    a function forwards `**kwargs`, the parameters of the callees are included.
    """
    results, result = cached_results(modules), lookup_result
    facts = (SameFacts(each) for each in (result.definition, result.home, result.owner))
    key = ("signature", *facts, result.state, result.ambiguous, bound)
    if key not in results:
        results[key] = _signature(modules, lookup_result, bound=bound, depth=0)
    return cast("CallSignature | None", results[key])


def parameter_names(modules: Modules, lookup_result: LookupResult) -> frozenset[str] | None:
    """Return the parameter names that inspect.signature returns, or None if unknown.

    In contrast to `find_signature`, the parameters of callees to which `**kwargs` is forwarded are
    excluded.
    """
    definition = follow_assignment(modules, lookup_result).definition
    if isinstance(definition, Function) and any(
        "wraps" in decorator for decorator in definition.decorators
    ):
        return None
    call_signature = _signature(modules, lookup_result, bound=True, depth=_DEPTH)
    return (
        None
        if call_signature is None
        else frozenset(parameter.name for parameter in call_signature.parameters)
    )


def _signature(
    modules: Modules, lookup_result: LookupResult, *, bound: bool, depth: int
) -> CallSignature | None:
    lookup_result = follow_assignment(modules, lookup_result)
    if lookup_result.state != "defined" or lookup_result.ambiguous:
        return None
    definition = lookup_result.definition
    if isinstance(definition, Class):
        return _class_signature(modules, lookup_result, depth)
    if not isinstance(definition, Function) or lookup_result.home is None:
        return None
    home, method = lookup_result.home, lookup_result.owner is not None
    call_signature = _function_signature(modules, home, definition, method=method, bound=bound)
    return call_signature and _add_callee_parameters(
        modules, home, definition, call_signature, depth
    )


def _function_signature(
    modules: Modules, home: ModuleFacts, function: Function, *, method: bool, bound: bool
) -> CallSignature | None:
    names = [decorator_name(text) for text in function.decorators]
    renamed = [
        match[1] for text in function.decorators for match in _RENAMING_DECORATOR.finditer(text)
    ]
    read = module_sources(modules)
    for name, text in zip(names, function.decorators, strict=True):
        if name in _KEEPING_DECORATORS or (name == "deprecate_kwarg" and renamed):
            continue
        added = read.wrapper_keywords(home, text) if read is not None else None
        if added is None:
            return None
        known = {each.name for each in function.parameters}
        renamed += sorted(added.difference(known, renamed))
    parameters = function.parameters
    if method and "staticmethod" not in names and (bound or "classmethod" in names):
        if not parameters and not function.varargs:
            return None
        parameters = parameters[1:]
    new_names = {match[1] for text in function.decorators if (match := _NEW_NAME.search(text))}
    parameters = tuple(  # the former name can be passed instead
        msgspec.structs.replace(each, default=True) if each.name in new_names else each
        for each in parameters
    )
    parameters += tuple(Parameter(name, "keyword", default=True) for name in renamed)
    return CallSignature(parameters=parameters, varargs=function.varargs, varkw=function.varkw)


def _add_callee_parameters(
    modules: Modules,
    home: ModuleFacts,
    function: Function,
    call_signature: CallSignature,
    depth: int,
) -> CallSignature:
    read = module_sources(modules)
    if call_signature.varkw and not function.kwargs_callees and read is not None:
        return _restrict_keywords(call_signature, read.accepted_keywords(home, function))
    if not call_signature.varkw or not function.kwargs_callees or depth >= _DEPTH:
        return call_signature
    callees: list[CallSignature | None] = []
    for callee in function.kwargs_callees:
        if callee.partition(".")[0] in ("self", "cls", "super", "super()"):
            return call_signature
        target = resolve_expression(modules, home, callee, scope=function.name)
        callees.append(_signature(modules, target, bound=True, depth=depth + 1))
    return _join_signatures(function, call_signature, callees)


def _join_signatures(
    function: Function, call_signature: CallSignature, callees: Iterable[CallSignature | None]
) -> CallSignature:
    parameters = {parameter.name: parameter for parameter in call_signature.parameters}
    for name in function.popped_keys:
        parameters.setdefault(name, Parameter(name, "keyword", default=True))
    for more in callees:
        if more is None or more.varkw:
            return call_signature
        for parameter in more.parameters:
            if parameter.kind != "positional":
                forwarded = Parameter(parameter.name, "keyword", True, parameter.annotation)
                parameters.setdefault(parameter.name, forwarded)
    return CallSignature(parameters=tuple(parameters.values()), varargs=call_signature.varargs)


def _restrict_keywords(
    call_signature: CallSignature, taken: frozenset[str] | None
) -> CallSignature:
    if taken is None:
        return call_signature
    more = tuple(Parameter(name, "keyword", default=True) for name in sorted(taken))
    return CallSignature(
        parameters=call_signature.parameters + more, varargs=call_signature.varargs
    )


def _class_signature(
    modules: Modules, lookup_result: LookupResult, depth: int
) -> CallSignature | None:
    if find_metaclass(modules, lookup_result) is None:
        return None
    return _constructor_signature(
        modules, lookup_result, class_ancestors(modules, lookup_result), depth
    )


def _constructor_signature(
    modules: Modules, lookup_result: LookupResult, chain: Sequence[LookupResult], depth: int
) -> CallSignature | None:
    """Return the parameters of a class's constructor.

    `chain` contains the ancestors, starting with the class that is called.
    """
    for at, ancestor in enumerate(chain, 1):
        definition, home = ancestor.definition, ancestor.home
        if not isinstance(definition, Class) or home is None:
            return _base_signature(
                modules, lookup_result, ancestor.trace[0] if ancestor.trace else ""
            )
        style = _style(definition, home)
        if style is None or "__new__" in definition.methods:
            return None
        inits = module_index(home).members.get(f"{definition.name}.__init__", [])
        if "__init__" in definition.methods or inits:
            init = inits[0] if len(inits) == 1 else None
            if not isinstance(init, Function):
                return None
            call_signature = _function_signature(modules, home, init, method=True, bound=True)
            if call_signature is not None and init.kwargs_callees == (SUPER_INIT,):
                more = _constructor_signature(modules, lookup_result, chain[at:], depth)
                return _join_signatures(init, call_signature, [more])
            return call_signature and _add_callee_parameters(
                modules, home, init, call_signature, depth
            )
        if style == "dataclass":
            return _field_signature(modules, ancestor)
    return CallSignature()


def _style(definition: Class, home: ModuleFacts) -> str | None:
    """Return the kind of constructor: "dataclass", "" for an `__init__`, or None if unknown."""
    style = ""
    for text in definition.decorators:
        callee, _, given = text.replace(" ", "").partition("(")
        name = full_name(home, callee)
        last = decorator_name(text)
        if name.startswith("pydantic.") and "forbid" not in given:
            return None  # it may ignore unknown keywords
        if last == "dataclass" or (last == "config" and name.startswith("vllm.")):
            style = style if "init=False" in given else "dataclass"
        elif last not in PLAIN_DECORATORS and not last.startswith("register"):
            return None
    return style


def _field_signature(modules: Modules, lookup_result: LookupResult) -> CallSignature | None:
    """Return the parameters of a dataclass. Fields of base dataclasses come first."""
    fields: dict[str, Parameter] = {}
    for ancestor in reversed(class_ancestors(modules, lookup_result)):
        if not isinstance(ancestor.definition, Class) or ancestor.home is None:
            return None
        if _style(ancestor.definition, ancestor.home) == "dataclass":
            _add_fields(fields, ancestor.definition)
    return CallSignature(parameters=tuple(fields.values()))


def _add_fields(fields: dict[str, Parameter], definition: Class) -> None:
    for field in definition.fields:
        annotation = field.annotation
        if not annotation or "ClassVar" in annotation or annotation.endswith("KW_ONLY"):
            continue
        if field.init:
            fields[field.name] = Parameter(
                name=field.name, default=field.default, annotation=annotation
            )
        else:
            fields.pop(field.name, None)


def _base_signature(
    modules: Modules, lookup_result: LookupResult, base: str
) -> CallSignature | None:
    """Return the generated constructor of a base class such as Struct or NamedTuple."""
    if base not in ("msgspec.Struct", "typing.NamedTuple", "typing_extensions.NamedTuple"):
        return None
    fields: dict[str, Parameter] = {}
    for ancestor in reversed(class_ancestors(modules, lookup_result)):
        if not isinstance(ancestor.definition, Class):
            continue
        chain = class_ancestors(modules, ancestor)
        if any(other.definition is None and other.trace[:1] == (base,) for other in chain):
            _add_fields(fields, ancestor.definition)
    return CallSignature(parameters=tuple(fields.values()))


def keyword_receiver(
    modules: Modules, lookup_result: LookupResult, owner: Callable[[str], str | None]
) -> LookupResult | None:
    """Return the callable of another package that receives keywords from a class or function.

    `owner` returns the package of a module. A class passes keywords to the constructor of its base
    class. A function passes its `**kwargs` to a single callee.
    """
    home = lookup_result.home
    package = owner(home.module) if home is not None else None
    for _ in range(_DEPTH):
        lookup_result = follow_assignment(modules, lookup_result)
        definition, home = lookup_result.definition, lookup_result.home
        if lookup_result.state != "defined" or lookup_result.ambiguous or home is None:
            return None
        if owner(home.module) != package:
            return lookup_result
        if isinstance(definition, Function) and len(definition.kwargs_callees) == 1:
            callee = definition.kwargs_callees[0]
            lookup_result = resolve_expression(modules, home, callee, scope=definition.name)
        elif isinstance(definition, Class):
            return _foreign_base(modules, lookup_result, owner, package)
        else:
            return None
    return None


def _foreign_base(
    modules: Modules,
    lookup_result: LookupResult,
    owner: Callable[[str], str | None],
    package: str | None,
) -> LookupResult | None:
    """Return the first base class in another package.

    Returns None unless all classes before it pass keywords on.
    """
    for ancestor in class_ancestors(modules, lookup_result):
        definition, home = ancestor.definition, ancestor.home
        if not isinstance(definition, Class) or home is None:
            return None
        if owner(home.module) != package:
            return ancestor
        inits = module_index(home).members.get(f"{definition.name}.__init__", [])
        if not all(
            isinstance(each, Function) and each.kwargs_callees == (SUPER_INIT,) for each in inits
        ):
            return None
    return None
