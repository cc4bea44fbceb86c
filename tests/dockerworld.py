"""A small project that other builders can build: Debian's own shell and Python, uv, a few wheels.

Comes in: a folder. Goes out: the same kind of `Project` as `smallproject` makes, with the one wheel
that a Dockerfile cannot do without, uv, made of the program that this environment has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from uv import find_uv_bin

from imgbuild.values import Arch
from tests import smallproject
from tests.servers import Site, serve
from tests.smallproject import Project

BASE = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
DROP = """\
drop:
  - package: rival
    beside: tools
    paths: [bin/ascript, share/tools/*, lib/python3.11/site-packages/tools/*]
    reason: tools ships the same paths
"""
SCRIPT = b"#!python\nprint('a script')\n"


def uv() -> dict[str, bytes]:
    """The files of a wheel of uv."""
    data = f"uv-{version('uv')}.data/scripts/uv"
    return {"uv/__init__.py": b"", data: Path(find_uv_bin()).read_bytes()}


@contextlib.contextmanager
def project(folder: Path) -> Iterator[Project]:
    """A project in `folder` whose target is locked; Debian's files go to the user's own cache."""
    index = smallproject.index()
    index.wheel("uv", version("uv"), tag="py3-none-manylinux_2_17_x86_64", files=uv())
    index.wheel(
        "tools",
        "3.0",
        files={
            "tools/__init__.py": b"def main():\n    print('called')\n",
            "tools/data file.txt": b"with a space\n",
            "tools-3.0.data/scripts/ascript": SCRIPT,
            "tools-3.0.data/data/share/tools/x.txt": b"x\n",
            "tools-3.0.data/headers/tools.h": b"int x;\n",
            "tools-3.0.dist-info/entry_points.txt": b"[console_scripts]\nacall = tools:main\n",
        },
    )
    # Its layer lies above that of tools, whose files it would replace: the matrix drops them.
    index.wheel(
        "rival",
        "1.0",
        files={
            "rival/__init__.py": b"",
            "tools/data file.txt": b"of the rival\n",
            "rival-1.0.data/data/share/tools/x.txt": b"of the rival\n",
            "rival-1.0.data/scripts/ascript": b"#!/bin/sh\n",
        },
    )
    with serve(Site(files=index.site_files())) as site:
        made = Project(folder, site.url("simple"), cache=None)
        made.write(BASE, arches=(Arch.X86_64.value,))
        matrix = folder / "matrix.yaml"
        text = matrix.read_text()
        text = text.replace(
            "requires: {}",
            "requires: {uv: {reason: it installs}, tools: {reason: tricky files},"
            f" rival: {{reason: it loses files}}}}\n{DROP}",
        ).replace("named: [thewheel]", "named: [thewheel, rival]")
        # The base has it too, and a Dockerfile cannot take away what its base sets.
        text = text.replace(
            "  env:\n", "  env:\n    LANG: {value: C.UTF-8, reason: bytes are UTF-8}\n"
        )
        matrix.write_text(text)
        made.run("lock", smallproject.TARGET, "--keep")
        yield made
