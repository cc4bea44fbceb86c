"""Determines the classes of objects: results of calls, elements of lists and global names."""

from __future__ import annotations

import re

import msgspec

from imgbuild.audit.names import classes
from imgbuild.audit.names.lookup import UNKNOWN_RESULT, SameFacts, look_up, module_index
from imgbuild.audit.names.model import LookupResult, Modules, cached_results, module_sources
from imgbuild.audit.source.facts import AssignedName, Class, Function, ModuleFacts

# Classes of transformers whose methods load an object of another class.
_LOADED_CLASSES = re.compile(r"^(?:(?P<tokenizer>AutoTokenizer)|(?P<model>_?\w*AutoModel\w*))$")
_LOADING_METHODS = frozenset(("from_pretrained", "from_config"))
_NAME = r"[\w.\"']+"
_LIST = re.compile(rf"(?:\w+\.)?(?:List|list|Sequence|Iterable|Iterator)\[\s*({_NAME})\s*\]")
_UNION = re.compile(
    rf"(?:\w+\.)?Union\[\s*({_NAME}(?:\s*,\s*{_NAME})*)\s*,?\s*\]|({_NAME}(?:\s*\|\s*{_NAME})+)"
)


def assigned_object(modules: Modules, lookup_result: LookupResult) -> LookupResult:
    """Return the class of the object to which a top-level name in a user's code is bound.

    Other definitions are returned unchanged.
    """
    sources, home, definition = (
        module_sources(modules),
        lookup_result.home,
        lookup_result.definition,
    )
    if (
        not isinstance(definition, AssignedName)
        or not definition.value.endswith("()")
        or lookup_result.ambiguous
        or home is None
        or sources is None
        or not sources.is_unchecked([lookup_result])
    ):
        return lookup_result
    results, key = cached_results(modules), ("object", SameFacts(definition))
    if key not in results:
        results[key] = UNKNOWN_RESULT  # of a name that depends on itself
        results[key] = receiver_class(modules, home, definition.value)
    result: LookupResult = results[key]
    return result


def receiver_class(
    modules: Modules, facts: ModuleFacts, receiver: str, *, scope: str = ""
) -> LookupResult:
    """Return the class of the `receiver` of a Call or Attribute, if known.

    The receiver "X" is an instance of X or of a subclass. "X()" is the result of calling X, and
    "X()[]" an element of this result.
    """
    if receiver.endswith("()[]"):
        return _element_class(modules, facts, receiver[:-2], scope)
    if not receiver.endswith("()"):
        return _instance(
            classes.convert_to_class(
                modules, classes.resolve_expression(modules, facts, receiver, scope=scope)
            )
        )
    callee = receiver[:-2]
    inner, chained, method = callee.rpartition("().")
    if chained:
        return _result_class(
            modules, receiver_class(modules, facts, f"{inner}()", scope=scope), method
        )
    lookup_result = classes.follow_assignment(
        modules, classes.resolve_expression(modules, facts, callee, scope=scope)
    )
    definition = lookup_result.definition
    if isinstance(definition, Class):
        if lookup_result.ambiguous or classes.find_metaclass(modules, lookup_result) is None:
            return LookupResult(state="unknown", trace=lookup_result.trace)
        return lookup_result
    if (
        not isinstance(definition, Function)
        or lookup_result.ambiguous
        or lookup_result.home is None
    ):
        return LookupResult(state="unknown", trace=lookup_result.trace)
    sources = module_sources(modules)
    creates = sources is not None and sources.returns_own_class(lookup_result.home, definition)
    if (creates or returns_self(definition)) and "." in callee:
        return classes.convert_to_class(
            modules,
            classes.resolve_expression(modules, facts, callee.rpartition(".")[0], scope=scope),
        )
    return _annotated_class(modules, lookup_result, definition)


def receiver_classes(
    modules: Modules, facts: ModuleFacts, receiver: str, *, scope: str = ""
) -> tuple[LookupResult, ...]:
    """Return the classes that f can return if `receiver` is "f()", or () if there is only one.

    For "f().m()", these are the classes that the methods m of the classes return.
    """
    results: list[LookupResult] = []
    for holder, function in _called_functions(modules, facts, receiver, scope):
        definition, home = function.definition, function.home
        if not isinstance(definition, Function) or function.ambiguous or home is None:
            return ()
        if holder is not None and returns_self(definition):
            results.append(holder)
            continue
        names = [name for name in union_members(definition.returns) if name != "None"]
        if not names and holder is not None:
            names = [definition.returns.strip("\"'")]
        results += [_annotation_class(modules, home, name) for name in names]
    return tuple(results) if all(each.state == "defined" for each in results) else ()


def _called_functions(
    modules: Modules, facts: ModuleFacts, receiver: str, scope: str
) -> list[tuple[LookupResult | None, LookupResult]]:
    """Return the functions that may be called in "f()" or "f().m()", each with the class of m."""
    callee = receiver.removesuffix("()")
    inner, chained, method = callee.rpartition("().")
    if not chained:
        target = classes.resolve_expression(modules, facts, callee, scope=scope)
        return [(None, classes.follow_assignment(modules, target))]
    holder = receiver_class(modules, facts, f"{inner}()", scope=scope)
    holders = (
        (holder,)
        if holder.state == "defined"
        else receiver_classes(modules, facts, f"{inner}()", scope=scope)
    )
    members = [(each, classes.find_member(modules, each, method)) for each in holders]
    return [(each, member) for each, member in members if member.state != "absent"]


def _element_class(modules: Modules, facts: ModuleFacts, receiver: str, scope: str) -> LookupResult:
    """Return the class of the elements of a list that a call returns."""
    functions = _called_functions(modules, facts, receiver, scope)
    _, function = functions[0] if len(functions) == 1 else (None, UNKNOWN_RESULT)
    definition, home = function.definition, function.home
    if not isinstance(definition, Function) or function.ambiguous or home is None:
        return UNKNOWN_RESULT
    match = _LIST.fullmatch(definition.returns.strip("\"'"))
    plain = match is not None and not any("async" in text for text in definition.decorators)
    if match is None or not plain:
        return UNKNOWN_RESULT
    return _annotation_class(modules, home, match[1].strip("\"'"))


def union_members(annotation: str) -> list[str]:
    """Return the names in `Union[…]` or `A | B`, or [] for another annotation."""
    match = _UNION.fullmatch(annotation.strip("\"'"))
    names = re.split(r"[,|]", match[1] or match[2]) if match is not None else []
    return [name.strip(" \"'") for name in names if name.strip()]


def _result_class(modules: Modules, holder: LookupResult, method: str) -> LookupResult:
    if holder.state != "defined":
        return holder
    lookup_result = classes.find_member(modules, holder, method)
    definition = lookup_result.definition
    if not isinstance(definition, Function) or lookup_result.ambiguous:
        return LookupResult(state="unknown", trace=lookup_result.trace)
    return (
        holder if returns_self(definition) else _annotated_class(modules, lookup_result, definition)
    )


def returns_self(function: Function) -> bool:
    """Return whether a method returns an instance of its class, as annotated or in the facts."""
    return function.returns.strip("\"'") in ("Self", "typing.Self")


def _annotated_class(
    modules: Modules, lookup_result: LookupResult, definition: Function
) -> LookupResult:
    home = lookup_result.home
    is_manager = any("contextmanager" in text for text in definition.decorators)
    loaded = _LOADED_CLASSES.search(getattr(lookup_result.owner, "name", ""))
    if loaded is not None and definition.name.rpartition(".")[2] in _LOADING_METHODS:
        module, _, name = classes.LOADED_BASES[loaded.lastgroup or ""].partition(":")
        return _instance(classes.convert_to_class(modules, look_up(modules, module, name)))
    if home is None or not definition.returns or is_manager:
        return LookupResult(state="unknown", trace=lookup_result.trace)
    if definition.returns.endswith("()"):
        return _evident_class(modules, home, definition)
    return _annotation_class(modules, home, definition.returns.strip("\"'"))


def _evident_class(modules: Modules, home: ModuleFacts, definition: Function) -> LookupResult:
    """Return the class of what a user's function without an annotation returns.

    The result of a method is unknown if another class of the user defines a method of this name.
    """
    results, key = cached_results(modules), ("returned", SameFacts(definition))
    if key not in results:
        results[key] = UNKNOWN_RESULT  # of a function that calls itself
        sources, method = module_sources(modules), definition.name.rpartition(".")[2]
        if "." not in definition.name or (sources is not None and sources.defines_once(method)):
            scope = definition.name
            results[key] = receiver_class(modules, home, definition.returns, scope=scope)
    result: LookupResult = results[key]
    return result


def _annotation_class(modules: Modules, home: ModuleFacts, name: str) -> LookupResult:
    """Return the class in an annotation. A constant that replaces a missing class is ignored."""
    target = classes.resolve_expression(modules, home, name)
    others = [
        each
        for each in module_index(home).top.get(name, ())
        if not isinstance(each, AssignedName) or each.value
    ]
    if target.ambiguous and isinstance(target.definition, Class) and len(others) == 1:
        target = msgspec.structs.replace(target, ambiguous=False)
    return _instance(classes.convert_to_class(modules, target))


def _instance(lookup_result: LookupResult) -> LookupResult:
    """Return the class in an annotation. The object may be an instance of a subclass.

    An Auto class of transformers represents the class of the loaded model, and Triton's `constexpr`
    a constant of any class. An object with the methods of a protocol has any class.
    """
    name = getattr(lookup_result.definition, "name", "")
    bases = getattr(lookup_result.definition, "bases", ())
    if any(classes.strip_subscript(base).rpartition(".")[2] == "Protocol" for base in bases):
        return LookupResult(state="unknown", trace=lookup_result.trace)
    if lookup_result.home is not None and re.match(r"Auto[A-Z]|constexpr$", name):
        return LookupResult(state="unknown", trace=lookup_result.trace)
    return msgspec.structs.replace(lookup_result, exact=False)
