"""Reads the guards of imports of `marked` in source code."""

from __future__ import annotations

from textwrap import dedent

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.module import read_module

HEAD = "import torch, vllm\nfrom packaging.version import Version\n"
NEW = "Version(vllm.__version__) >= Version('0.9')"
DATA = (Guard("data"),)


def guards_of_import(source: str) -> tuple[Guard, ...]:
    """The guards of `import marked` in `source`."""
    facts = read_module((HEAD + dedent(source)).encode(), "m", "m.py", package=False)
    assert facts.broken == ""
    marked = [import_fact for import_fact in facts.imports if import_fact.module == "marked"]
    assert len(marked) == 1
    return marked[0].guards


def guard_kinds(source: str) -> list[str]:
    """The kinds of the guards of `import marked` in `source`."""
    return [str(guard.kind) for guard in guards_of_import(source)]


def version_guards(subject: str, spec: str) -> tuple[Guard, ...]:
    """The guards of a condition on the version of a package."""
    return (Guard("version", subject, spec),)
