"""Creates a complete small project with a matrix, a local index and the command line.

Each verb runs in a separate process, as for a user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imgbuild.oci import layout
from tests.support import prepared_program
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite

TARGET = "small"
CUDA_TOOLKIT = (
    'nvidia-cublas-cu12==12.4.5.8.*; extra == "all"',
    'nvidia-cuda-runtime-cu12==12.4.127.*; extra == "cudart"',
)
MATRIX = """\
version: 1
indexes: {{pypi: {{}}}}
default_index: pypi
bases:
  below: {base}
image:
  prefix: /opt/venv
  user: {{name: {user}, uid: {uid}, gid: {uid}, home: /home/{user}}}
  workdir: /workspace
  cache: /var/cache/imgbuild
  entrypoint: [/opt/imgbuild/entrypoint]
  cmd: [bash]
  env:
    PATH: {{value: '/opt/venv/bin:/usr/bin:/bin', reason: commands come first}}
  labels: {{}}
requires: {{}}
layers: {{own_from: 1000000, named: [thewheel], groups: 2, order: [torch], limit: 40}}
targets:
  small:
    summary: a small image
    base: below
    cuda: "12.4"
    arch: [{arches}]
    as_of: 2025-06-20
    pins: {{torch: "2.6.0", thewheel: "{thewheel}"}}
    flashinfer: {{mode: "off", reason: there is no wheel}}
"""


def sample_index() -> LocalIndex:
    """An index with a small torch and two versions of a wheel with a dependency."""
    index = LocalIndex()
    index.wheel("cuda-toolkit", "12.4.1", CUDA_TOOLKIT, uploaded="2026-01-01")  # rule data
    index.wheel("torch", "2.6.0", ["nvidia-cublas-cu12==12.4.5.8"])
    index.wheel("nvidia-cublas-cu12", "12.4.5.8")
    for version, requires in (("1.0", ["helper"]), ("2.0", ["helper", "another"])):
        code = f"import helper\nVALUE = helper.VALUE\nVERSION = {version!r}\n".encode()
        index.wheel("thewheel", version, requires, files={"thewheel/__init__.py": code})
    index.wheel("helper", "0.5", files={"helper.py": b"VALUE = 42\n"})
    index.wheel("another", "0.1")
    return index


@dataclass
class Project:
    """A folder with a matrix. `cache` is the cache folder, or None for the user's cache.

    Without `index_url`, the index configured on this machine is used.
    """

    folder: Path
    index_url: str
    cache: Path | None
    env: dict[str, str] = field(default_factory=dict)

    def write(
        self,
        base: Mapping[str, object],
        *,
        thewheel: str = "1.0",
        arches: tuple[str, ...] = ("x86_64",),
        user: str = "trainer",
        uid: int = 1234,
    ) -> None:
        """Write the matrix."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = MATRIX.format(
            base=json.dumps(base), thewheel=thewheel, arches=", ".join(arches), user=user, uid=uid
        )
        (self.folder / "matrix.yaml").write_text(text)

    def environment(self) -> dict[str, str]:
        """The environment variables of the project's commands."""
        index = {"UV_DEFAULT_INDEX": self.index_url} if self.index_url else {}
        variables = {**index, "NO_COLOR": "1", **self.env}
        direct = ",".join(("localhost", "127.0.0.1", os.environ.get("no_proxy", ""),
                           os.environ.get("NO_PROXY", "")))  # fmt: skip
        variables |= {"NO_PROXY": direct, "no_proxy": direct}
        if self.cache is not None:
            variables["IMGBUILD_CACHE"] = str(self.cache)
        return {**os.environ, **variables}

    def command(self, *arguments: str) -> list[str]:
        """The command that runs imgbuild with `arguments`."""
        return [sys.executable, "-m", "imgbuild", *arguments]

    def run(
        self, *arguments: str, status: int = 0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run imgbuild, which must exit with `status` and without a traceback."""
        done = prepared_program.run_prepared(
            arguments, cwd=self.folder, env=self.environment(), stdin=stdin
        )
        assert done.returncode == status, f"status {done.returncode}: {done.stdout}{done.stderr}"
        assert "\nTraceback" not in f"\n{done.stderr}", (
            done.stderr
        )  # logs that it shows are indented
        return done

    @property
    def images(self) -> Path:
        """The folder of locks."""
        inner = self.folder / ".imgbuild"
        return (inner if inner.is_dir() else self.folder) / "images"

    def files(self) -> dict[str, bytes]:
        """The content of every file below `images` by relative path."""
        images = self.images
        return {
            path.relative_to(images).as_posix(): path.read_bytes()
            for path in sorted(images.rglob("*"))
            if path.is_file()
        }

    def read(self, name: str) -> Any:
        """The content of a JSON file below `images`."""
        return json.loads((self.images / name).read_bytes())


def serve_image(site: FileSite, folder: Path, name: str) -> str:
    """Serve the layout at `folder` from `site` as a registry. Returns the name with the digest."""
    image_layout = layout.read_layout(folder)
    for blob in (folder / "blobs/sha256").iterdir():
        data = blob.read_bytes()
        for kind in ("manifests", "blobs"):
            site.files[f"v2/{name}/{kind}/sha256:{blob.name}"] = data
    return f"localhost:{site.port}/{name}@{image_layout.digest}"


def registry_base(image: str, **changes: object) -> dict[str, object]:
    """A registry base in the format of the matrix."""
    base = {"kind": "registry", "image": image, "python": "3.11", "glibc": "2.36"}
    return {**base, "interpreter": "/usr/bin/python3.11", **changes}
