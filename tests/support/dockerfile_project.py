"""Creates a small project for other builders, with Debian's Python, uv and a few wheels.

The wheel of uv, which a Dockerfile needs, is created from the program in this environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from uv import find_uv_bin

from imgbuild.values import Arch
from tests.support import sample_project
from tests.support.local_index import sdist_bytes
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

BASE = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
REQUIRES = {
    "uv": "it installs",
    "tools": "tricky files",
    "rival": "it loses files",
    "usurper": "it loses a file to tools",
    "winner": "tools loses a file to it",
}
DROP = """\
drop:
  - package: rival
    beside: tools
    paths: [bin/ascript, share/tools/*, lib/python3.11/site-packages/tools/*]
    reason: tools ships the same paths
  - package: usurper
    paths: [share/tools/x.txt]
    reason: tools ships the same path
  - package: tools
    beside: winner
    paths: [share/common.txt]
    reason: winner ships the same path
"""
SCRIPT = b"#!python\nprint('a script')\n"
SDIST = "made"  # the package that has no wheel
SDISTS = """sdists:
  made:
    reason: its index has an sdist only
    env: {WORD: two words}
"""
# Its build backend, which records a variable of its environment.
MAKER = b"""\
import os
import zipfile

INFO = "made-1.0.dist-info"

def build_wheel(folder, settings=None, metadata=None):
    name = "made-1.0-py3-none-any.whl"
    files = {
        "made.py": f"WORD = {os.environ.get('WORD')!r}\\n",
        f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: made\\nVersion: 1.0\\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{INFO}/RECORD": "".join(f"{path},,\\n" for path in ("made.py", f"{INFO}/METADATA",
                                  f"{INFO}/WHEEL", f"{INFO}/RECORD")),
    }
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""
PYPROJECT = b'[build-system]\nrequires = ["maker"]\nbuild-backend = "maker"\n'


def uv_wheel_files() -> dict[str, bytes]:
    """The files of a wheel of uv."""
    data = f"uv-{version('uv')}.data/scripts/uv"
    return {"uv/__init__.py": b"", data: Path(find_uv_bin()).read_bytes()}


@contextlib.contextmanager
def locked_project(
    folder: Path, *, sdist: bool = False, site: FileSite | None = None
) -> Iterator[Project]:
    """Create a project with a locked target in `folder`; Debian files are in the user's cache.

    With `sdist`, one package has no wheel. `site` is used as the index if given.
    """
    index = sample_project.sample_index()
    if sdist:
        index.wheel("maker", "1.0", files={"maker.py": MAKER})
        files = {"pyproject.toml": PYPROJECT, "PKG-INFO": b""}
        index.add(SDIST, "made-1.0.tar.gz", sdist_bytes(SDIST, "1.0", files))
    index.wheel("uv", version("uv"), tag="py3-none-manylinux_2_17_x86_64", files=uv_wheel_files())
    index.wheel(
        "tools",
        "3.0",
        files={
            "tools/__init__.py": b"def main():\n    print('called')\n",
            "tools/data file.txt": b"with a space\n",
            "tools-3.0.data/scripts/ascript": SCRIPT,
            "tools-3.0.data/data/share/tools/x.txt": b"x\n",
            "tools-3.0.data/data/share/common.txt": b"of tools\n",
            "tools-3.0.data/headers/tools.h": b"int x;\n",
            "tools-3.0.dist-info/entry_points.txt": b"[console_scripts]\nacall = tools:main\n",
        },
    )
    # Its layer is above that of tools and would replace its files: the matrix drops them.
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
    # A chain: tools replaces a file of it, and winner one of tools.
    index.wheel(
        "usurper",
        "1.0",
        files={"usurper/__init__.py": b"", "usurper-1.0.data/data/share/tools/x.txt": b"taken\n"},
    )
    index.wheel("winner", "1.0", files={"winner-1.0.data/data/share/common.txt": b"of winner\n"})
    release_catalogue = site or FileSite()
    release_catalogue.files.update(index.site_files())
    with serve_site(release_catalogue):
        project = Project(folder, release_catalogue.url("simple"), cache=None)
        project.write(BASE, arches=(Arch.X86_64.value,))
        matrix = folder / "matrix.yaml"
        text = matrix.read_text()
        requirements = REQUIRES | ({SDIST: "it has no wheel"} if sdist else {})
        rows = ", ".join(f"{name}: {{reason: {reason}}}" for name, reason in requirements.items())
        text = text.replace(
            "requires: {}",
            f"requires: {{{rows}}}\n{DROP}{SDISTS if sdist else ''}",
        ).replace("named: [thewheel]", "named: [thewheel, rival]")
        # The base sets it too, and a Dockerfile cannot unset variables of its base.
        text = text.replace(
            "  env:\n", "  env:\n    LANG: {value: C.UTF-8, reason: bytes are UTF-8}\n"
        )
        matrix.write_text(text)
        project.run("lock", sample_project.TARGET, "--keep")
        yield project
