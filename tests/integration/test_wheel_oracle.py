"""Compares imgbuild's installation of wheels with `uv pip install`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from imgbuild.values import Arch
from tests.support import downloads, needs, oracle
from tests.support.wheels import LINK, PROGRAM, write_wheel

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"

# Real wheels with unusual structure, and the reason.
TRICKY = {
    "dill==0.3.8": "scripts that ask for python",
    "ninja==1.11.1.4": "a binary among the scripts",
    "sympy==1.13.1": "a manual page in .data/data, many files",
    "greenlet==3.2.3": "headers",
    "setuptools==80.9.0": ".dist-info folders of vendored packages, names with spaces",
    "numpy==2.2.6": "bytecode inside the wheel, entry points",
    "jsonschema==4.24.0": "a console script",
    "protobuf==4.25.9": "abi3; half of the namespace google",
    "googleapis-common-protos==1.70.0": "the other half",
    "opentelemetry-api==1.26.0": "a namespace; entry points that are no scripts",
    "safetensors==0.5.3": "abi3, made by maturin",
    "pytz==2025.2": "many small files without extension",
    "docutils==0.21.2": "made by flit, many scripts",
    "fonttools==4.58.4": "a manual page, a module named like a script",
}

MADE = {
    "demo/__init__.py": b"",
    "demo/run.sh": b"#!/bin/sh\n",
    "demo/owner only": b"x",
    "demo/link": b"run.sh",
    "demo/gr\u00f6\u00dfe, with comma": b"x",
    "demo/__pycache__/x.cpython-311.pyc": b"bytecode",
    "demo-1.0.data/purelib/demo/pure.py": b"p = 1\n",
    "demo-1.0.data/platlib/demo/plat.py": b"p = 1\n",
    "demo-1.0.data/headers/sub/demo.h": b"int x;\n",
    "demo-1.0.data/data/share/demo/x.txt": b"x\n",
    "demo-1.0.data/data/bin/no-script": b"#!python\n",
    "demo-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
    "demo-1.0.data/scripts/tool3": b"#!python3 -E\nprint(1)\n",
    "demo-1.0.data/scripts/toolw": b"#!pythonw\r\nprint(1)\r\n",
    "demo-1.0.data/scripts/shell": b"#!/bin/sh\n",
    "demo-1.0.data/scripts/shadow": b"#!/bin/sh\n",
    "demo-1.0.dist-info/REQUESTED": b"",
    "demo-1.0.dist-info/INSTALLER": b"other\n",
    "demo-1.0.dist-info/entry_points.txt": b"""\
[console_scripts]
shadow = demo:main
call = demo.x:Class.method [one, two]
[gui_scripts]
window=demo:show
""",
}


def test_installed_wheel_matches_pip(tmp_path: Path) -> None:
    modes = {"demo/run.sh": PROGRAM, "demo/owner only": 0o100744, "demo/link": LINK}
    assert oracle.compare_with_uv([write_wheel(tmp_path, MADE, modes=modes)], tmp_path) == []


def test_comparison_with_pip_detects_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the list of accepted differences, the comparison reports each difference."""
    wheel = write_wheel(tmp_path, MADE)
    for pattern in list(oracle.ACCEPTED):
        rest = {key: why for key, why in oracle.ACCEPTED.items() if key != pattern}
        monkeypatch.setattr(oracle, "ACCEPTED", rest)
        differences = oracle.compare_with_uv([wheel], tmp_path)
        assert any(
            re.search(pattern.replace("INFO", oracle.INFO), _path(difference))
            for difference in differences
        )
        monkeypatch.undo()


def _path(fault: str) -> str:
    return fault.split(": ")[1]


@pytest.mark.long  # the first test has such a wheel
@pytest.mark.network
def test_wheels_with_an_unusual_layout_are_installed_as_by_uv(tmp_path: Path) -> None:
    wheels = downloads.download_wheels(tmp_path / "wheels", TRICKY)
    assert len(wheels) == len(TRICKY)
    assert oracle.compare_with_uv(wheels, tmp_path) == []


@pytest.mark.long
@pytest.mark.disk(4)
@pytest.mark.timeout(1800)
def test_every_locked_wheel_matches_pip(tmp_path: Path) -> None:
    """The wheels of the target are read from the folder $IMGBUILD_WHEELS or from the cache.

    Missing wheels are downloaded into the cache, as by `imgbuild build`.
    """
    if oracle.PYTHON != "3.11":
        needs.skip_or_fail("the wheels are for Python 3.11", "run the tests with python3.11")
    given = _given()
    if not given:
        lock, store, inputs = downloads.download_locked_wheels(
            TARGET
        )  # they exist as long as `store`
        for wheel in lock.arch[Arch.X86_64].wheels:
            given.append(tmp_path / wheel.file)
            given[-1].symlink_to(inputs[wheel.sha256])
        assert store.leased_paths()
    assert oracle.compare_with_uv(given, tmp_path) == []


def _given() -> list[Path]:
    folder = os.environ.get("IMGBUILD_WHEELS")
    return sorted(Path(folder).glob("*.whl")) if folder else []
