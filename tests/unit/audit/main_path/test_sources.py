"""Tests the search for functions in the sources of packages."""

from __future__ import annotations

import ast

from imgbuild.audit.main_path.sources import read_function, read_source
from tests.support.source_modules import SourceModules

SOURCE = '''\
class Model:
    @property
    def first(
        self,
    ) -> int:
# a comment
        """Text
that begins a line."""
        return 1

    async def second(self):
        return [
0]

if True:
    def third(): return "x"
else:
    def third(): return "y"
'''


def test_function_is_the_same_if_only_its_lines_are_parsed() -> None:
    modules = SourceModules({"demo 1.0": {"demo/models.py": SOURCE}})
    whole = read_source(modules, "demo.models")
    assert whole is not None
    places = {
        (node.name, node.lineno): node
        for node in ast.walk(whole.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert sorted(name for name, _ in places) == ["first", "second", "third", "third"]
    for (name, line), node in places.items():
        function = read_function(modules, "demo.models", f"Model.{name}", line)
        assert function is not None
        assert ast.dump(ast.Module(function.body, [])) == ast.dump(ast.Module(node.body, []))
    assert read_function(modules, "demo.models", "third", 3) is None
