#!/usr/bin/env python3
"""Writes the tree of folders in ARCHITECTURE.md, in the order of tests/layers.py.

tools/architecture.py            write the tree
    tools/architecture.py --check    exit with status 5 if the tree is out of date
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.layers import LEVELS, ROOT_MODULES  # noqa: E402

PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "builder" / "imgbuild"
START, END = "<!-- tree: tools/architecture.py -->\n", "<!-- end of tree -->\n"
STALE_STATUS = 5
WIDTH = 15


def tree_block() -> str:
    """Return the levels as a code block, highest level first, with number, folder and purpose."""
    lines = []
    for number, level in reversed(list(enumerate(LEVELS, start=1))):
        if {*level} <= {*ROOT_MODULES}:
            for index, name in enumerate(level):
                label = f"{number:2}" if index == 0 else "  "
                lines.append(
                    f"{label}  {f'{name}.py':{WIDTH}} {module_purpose(PACKAGE / f'{name}.py')}"
                )
            continue
        folders = [name for name in level if (PACKAGE / name).is_dir()]
        for index, name in enumerate(folders):
            label = f"{number:2}" if index == 0 else "  "
            lines += (f"{label if depth == 0 else '  '}  {text}" for depth, text in _rows(name))
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _rows(name: str, depth: int = 0) -> Iterator[tuple[int, str]]:
    folder = PACKAGE / name
    label = "  " * depth + folder.name + "/"
    yield depth, f"{label:{WIDTH}} {module_purpose(folder)}"
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _rows(str(inner.relative_to(PACKAGE)), depth + 1)


@functools.cache
def module_purpose(path: Path) -> str:
    """Return the first line of the docstring of a module, or of `__init__` for a folder."""
    file = path / "__init__.py" if path.is_dir() else path
    text = file.read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def _line(path: Path) -> str:
    names = [
        f"`{node.name}`"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    public = f" ({', '.join(names)})" if names else ""
    return f"- `{path.relative_to(PACKAGE)}`: {module_purpose(path)}{public}"


def module_index() -> str:
    """Return a section for each level, highest first, with a line for each module."""
    lines: list[str] = []
    for number, level in reversed(list(enumerate(LEVELS, start=1))):
        lines.append(f"## Level {number}\n")
        for name in level:
            if not (PACKAGE / name).is_dir():
                lines.append(_line(PACKAGE / f"{name}.py"))
                continue
            for folder in sorted(path.parent for path in (PACKAGE / name).rglob("__init__.py")):
                lines.append(f"\n**{folder.relative_to(PACKAGE)}/**: {module_purpose(folder)}\n")
                lines += [
                    _line(path)
                    for path in sorted(folder.glob("*.py"))
                    if path.name != "__init__.py"
                ]
        lines.append("")
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def render_page() -> str:
    """Return the text of ARCHITECTURE.md with the current tree."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}{tree_block()}{END}{tail}"


def main() -> int:
    """Write the page, or compare it with --check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only compare the page; exit with status 5 if it is out of date",
    )
    options = parser.parse_args()
    text = render_page()
    if options.check:
        stale = PAGE.read_text(encoding="utf-8") != text
        if stale:
            print("ARCHITECTURE.md is out of date; run tools/architecture.py", file=sys.stderr)
        return STALE_STATUS if stale else 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
