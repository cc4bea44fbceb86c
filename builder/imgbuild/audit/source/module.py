"""Python source read into facts, without running it.

Input: the bytes of a module. Output: ModuleFacts. The tree is walked once (`syntax_walk`);
names that appear by other means than a definition are looked for at the end (`syntax_lazy`).
"""

from __future__ import annotations

import ast
import gc
import warnings

import msgspec

from imgbuild.audit.source.expressions import Record
from imgbuild.audit.source.facts import Attribute, Call, Class, ModuleFacts
from imgbuild.audit.source.function_scopes import NONE
from imgbuild.audit.source.getattr_names import Appearing
from imgbuild.audit.source.lazy import appearing
from imgbuild.audit.source.text import BUILTINS, Source, string
from imgbuild.audit.source.walk import Walker


def read_module(source: bytes, module: str, file: str, *, package: bool) -> ModuleFacts:
    """The facts of one module; a syntax error is a fact too (`broken`). Pure.

    `module` is the dotted name, `file` the path in the wheel, `package` says that it is an
    `__init__`.
    """
    # A tree has no cycles, and looking for them costs a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _read(source, module, file, package=package)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ModuleFacts(module=module, file=file, package=package, broken=str(error) or "?")
    finally:
        if collecting:
            gc.enable()


def _read(source: bytes, module: str, file: str, *, package: bool) -> ModuleFacts:
    source = source.removeprefix(b"\xef\xbb\xbf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    walker = Walker(Source(source), tree, module, package=package)
    try:
        return _facts(walker, tree, source, module, file, package=package)
    finally:
        vars(walker).clear()  # it holds itself by its methods, and the tree should go at once


def _facts(
    walker: Walker, tree: ast.Module, source: bytes, module: str, file: str, *, package: bool
) -> ModuleFacts:
    walker.block(tree.body)
    more = appearing(tree, source, walker) or Appearing()
    bound = _bound(walker)
    stars = any(line.name == "*" for line in walker.imports)
    calls, attributes = _settle(walker, bound, stars=stars)
    return ModuleFacts(
        module=module,
        file=file,
        package=package,
        imports=tuple(walker.imports),
        functions=tuple(walker.functions),
        classes=tuple(_completed(one, walker.stored) for one in walker.classes),
        assigned=tuple(walker.assigned),
        calls=calls,
        attributes=attributes,
        exports=None if walker.exports is None else tuple(walker.exports),
        lazy=more.lazy,
        lazy_stars=tuple(dict.fromkeys(more.stars)),
        registers=tuple(dict.fromkeys(more.registers)),
        deleted=tuple(walker.deleted),
        dynamic=more.dynamic,
    )


def _bound(walker: Walker) -> set[str]:
    """The names that something at the top of the module binds, or imports anywhere."""
    names = {line.bound for line in walker.imports if not line.scope}
    names.update(one.name for one in walker.functions if "." not in one.name)
    names.update(one.name for one in walker.classes if "." not in one.name)
    names.update(one.name for one in walker.assigned)
    return names


def _settle(
    walker: Walker, bound: set[str], *, stars: bool
) -> tuple[tuple[Call, ...], tuple[Attribute, ...]]:
    """The records that turned out to be facts: their root is bound, their receiver has a type."""
    scoped = {line.bound for line in walker.imports if line.scope}
    calls: list[Call] = []
    attributes: list[Attribute] = []
    imported = {line.bound for line in walker.imports}
    for record in walker.records:
        receiver = _receiver(record, bound | scoped if record.types else bound, stars=stars)
        if receiver is None:
            continue
        if record.call is not None:
            calls.append(_call(record, record.call, receiver))
        elif _proves(record, walker.stored, imported):
            attributes.append(
                Attribute(record.line, record.expression, receiver, record.scope, record.guards)
            )
    return tuple(calls), tuple(attributes)


def _receiver(record: Record, bound: set[str], *, stars: bool) -> str | None:
    """The receiver of a record; None if the record is to be dropped."""
    if record.types is None:
        root = record.root
        known = not root or root in bound or (stars and root not in BUILTINS)
        return record.receiver if known else None
    kind = record.types.names.get(record.key, "")
    if not kind or kind == NONE:
        return None
    root = kind.partition(".")[0].removesuffix("()")
    return kind if root in bound or (stars and root not in BUILTINS) else None


def _proves(record: Record, stored: set[str], imported: set[str]) -> bool:
    """Whether a read says that an attribute must be there: the module may put it there itself."""
    expression = record.expression
    first, _, _ = expression.partition(".")
    if record.types is not None:
        return expression.rpartition(".")[2] not in stored
    if first != "self" and record.root and record.root not in imported:
        return False
    return expression not in stored and f"{first}.*" not in stored


def _call(record: Record, node: ast.Call, receiver: str) -> Call:
    plain = [item for item in node.args if type(item) is not ast.Starred]
    literals: list[str] = []
    for item in node.args:
        text = string(item)
        if text is None or len(text) > 200:
            break
        literals.append(text)
    return Call(
        record.line,
        record.expression,
        tuple(item.arg for item in node.keywords if item.arg is not None),
        len(plain),
        len(plain) != len(node.args),
        any(item.arg is None for item in node.keywords),
        receiver,
        tuple(literals),
        record.scope,
        record.guards,
    )


def _completed(one: Class, stored: set[str]) -> Class:
    """A class with what the module assigns on it from outside: `Class.name = …`."""
    prefix = f"{one.name}."
    extra = tuple(name.removeprefix(prefix) for name in stored if name.startswith(prefix))
    if not extra:
        return one
    return msgspec.structs.replace(
        one,
        attributes=one.attributes + tuple(sorted(name for name in extra if name != "*")),
        dynamic=one.dynamic or "*" in extra,
    )
