"""Tests walking over syntax trees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from imgbuild.audit.source import tree

SKIPPED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
MORE = """
def f(a, /, b=1, *c, d, **e) -> int: return {**a, b: c}
match a:
    case {"x": [1, *y], **z} | C(k=1) if y: pass
try: pass
except* E as e: pass
async def g(): [x async for x in y if x]; await z
lambda x, *, y=1: (yield)
f"{a!r:>{b}}"
"""


def test_tree_walk_yields_the_same_nodes_as_ast_walk() -> None:
    for source in (MORE, Path(__file__).read_text(encoding="utf-8")):
        module = ast.parse(source)
        expected = [node for node in ast.walk(module) if not isinstance(node, SKIPPED)]
        assert tree.walk_tree(module) == expected


def test_blocks_of_a_tree_contain_all_statements() -> None:
    module = ast.parse(MORE)
    found: list[ast.AST] = [module]
    for node in found:
        for name in tree.BLOCKS[type(node)]:
            found += getattr(node, name)
    statements = [node for node in ast.walk(module) if isinstance(node, ast.stmt)]
    assert set(statements) <= set(found)


LINES = b"""\
@decorator(word)
def function(argument):
    other = [
        1, word,
    ]
    return f'''
        {word.attribute}'''
value = 2
"""


def test_nodes_on_lines_contain_all_nodes_on_these_lines() -> None:
    module = ast.parse(LINES)
    lines = tree.matching_lines(LINES, re.compile(b"word"))
    assert lines == [1, 4, 7]
    nodes = list(tree.nodes_on_lines(module, lines))
    assert [node for node in tree.walk_tree(module) if node in nodes] == nodes
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    assert sorted(names) == ["decorator", "word", "word", "word"]
    assert not [node for node in nodes if getattr(node, "lineno", 0) == 8]
    assert list(tree.nodes_on_lines(module, [])) == []


def test_matching_lines_count_all_line_ends_of_python() -> None:
    assert tree.matching_lines(b"a\r\nb\rword\nword word", re.compile(b"word")) == [3, 4, 4]
