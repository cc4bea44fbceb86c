"""Provides a root folder with the host's /usr, and resources that the sandbox must hide."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from imgbuild.container import sandbox
from imgbuild.container.sandbox import BindMount, SandboxRoot
from imgbuild.system.process import ProcessResult
from tests.support import ordinary

REPOSITORY = Path(__file__).parents[2]
WAYS = REPOSITORY / "tests/support/escapes.py"
PYTHON = str(ordinary.SYSTEM)  # in the root, too


class Place(NamedTuple):
    """A root folder with Python, a file outside of the root, and a service port of the host."""

    root: Path
    secret: Path
    port: int


@contextmanager
def sandbox_place(folder: Path) -> Iterator[Place]:
    """A `Place` in `folder`, while the host's services run."""
    root, secret = folder / "root", folder / "secret"
    root.mkdir()
    for name in ("lib", "lib64", "bin"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("etc", "usr"):
        (root / name).mkdir()
    secret.write_text("secret of the host", encoding="utf-8")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        port = listening.getsockname()[1]
        abstract.bind(f"\0imgbuild-test-{port}")
        abstract.listen()
        yield Place(root, secret, port)


def run_inside(place: Place, *command: str, **options: object) -> ProcessResult:
    """Run `command` with the host's /usr, read-only, in the root."""
    binds = [
        BindMount(source=Path("/usr"), target="/usr"),
        BindMount(source=WAYS, target="/opt/escapes.py"),
    ]
    return sandbox.run_in_sandbox(SandboxRoot(path=place.root), command, binds=binds, **options)  # type: ignore[arg-type]


def try_escapes(place: Place, **options: object) -> dict[str, str]:
    """Try each escape, and return the error that prevented it."""
    words = (str(ordinary.SYSTEM), "/opt/escapes.py", str(place.secret), str(place.port))
    done = run_inside(place, *words, **options)
    assert done.status == 0, done
    return json.loads(done.stdout)  # type: ignore[no-any-return]


AS_ORDINARY = """
import sys
from pathlib import Path
from tests.support import sandboxed as escapes
with escapes.sandbox_place(Path(sys.argv[1])) as place:
"""


@contextmanager
def ordinary_command(body: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command and environment with which an ordinary user runs `body` with a `place`."""
    with ordinary.nobody_home() as folder:
        (folder / "place").mkdir(mode=0o755)
        os.chown(folder / "place", folder.stat().st_uid, folder.stat().st_gid)
        python, script = ordinary.nobody_python(folder), AS_ORDINARY + textwrap.indent(body, "    ")
        command = [*ordinary.as_nobody(), python, "-B", "-c", script, folder / "place"]
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "builder"), str(REPOSITORY))),
        }
        yield [str(word) for word in command], env


def run_as_ordinary_user(body: str) -> str:
    """The output of `body`, run by an ordinary user with a `place`."""
    with ordinary_command(body) as (command, env):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
