"""Adds the catalogue's matrix as JSON to the wheel, so that it is not parsed as YAML at each start.

pyproject.toml has everything else.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

import yaml
from setuptools import setup
from setuptools.command.build_py import build_py


def compiled(data: bytes) -> bytes:
    """The matrix in `data` as JSON, with the sha256 of `data`; see `imgbuild.matrix.load`."""
    document = {"sha256": hashlib.sha256(data).hexdigest(), "matrix": yaml.safe_load(data)}
    return json.dumps(document, default=datetime.date.isoformat).encode()


class BuildWithMatrix(build_py):
    """Copies the package, and writes `matrix.json` next to the catalogue's `matrix.yaml`."""

    def run(self) -> None:
        """Do it; an editable installation has the checkout's matrix alone."""
        super().run()
        if not self.editable_mode:
            matrix = Path(self.build_lib, "imgbuild/data/catalogue/matrix.yaml")
            matrix.with_suffix(".json").write_bytes(compiled(matrix.read_bytes()))


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithMatrix})
