"""Runs commands as an unprivileged user (nobody), with a Python that this user can start.

Root's Python can be in a folder that no other user can read, such as pyenv's in /root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from imgbuild.system.files import remove_tree
from tests.support import needs

AS_NOBODY = ("--reuid=nobody", "--regid=nogroup", "--clear-groups")
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM = Path("/usr/bin") / VERSION


def as_nobody() -> list[str]:
    """The command prefix that runs a command as nobody."""
    needs.require_root()
    return [needs.require_tool("setpriv", "util-linux"), *AS_NOBODY]


@contextlib.contextmanager
def nobody_home() -> Iterator[Path]:
    """Create a folder for nobody, who cannot read the temporary folders of pytest."""
    needs.require_root()
    folder = Path(tempfile.mkdtemp(prefix="imgbuild-nobody-"))
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


def nobody_python(folder: Path) -> str:
    """A Python that nobody can start, with the packages of this Python.

    If nobody cannot read this Python, it is an environment of the system's Python below `folder`,
    which nobody must be able to access.
    """
    if _starts(sys.executable):
        return sys.executable
    environment = folder / "environment"
    interpreter = environment / "bin" / "python"
    if not interpreter.is_symlink():
        packages = environment / "lib" / VERSION / "site-packages"
        for parent in (interpreter.parent, packages.parent):
            parent.mkdir(parents=True)
        (environment / "pyvenv.cfg").write_text(f"home = {SYSTEM.parent}\n", encoding="utf-8")
        interpreter.symlink_to(SYSTEM)
        packages.symlink_to(sysconfig.get_path("purelib"))
    if not _starts(str(interpreter)):
        needs.skip_or_fail(
            f"the user nobody can start neither {sys.executable} nor {SYSTEM} with these packages",
            f"apt-get install {VERSION}, in a checkout that all users can read",
        )
    return str(interpreter)


def _starts(python: str) -> bool:
    """Whether the user nobody can start `python` and import the dependencies of imgbuild.

    `python` is started through `env`, because setpriv can read folders that nobody cannot read.
    """
    done = subprocess.run(
        [*as_nobody(), "env", python, "-B", "-c", "import imgbuild, msgspec"],
        cwd="/", capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0
