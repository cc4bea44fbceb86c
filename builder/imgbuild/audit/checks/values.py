"""Finds strings that a callable does not accept, and results that are unpacked incorrectly."""

# A separate module: annotations of parameters and results.
from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from imgbuild.audit.names import classes
from imgbuild.audit.names.lookup import module_index
from imgbuild.audit.names.model import LookupResult, module_sources
from imgbuild.audit.names.scopes import Meaning
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import AssignedName, CallValues, Class, Function, ModuleFacts
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.report import ConflictRelation
from imgbuild.system.syntax import parse_expression

_LISTED = re.compile(r"[\w./-]+")  # not the description of a form, such as "name_[number]"
_DEPTH = 4  # functions that pass `**kwargs` on
_SPECIFIC = 6  # characters of a field; a shorter name is often used for other things too
_SHOWN = 8  # values in a message
_CHANGING_DECORATORS = ("contextmanager", "property", "remote", "jit", "compile")


def check_values(
    package_set: ImportablePackages, call: CallValues, what: Meaning, version: str
) -> Iterator[tuple[ConflictRelation, str, str]]:
    """Yield the problems of a user's call whose callable has a known signature."""
    sources = module_sources(package_set)
    for keyword, text in call.texts:
        place = _declaration(package_set, what.found, keyword)
        if place is not None:
            home, annotation = place
            given = (keyword, text)
            problems = list(_text_problems(package_set, what, given, home, annotation, version))
            if problems and not (sources is not None and sources.is_registered(text)):
                yield from problems
    if call.unpacked:
        count = _result_count(package_set, what.found, call.unpacked)
        if count and count != call.unpacked:
            text = f"unpacks {call.unpacked} values from {what.path}; {version} returns {count}"
            yield ConflictRelation.RESULT, f"{what.path}({count})", text


def _declaration(
    package_set: ImportablePackages, target: LookupResult, name: str, depth: int = 0
) -> tuple[ModuleFacts, str] | None:
    """Return the module and the annotation of a parameter, or of the field of a dataclass."""
    target = classes.follow_assignment(package_set, target)
    definition, home = target.definition, target.home
    if isinstance(definition, Function) and home is not None:
        return _function_declaration(package_set, home, definition, name, depth)
    if not isinstance(definition, Class):
        return None
    for ancestor in classes.class_ancestors(package_set, target):
        owner, place = ancestor.definition, ancestor.home
        if not isinstance(owner, Class) or place is None:
            return None
        inits = module_index(place).members.get(f"{owner.name}.__init__", ())
        declared = {each.name: each.annotation for each in owner.fields}
        if inits and isinstance(inits[0], Function):
            return _function_declaration(package_set, place, inits[0], name, depth)
        if name in declared:
            return place, declared[name]
    return None


def _function_declaration(
    package_set: ImportablePackages, home: ModuleFacts, function: Function, name: str, depth: int
) -> tuple[ModuleFacts, str] | None:
    """Return the declaration of a parameter of a function, or of the callee of its `**kwargs`."""
    given = {each.name: each.annotation for each in function.parameters}
    if name in given:
        return home, given[name]
    if len(function.kwargs_callees) != 1 or depth > _DEPTH:
        return None
    callee = function.kwargs_callees[0]
    target = classes.resolve_expression(package_set, home, callee, scope=function.name)
    return _declaration(package_set, target, name, depth + 1)


def _text_problems(
    package_set: ImportablePackages,
    what: Meaning,
    given: tuple[str, str],
    home: ModuleFacts,
    annotation: str,
    version: str,
) -> Iterator[tuple[ConflictRelation, str, str]]:
    keyword, text = given
    if annotation.strip("\"'") in ("str", "str | None", "Optional[str]"):
        allowed = _compared_values(package_set, what.found, home, keyword)
        if allowed and text not in allowed:
            shown = f"{version} does not have this value, and rejects unknown ones"
            message = f"passes {keyword}={text!r} to {what.path}; {shown}"
            yield ConflictRelation.ANNOTATION, f"{what.path}({keyword})", message
        return
    listed: set[str] = set()
    others = False
    for part in _annotation_parts(annotation):
        values = _literal_values(package_set, home, part)
        if values is not None:
            listed |= values
            continue
        others = True
        enumeration = classes.resolve_expression(package_set, home, dotted_name(part))
        allowed = _converted_values(package_set, what.found, enumeration, keyword)
        if allowed and text not in allowed:
            yield (
                ConflictRelation.VALUE,
                f"{what.path}({keyword})",
                f"passes {keyword}={text!r} to {what.path}; {version} accepts {_shown(allowed)}",
            )
    if listed and not others and text not in listed and all(map(_LISTED.fullmatch, listed)):
        yield (
            ConflictRelation.ANNOTATION,
            f"{what.path}({keyword})",
            f"passes {keyword}={text!r} to {what.path}; {version} lists {_shown(listed)}",
        )


def _compared_values(
    package_set: ImportablePackages, target: LookupResult, home: ModuleFacts, field: str
) -> frozenset[str]:
    """Return the strings that the package of a dataclass accepts for a field, or none."""
    sources = module_sources(package_set)
    definition = classes.follow_assignment(package_set, target).definition
    is_field = isinstance(definition, Class) and len(field) >= _SPECIFIC
    return sources.compared_values(home, field) if sources and is_field else frozenset()


def _shown(values: set[str] | frozenset[str]) -> str:
    names = sorted(values)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _annotation_parts(annotation: str) -> list[ast.expr]:
    """Return the types in an annotation other than None."""
    try:
        return list(_union_parts(parse_expression(annotation.strip("\"'"))))
    except (SyntaxError, ValueError):
        return []


def _union_parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the types in a union other than None."""
    left = [node]
    while left:
        node = left.pop()
        name = dotted_name(node.value).rpartition(".")[2] if isinstance(node, ast.Subscript) else ""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            left += [node.left, node.right]
        elif isinstance(node, ast.Subscript) and name in ("Union", "Optional"):
            left += node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        elif not isinstance(node, ast.Constant) or node.value is not None:
            yield node


def _literal_values(
    package_set: ImportablePackages, home: ModuleFacts, node: ast.expr
) -> set[str] | None:
    """Return the strings in `Literal[…]`, or in a name for it, or None for another type."""
    if isinstance(node, ast.Subscript):
        if dotted_name(node.value).rpartition(".")[2] != "Literal":
            return None
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not all(isinstance(each, ast.Constant) for each in items):  # names of other types
            return None
        return {text for each in items if (text := string_value(each)) is not None}
    name = dotted_name(node)
    target = classes.resolve_expression(package_set, home, name) if name else None
    definition = target.definition if target is not None and not target.ambiguous else None
    place = target.home if target is not None else None
    sources = module_sources(package_set)
    if not isinstance(definition, AssignedName) or place is None or sources is None:
        return None
    value = sources.bound_expression(place, definition.name)
    parts = list(_union_parts(value)) if value is not None else []
    is_literal = len(parts) == 1 and isinstance(parts[0], ast.Subscript)
    return _literal_values(package_set, place, parts[0]) if is_literal else None


def _converted_values(
    package_set: ImportablePackages, target: LookupResult, enumeration: LookupResult, field: str
) -> frozenset[str]:
    """Return the values of an enumeration to which a class converts a field, or none."""
    sources, home = module_sources(package_set), enumeration.home
    definition = enumeration.definition
    if sources is None or not isinstance(definition, Class) or home is None:
        return frozenset()
    text = f"{definition.name}(self.{field})"
    owner = classes.follow_assignment(package_set, target)
    for ancestor in classes.class_ancestors(package_set, owner):
        if ancestor.home is not None and sources.mentions(ancestor.home, text):
            return sources.enumeration_values(home, definition)
    return frozenset()


def _result_count(package_set: ImportablePackages, target: LookupResult, expected: int) -> int:
    """Return the number of values that a function returns, or 0 if it is unknown.

    The source is read only if the annotation does not have the `expected` number.
    """
    target = classes.follow_assignment(package_set, target)
    definition, home, sources = target.definition, target.home, module_sources(package_set)
    if not isinstance(definition, Function) or home is None or target.ambiguous or sources is None:
        return 0
    if any(name in text for text in definition.decorators for name in _CHANGING_DECORATORS):
        return 0
    annotated = _annotated_count(definition.returns)
    if annotated == expected:
        return annotated
    counts = sources.returned_counts(home, definition)
    if annotated:
        return annotated if counts <= {0, annotated} else 0
    return next(iter(counts)) if len(counts) == 1 else 0


def _annotated_count(annotation: str) -> int:
    """Return the number of types in `tuple[A, B]`, or 0 for another annotation."""
    parts = _annotation_parts(annotation) if annotation else []
    node = parts[0] if len(parts) == 1 and annotation[:1] in "tT\"'" else None
    if not isinstance(node, ast.Subscript) or dotted_name(node.value).rpartition(".")[2] not in (
        "tuple",
        "Tuple",
    ):
        return 0
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return 0 if any(map(_is_repeated, items)) else len(items)


def _is_repeated(node: ast.expr) -> bool:
    """Whether an item of `tuple[…]` stands for any number of values."""
    if isinstance(node, ast.Subscript):
        return dotted_name(node.value).rpartition(".")[2] == "Unpack"
    is_ellipsis = isinstance(node, ast.Constant) and node.value is Ellipsis
    return is_ellipsis or isinstance(node, ast.Starred)
