"""Rewrites a user's program into equivalent statements from which more facts can be read.

In the result, `f(**options)` has the keywords of the dictionary `options`, `partial(f, x=1)` also
contains the call `f(x=1)`, `f.options(x=1)` of a remote function of Ray becomes `ray.remote(x=1)`,
and a name to which successive statements bind different values has a new name for each value.
"""

from __future__ import annotations

import ast
import copy
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from imgbuild.audit.source.scopes import BindingSite, binding_sites
from imgbuild.audit.source.simplified import simplify_program
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import (
    BLOCKS,
    Lines,
    child_nodes,
    children_on_lines,
    matching_lines,
    walk_tree,
)

# The function that holds the statements of a program: see `module.read_module`.
PROGRAM = "__main__"
_GLOBAL = re.compile(rb"global[ \t\\]")  # a search for a literal is fast
_INLINE_KEYWORDS = re.compile(rb"\*\*[ \t]*(?:\{|\(|dict\b|\w+\()")
_STARRED_NAME = re.compile(rb"\*\*[ \t]*([\w\x80-\xff]+)")
_STARRED_UNION = re.compile(rb"\*\*[ \t]*\(([^()]*\|[^()]*)\)")
_DICTIONARY = re.compile(rb"=[ \t]*(?:[(\\]\s*)*(?:\{|dict\b)")
_WORD = re.compile(rb"[\w\x80-\xff]+")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_CLOSURES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
# Methods of a dictionary that do not remove keys.
_READING_METHODS = frozenset(("copy", "get", "items", "keys", "setdefault", "update", "values"))
_ADDING_METHODS = frozenset(("setdefault", "update"))
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_MOST_KEYWORDS = 100_000  # that the dictionaries of a file may add to calls
_REMOTE_DECORATOR = "ray.remote"
_VERSION = "·"  # between a name and a number; valid in names, and not in use


def rewrite_program(tree: ast.Module, source: bytes) -> None:
    """Rewrite the statements of a program. The top-level ones also become the function PROGRAM."""
    expressions = b":=" in source  # which bind names
    names = simplify_program(tree, source) | _dictionaries(source)
    if names or b"partial(" in source or _INLINE_KEYWORDS.search(source) is not None:
        words = sorted(name.encode() for name in names)
        pattern = re.compile(b"|".join((rb"\*\*", b"partial", *map(re.escape, words))))
        nodes = _NameTree(tree, names, matching_lines(source, pattern))
        _expand_keywords(nodes, expressions=expressions)
    if b".options(" in source:
        _set_options(tree)
    functions = list(_functions(tree.body))
    tree.body.append(_program(tree, source, expressions=expressions))
    for function in functions:
        _rename_values(function.body, _parameters(function), expressions=expressions)


def _parameters(scope: _Scope) -> set[str]:
    if isinstance(scope, ast.Module):
        return set()
    given = scope.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {each.arg for each in arguments if each is not None}


def _dictionaries(source: bytes) -> set[str]:
    """Return the names in `**name` that may be bound to a literal dictionary."""
    starred = set(_STARRED_NAME.findall(source))
    starred.update(word for each in _STARRED_UNION.findall(source) for word in _WORD.findall(each))
    starts = [match.start() for match in _DICTIONARY.finditer(source)] if starred else []
    lines = [source[source.rfind(b"\n", 0, start) + 1 : start] for start in starts]
    return {
        name.decode(errors="replace")
        for line in lines
        for name in _WORD.findall(line)
        if name in starred
    }


def _functions(body: Sequence[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for statement in body:
        if isinstance(statement, _FUNCTIONS):
            yield statement
        for block in BLOCKS[type(statement)]:
            yield from _functions(getattr(statement, block))


def _set_options(tree: ast.Module) -> None:
    """Read `f.options(x=1)` as a call of `ray.remote`, if f has this decorator."""
    remote: dict[str, ast.expr] = {}
    nodes = walk_tree(tree)
    for node in nodes:
        for decorator in getattr(node, "decorator_list", ()):
            name_node = decorator.func if isinstance(decorator, ast.Call) else decorator
            if dotted_name(name_node) == _REMOTE_DECORATOR:
                remote[node.name] = name_node  # type: ignore[attr-defined]
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            decorator = remote.get(dotted_name(owner))
            if isinstance(owner, ast.Call) and dotted_name(owner.func) == _REMOTE_DECORATOR:
                decorator = owner.func
            if decorator is not None and node.func.attr == "options":
                node.func = decorator


def _program(tree: ast.Module, source: bytes, *, expressions: bool) -> ast.FunctionDef:
    """Return the statements of a program as a function.

    Statements under `if __name__ == …` are included.
    """
    body: list[ast.stmt] = []
    nodes = walk_tree(tree) if _may_declare_names(source) else ()
    names = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    for node in tree.body:
        if isinstance(node, ast.If) and _names_module(node.test):
            body += node.body
        elif not isinstance(node, (ast.Import, ast.ImportFrom, *_FUNCTIONS, ast.ClassDef)):
            body.append(node)
    _rename_values(body, names, expressions=expressions, shared=True)
    if names:
        body.insert(0, ast.Global(sorted(names), lineno=1, col_offset=0))
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.FunctionDef(
        PROGRAM, nothing, body or [ast.Pass(lineno=1, col_offset=0)], [], lineno=1, col_offset=0
    )


def _may_declare_names(source: bytes) -> bool:
    """Return whether a source may have a `global` statement."""
    for match in _GLOBAL.finditer(source):
        start = match.start()
        while start and source[start - 1] in b" \t":
            start -= 1
        if not start or source[start - 1] in b"\n:;":
            return True
    return False


def _names_module(test: ast.expr) -> bool:
    """Whether an expression contains `__name__`."""
    return any(
        "__name__" in str(getattr(node, field, ""))
        for node in walk_tree(test)
        for field in ("id", "attr", "value")
        if not isinstance(getattr(node, field, None), ast.AST)
    )


# -- keywords


class _Keys(NamedTuple):
    """The known keys of a dictionary, and whether it has no others."""

    names: list[str]
    complete: bool


class _NameTree:
    """The parent nodes, the calls and the uses of `names`, in the module and in each function.

    Only nodes that extend over `lines` are visited.
    """

    def __init__(self, tree: ast.Module, names: Collection[str], lines: Lines) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.added = 0  # keywords and keys from other dictionaries
        self.calls: list[ast.Call] = []
        self.uses: dict[_Scope, list[ast.Name]] = {tree: []}
        left: list[tuple[ast.AST, Lines, tuple[_Scope, ...]]] = [(tree, lines, (tree,))]
        while left:
            node, lines, around = left.pop()
            if isinstance(node, _FUNCTIONS):
                around = (*around, node)
                self.uses[node] = []
            elif isinstance(node, ast.Name):
                for scope in reversed(around) if node.id in names else ():
                    self.uses[scope].append(node)
                    if node.id in _parameters(scope):
                        break
            elif isinstance(node, ast.Call):
                self.calls.append(node)
            for child, below in children_on_lines(node, lines):
                self.parents[child] = node
                left.append((child, below, around))


def _expand_keywords(nodes: _NameTree, *, expressions: bool) -> None:
    """Replace `**{…}` and `**name` of a local dictionary by keywords. Add the calls of `partial`.

    The names of `nodes` are the names of dictionaries. For `expressions`, see `binding_sites`.
    """
    for scope in nodes.uses:
        _expand_scope(scope, nodes, ast.Dict, expressions=expressions)
    for call in nodes.calls:
        if any(word.arg is None for word in call.keywords):
            call.keywords = [each for word in call.keywords for each in _inline_keywords(word)]
    for scope in nodes.uses:
        _expand_scope(scope, nodes, ast.keyword, expressions=expressions)
    for call in nodes.calls:
        if dotted_name(call.func).rpartition(".")[2] == "partial" and call.args:
            _add_call(call)


def _inline_keywords(word: ast.keyword) -> list[ast.keyword]:
    keys = _keys(word.value) if word.arg is None else None
    if keys is None:
        return [word]
    rest = [] if keys.complete else [word]
    if rest and isinstance(word.value, ast.Dict):
        pairs = list(zip(word.value.keys, word.value.values, strict=True))
        if all(key is None or string_value(key) is not None for key, _ in pairs):
            spread = [value for key, value in pairs if key is None]
            rest = [ast.copy_location(ast.keyword(None, value), word) for value in spread]
    return [*(_keyword(name, word) for name in keys.names), *rest]


def _keyword(name: str, place: ast.keyword) -> ast.keyword:
    value = ast.copy_location(ast.Constant(None), place.value)
    return ast.copy_location(ast.keyword(name, value), place)


def _keys(node: ast.expr | None) -> _Keys | None:
    """Return the constant keys of a dictionary, or None if none is known."""
    names: list[str | None] = []
    complete = True
    if isinstance(node, ast.Dict):
        names = [string_value(key) if key is not None else None for key in node.keys]
    elif isinstance(node, ast.Call) and dotted_name(node.func) == "dict":
        names = [word.arg for word in node.keywords]
        complete = not node.args
    else:
        return None
    constant = [name for name in names if name is not None]
    complete = complete and len(constant) == len(names)
    return _Keys(constant, complete) if constant or complete else None


def _expand_scope(
    scope: _Scope,
    nodes: _NameTree,
    kind: type[ast.Dict | ast.keyword],
    *,
    expressions: bool,
) -> None:
    """Expand `**name` if the scope binds `name` once, to a dictionary with constant keys.

    `kind` selects the uses: in a call, or in another dictionary.
    """
    by_name: dict[str, list[ast.Name]] = {}
    for use in nodes.uses[scope]:
        by_name.setdefault(use.id, []).append(use)
    sites = None
    for name, uses in by_name.items():
        starred = [
            word
            for use in uses
            if isinstance(word := nodes.parents.get(use), kind) and _is_starred(word, use)
        ]
        stores = [use for use in uses if not isinstance(use.ctx, ast.Load)]
        if not starred or len(stores) != 1:
            continue
        bound = nodes.parents[stores[0]]
        keys = _keys(bound.value) if isinstance(bound, (ast.Assign, ast.AnnAssign)) else None
        if sites is None:
            sites = binding_sites(scope.body, expressions=expressions)
        others = {_classify_use(nodes.parents, use) for use in uses if use is not stores[0]}
        if keys is None or "other" in others or len(sites.get(name, ())) != 1:
            continue
        later = [each for use in uses for each in _added_keys(nodes.parents, use, bound)]
        nodes.added += len(starred) * (len(keys.names) + len(later))
        if nodes.added > _MOST_KEYWORDS:
            return
        more = "add" in others or not keys.complete
        for word in starred:
            end = word.value.lineno if isinstance(word, ast.keyword) else word.lineno
            added = [*keys.names, *(key for key, line in later if line < end)]
            if isinstance(word, ast.Dict):
                _replace_spread(word, name, added, more=more)
            else:
                _replace_keyword(nodes.parents[word], word, added, more=more)
        if len(starred) == 1 and kind is ast.keyword and name not in _parameters(scope):
            _add_conditional_calls(nodes.parents, uses, bound, starred[0], sites)


def _add_conditional_calls(
    parents: Mapping[ast.AST, ast.AST],
    uses: Sequence[ast.Name],
    bound: ast.AST,
    word: ast.AST,
    sites: Mapping[str, Sequence[BindingSite]],
) -> None:
    """Add `f(key=…)` to `if …: name["key"] = …` for the later call `f(**name)`.

    The call must be in the block that binds the name, so that it always runs.
    """
    call = parents[word]
    function = dotted_name(call.func) if isinstance(call, ast.Call) else ""
    block = parents.get(bound)
    places = sites.get(function.partition(".")[0], ())  # of the function, if not global
    if not isinstance(call, ast.Call) or not function or not isinstance(bound, ast.stmt):
        return
    if len(places) > 1 or any(place.line >= bound.lineno for place in places):
        return
    if parents.get(_statement(parents, call)) is not block:
        return
    every = {key for use in uses for key, _ in _set_keys(parents, use)}
    for use in uses:
        place = around = _statement(parents, use)
        keys = [key for key, line in _set_keys(parents, use) if line < call.lineno]
        while isinstance(condition := parents.get(around), ast.If) and condition is not block:
            tested = map(string_value, filter(_is_expression, walk_tree(condition.test)))
            branch = condition.body if around in condition.body else condition.orelse
            # `if "key" in fields: … else: …`, or a branch that does not reach the call
            if not every.isdisjoint(tested) or isinstance(branch[-1], _EXITS):
                keys = []
            around = condition
        if not keys or place is around or parents.get(around) is not block:
            continue
        if isinstance(place, (ast.Assign, ast.Expr)):
            star = ast.copy_location(ast.Starred(ast.Constant(None), ast.Load()), use)
            rest = ast.copy_location(
                ast.keyword(None, ast.copy_location(ast.Constant(None), use)), use
            )
            added = ast.Call(call.func, [star], [*(_keyword(key, rest) for key in keys), rest])
            both = ast.Tuple([place.value, ast.copy_location(added, use)], ast.Load())
            place.value = ast.copy_location(both, place.value)


def _is_expression(node: ast.AST) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.expr)


def _statement(parents: Mapping[ast.AST, ast.AST], node: ast.AST) -> ast.AST:
    """Return the statement that contains an expression."""
    while not isinstance(node, ast.stmt) and node in parents:
        node = parents[node]
    return node


def _is_starred(node: ast.AST, use: ast.Name) -> TypeGuard[ast.keyword | ast.Dict]:
    """Whether a node uses a name as `**name`, in a call or in a dictionary."""
    if isinstance(node, ast.Dict):
        return any(
            key is None and value is use for key, value in zip(node.keys, node.values, strict=True)
        )
    return isinstance(node, ast.keyword) and node.arg is None


def _added_keys(
    parents: Mapping[ast.AST, ast.AST], use: ast.Name, bound: ast.AST
) -> Iterator[tuple[str, int]]:
    """Yield the keys that a use adds, and its line, in the block that binds the name."""
    if parents.get(_statement(parents, use)) is parents.get(bound):
        yield from _set_keys(parents, use)


def _set_keys(parents: Mapping[ast.AST, ast.AST], use: ast.Name) -> Iterator[tuple[str, int]]:
    """Yield keys and lines of `name["key"] = …` and `name.update(key=…)`."""
    item = parents[use]
    statement = parents[item]
    keys: Sequence[str] = ()
    if isinstance(item, ast.Subscript) and item.value is use:
        key = string_value(item.slice)
        if key is not None and isinstance(statement, ast.Assign) and item in statement.targets:
            keys = [key]
    elif (
        isinstance(item, ast.Attribute)
        and item.attr == "update"
        and isinstance(statement, ast.Call)
        and isinstance(parents.get(statement), ast.Expr)
    ):
        parts = [_keys(each) for each in statement.args]
        keys = [name for part in parts if part is not None for name in part.names]
        keys += [word.arg for word in statement.keywords if word.arg is not None]
    yield from ((key, use.lineno) for key in keys)


def _replace_spread(node: ast.Dict, name: str, keys: Sequence[str], *, more: bool) -> None:
    """Replace `**name` in a dictionary by keys. With `more`, it may have other keys."""
    items = list(zip(node.keys, node.values, strict=True))
    node.keys, node.values = [], []
    for key, value in items:
        spread = key is None and isinstance(value, ast.Name) and value.id == name
        for each in keys if spread else ():
            node.keys.append(ast.copy_location(ast.Constant(each), value))
            node.values.append(ast.copy_location(ast.Constant(None), value))
        if not spread or more:
            node.keys.append(key)
            node.values.append(value)


def _replace_keyword(call: ast.AST, word: ast.keyword, keys: Sequence[str], *, more: bool) -> None:
    """Replace `**name` in a call by keywords. With `more`, the dictionary may have other keys."""
    if isinstance(call, ast.Call) and word in call.keywords:
        given = {each.arg for each in call.keywords}
        added = [_keyword(key, word) for key in dict.fromkeys(keys) if key not in given]
        at = call.keywords.index(word)
        call.keywords[at : at + 1] = [*added, *([word] if more else [])]


def _classify_use(parents: Mapping[ast.AST, ast.AST], use: ast.Name) -> str:
    """Return the effect of a use on the keys of a dictionary: "keep", "add" or "other"."""
    parent = parents[use]
    if isinstance(parent, ast.Subscript) and parent.value is use:
        kinds = {ast.Load: "keep", ast.Store: "add"}
        return kinds.get(type(parent.ctx), "other")
    if isinstance(parent, ast.Attribute) and isinstance(parents[parent], ast.Call):
        effect = "keep" if parent.attr in _READING_METHODS else "other"
        return "add" if parent.attr in _ADDING_METHODS else effect
    return "keep" if _is_starred(parent, use) else "other"


def _add_call(node: ast.Call) -> None:
    """Add `f(x=1)` to the arguments of `partial(f, x=1)`. Further arguments are unknown."""
    function, *rest = node.args
    if not dotted_name(function):
        return
    unknown = ast.copy_location(ast.Constant(None), function)
    call = ast.Call(
        function,
        [*rest, ast.copy_location(ast.Starred(unknown, ast.Load()), function)],
        [*node.keywords, ast.copy_location(ast.keyword(None, unknown), function)],
    )
    node.args, node.keywords = [ast.copy_location(call, node)], []


# -- names


def _rename_values(
    body: list[ast.stmt], bound: set[str], *, expressions: bool, shared: bool = False
) -> None:
    """Rename a name that consecutive statements rebind, so that each value has its own name.

    `bound` contains the names with earlier values. Statements that are `shared` with other code are
    copied. For `expressions`, see `binding_sites`.
    """
    plain: dict[str, list[int]] = {}
    for at, statement in enumerate(body):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name):
                plain.setdefault(target.id, []).append(at)
    several = {
        name: places
        for name, places in plain.items()
        if len(places) > 1 and name not in bound and any(_is_call(body[at]) for at in places)
    }
    if not several:
        return
    sites = binding_sites(body, expressions=expressions)
    several = {
        name: places for name, places in several.items() if len(sites.get(name, ())) == len(places)
    }
    names = [list(_names(each)) for each in body] if several else []
    closed = {node.id for each in names for node, inner in each if inner}
    several = {name: places for name, places in several.items() if name not in closed}
    for at, statement in enumerate(body) if several else ():
        used = {node.id for node, _ in names[at]} & several.keys()
        numbers = {name: bisect_left(several[name], at) for name in used}
        if any(numbers[name] > 1 or _has(several[name], at) for name in used):
            if shared:
                body[at] = copy.deepcopy(statement)
                names[at] = list(_names(body[at]))
            for node, _ in names[at]:
                stored = not isinstance(node.ctx, ast.Load)
                number = numbers.get(node.id, 0) + stored
                if number > 1 and node.id in several:
                    node.id = f"{node.id}{_VERSION}{number}"


def _has(places: Sequence[int], at: int) -> bool:
    """Return whether sorted numbers contain `at`."""
    place = bisect_left(places, at)
    return place < len(places) and places[place] == at


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)


def _names(statement: ast.stmt) -> Iterator[tuple[ast.Name, bool]]:
    """Yield the names in a statement, and whether each is in a nested function or class."""
    left: list[tuple[ast.AST, bool]] = [(statement, False)]
    while left:
        node, closed = left.pop()
        if isinstance(node, ast.Name):
            yield node, closed
        closed = closed or isinstance(node, _CLOSURES)
        left.extend((child, closed) for child in child_nodes(node))
