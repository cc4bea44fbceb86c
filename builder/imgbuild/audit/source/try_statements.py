"""Reads guards and flags in branches of `try` statements."""

# A separate module: one type of statement.
from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import msgspec

from imgbuild.audit.source.conditions import ConditionReader
from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.name_values import Branches, Guards, NameValue
from imgbuild.audit.source.scopes import imported_module
from imgbuild.audit.source.text import dotted_name

TryStatement = ast.Try | ast.TryStar
AbsoluteFunction = Callable[[ast.ImportFrom], str]

# Exceptions for a missing package or name, exceptions that any code (also imports) can raise, and
# all exceptions whose handlers hide a finding.
_IMPORT_ERRORS = frozenset(("ImportError", "ModuleNotFoundError", "PackageNotFoundError"))
_ANY_ERRORS = frozenset(("Exception", "BaseException", "OSError", "RuntimeError"))
_HIDING_ERRORS = _IMPORT_ERRORS | _ANY_ERRORS | {"AttributeError", "TypeError", "NameError"}


class TryGuards(msgspec.Struct, frozen=True):
    """The guards of each branch of a `try`, and of names that record which branch ran."""

    body: Guards
    handlers: tuple[Guards, ...]
    orelse: Guards
    flags: dict[str, Branches]


def read_try(
    node: TryStatement,
    conditions: ConditionReader,
    absolute: AbsoluteFunction,
    after: Sequence[ast.stmt] = (),
) -> TryGuards:
    """Return the guards of a `try`. `absolute` returns the module of a `from` import.

    `after` are the statements that follow the `try` in its block. They may raise the exception that
    a handler stored.
    """
    caught = [_caught_names(handler) for handler in node.handlers]
    raised = _guards_of_raise(node, conditions)
    if raised is not None:
        yes, no = raised
        return TryGuards(body=(), handlers=tuple(yes for _ in caught), orelse=no, flags={})
    subjects = _subjects(node.body, conditions, absolute)
    hidden = sorted(
        {
            name
            for names, handler in zip(caught, node.handlers, strict=True)
            if not _always_raises(handler.body) and not _raises_later(handler, after)
            for name in names
            if name in _HIDING_ERRORS
        }
    )
    present = tuple(Guard("present", subject) for subject in subjects)
    absent = (Guard("absent", ", ".join(subjects)),) if subjects else ()
    more = not _queries_only(node.body, conditions)
    handlers = tuple(
        absent
        if absent and _handles_absence(names, more=more)
        else (Guard("unknown", _except_text(names)),)
        for names in caught
    )
    imports = [names for names in caught if (_IMPORT_ERRORS | _ANY_ERRORS) & set(names)]
    sure = all(_handles_absence(names, more=more) for names in imports)
    failed = absent if sure or not imports else (Guard("unknown", _except_text(imports[-1])),)
    return TryGuards(
        body=(Guard("handled", ", ".join(hidden)),) if hidden else (),
        handlers=handlers,
        orelse=present,
        flags=_flags(node, present, failed) if absent and imports else {},
    )


def _caught_names(handler: ast.ExceptHandler) -> list[str]:
    if handler.type is None:
        return ["BaseException"]
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [dotted_name(item).rpartition(".")[2] for item in types]


def _handles_absence(names: list[str], *, more: bool) -> bool:
    """Return whether handlers of these exceptions run only if a package or a name is missing.

    `more` is set if the body contains other code than imports and reads of versions.
    """
    wide = bool(_ANY_ERRORS & set(names))
    return not (wide and more) and bool((_IMPORT_ERRORS | _ANY_ERRORS) & set(names))


def _queries_only(body: list[ast.stmt], conditions: ConditionReader) -> bool:
    """Return whether statements only import modules, read versions, or cannot fail."""
    before = conditions.names.state()
    asks = all(_is_query(statement, conditions) for statement in body)
    conditions.names.restore(before)
    return asks


def _is_query(statement: ast.stmt, conditions: ConditionReader) -> bool:
    if isinstance(statement, ast.Import):
        for bound, module in map(imported_module, statement.names):
            conditions.names.bind_name(bound, NameValue(module=module))
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
        return isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass))
    value = statement.value
    if value is None or isinstance(value, (ast.Constant, ast.Name)):
        return True
    return bool(conditions.versions.package(value))


def _except_text(names: list[str]) -> str:
    return f"except {', '.join(names)}"


def _always_raises(block: list[ast.stmt]) -> bool:
    return isinstance(block[-1], ast.Raise)


def _raises_later(handler: ast.ExceptHandler, after: Sequence[ast.stmt]) -> bool:
    """Return whether `except E as error: kept = error` is followed by `if kept: raise kept`."""
    names = {
        target.id
        for statement in handler.body
        if isinstance(statement, ast.Assign) and dotted_name(statement.value) == handler.name
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(last, ast.Raise) and last.exc is not None and dotted_name(last.exc) in names
        for statement in (after if names else ())
        for last in (statement.body[-1] if isinstance(statement, ast.If) else statement,)
    )


def _guards_of_raise(node: TryStatement, conditions: ConditionReader) -> Branches | None:
    """Return the guards of a `try` that is equivalent to an `if`, or None.

    An example is `try: if not is_torch_available(): raise X` with `except X`.
    """
    first = node.body[0]
    if len(node.body) != 1 or not isinstance(first, ast.If) or first.orelse:
        return None
    if not _always_raises(first.body):
        return None
    yes, no = conditions.read(first.test)
    return (yes, no) if yes or no else None


def _subjects(
    body: list[ast.stmt], conditions: ConditionReader, absolute: AbsoluteFunction
) -> list[str]:
    subjects: list[str] = []
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            subjects.extend(imported_subjects(statement, absolute))
        elif isinstance(statement, (ast.Assign, ast.Expr)):
            package = conditions.versions.package(statement.value)
            if package:
                subjects.append(package)
    return list(dict.fromkeys(subjects))


def imported_subjects(node: ast.Import | ast.ImportFrom, absolute: AbsoluteFunction) -> list[str]:
    """Return the modules, and names as "module:name", that an import requires."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = absolute(node)
    return [module if alias.name == "*" else f"{module}:{alias.name}" for alias in node.names]


def _flags(node: TryStatement, present: Guards, missing: Guards) -> dict[str, Branches]:
    """Return names whose values show whether the `try` succeeded, with guards.

    These are flags, or modules that become None.
    """
    succeeded = {name: True for name, value in _constants([*node.body, *node.orelse]) if value}
    for statement in node.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                succeeded[alias.asname or alias.name.partition(".")[0]] = True
    failed = {
        name for handler in node.handlers for name, value in _constants(handler.body) if not value
    }
    flags: dict[str, Branches] = {
        name: (present, missing) for name in succeeded if name in failed or _is_flag(node, name)
    }
    missed = {
        name for handler in node.handlers for name, value in _constants(handler.body) if value
    }
    refuted = {name for name, value in _constants([*node.body, *node.orelse]) if not value}
    flags.update(dict.fromkeys(missed & refuted, (missing, present)))
    return flags


def _is_flag(node: TryStatement, name: str) -> bool:
    """Return whether a `try` changes a name with a constant value, such as a False flag."""
    return any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
        for statement in (*node.body, *node.orelse)
    )


def _constants(block: list[ast.stmt]) -> list[tuple[str, bool]]:
    constants: list[tuple[str, bool]] = []
    for statement in block:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            value = statement.value.value
            if value is None or isinstance(value, bool):
                constants.extend(
                    (target.id, bool(value))
                    for target in statement.targets
                    if isinstance(target, ast.Name)
                )
    return constants
