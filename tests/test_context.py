"""Tests that code uses the shared context and reports messages through a reporter."""

import ast

from tests.layers import PRINTERS
from tests.support.source_code import all_nodes, module_imports, package_modules

BOTH = 10  # functions that may take `store` and `http` side by side


def test_only_modules_of_cli_and_pipeline_and_the_process_module_print():
    printing = {
        name
        for name, tree in package_modules().items()
        for dotted, _ in module_imports(tree)
        if dotted.startswith("imgbuild.system.console")
    }
    others = {name for name in printing if not {name, name.partition(".")[0]} & set(PRINTERS)}
    assert not others, "print messages with system.reporter"
    assert "system.process" in printing, "remove the exception for system.process"


def test_functions_receive_cache_and_http_client_in_one_context():
    both = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in package_modules().items()
        for node in all_nodes(tree)
        if isinstance(node, ast.FunctionDef)
        and {"store", "http"} <= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    ]
    assert len(both) <= BOTH, f"pass a cache.context.Context instead: {both}"
