"""A SIF made of carried layers is the one that imgbuild makes, and its smoke tests run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from imgbuild.lock import lock
from imgbuild.oci import layout
from imgbuild.sif import convert
from imgbuild.values import Arch
from tests import carrying, needs
from tests.carrying import REPOSITORY, places, tool

pytestmark = [pytest.mark.engine, pytest.mark.apptainer, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a built target, its parts, and what gpu_sif_pack puts beside them."""
    needs.tool("mksquashfs", "squashfs-tools")
    folder = tmp_path_factory.mktemp("gpu-sif")
    carrying.build(folder)
    carrying.pack(folder)
    packed = tool("gpu_sif_pack.py", "small", folder / "carry/sif", *places(folder))
    assert packed.returncode == 0, packed.stderr
    return folder


def make(place: Path, out: Path, *more: object) -> subprocess.CompletedProcess[str]:
    """A SIF of the carried parts."""
    words = (place / "carry/images/small.json", place / "carry/loads", out)
    own = ("--carried", place / "carry/sif", "--work", place / "work")
    return tool("gpu_sif.py", "make", *words, *own, *more)


def prove(place: Path, sif: Path, out: Path, *more: object) -> subprocess.CompletedProcess[str]:
    """The smoke tests in a SIF."""
    words = (place / "carry/images/small.json", sif, REPOSITORY / "smoke_tests", out)
    own = ("--carried", place / "carry/sif", "--work", place / "work", "--driver", place / "none")
    return tool("gpu_sif.py", "prove", *words, *own, *more)


@pytest.fixture(scope="module", name="due")
def _due(place: Path) -> str:
    """The sha256 of the SIF that imgbuild makes of the layout."""
    built = layout.read(place / "build/small")
    data = lock.lock_path(place / "images", "small").read_bytes()
    out = place / "due.sif"
    return convert.convert(built, Arch.X86_64, out, convert.ConvertOptions(), lock=data).digest


@pytest.fixture(scope="module", name="sif")
def _sif(place: Path, due: str) -> Path:
    done = make(place, place / "made.sif", "--sha256", due.removeprefix("sha256:"))
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "made.sif"


def test_the_sif_is_the_same_byte_for_byte(place, sif):
    assert sif.read_bytes() == (place / "due.sif").read_bytes()


def test_another_sif_than_expected_is_a_failure(place, tmp_path, due):
    done = make(place, tmp_path / "made.sif", "--sha256", "0" * 64)
    assert done.returncode == 1
    assert due.removeprefix("sha256:") in done.stdout


def test_parts_that_are_not_there_are_named(place, tmp_path):
    words = (place / "carry/images/small.json", tmp_path, tmp_path / "made.sif")
    own = ("--carried", place / "carry/sif", "--work", place / "work")
    done = tool("gpu_sif.py", "make", *words, *own)
    assert done.returncode == 1
    image = json.loads((place / "carry/images/small.json").read_text())
    assert image["layers"][0]["parts"][0]["name"] in done.stderr


@pytest.mark.parametrize("through", ["apptainer", "unsquashfs"])
def test_the_tests_run_in_the_sif(place, sif, due, tmp_path, through):
    needs.apptainer()
    out = tmp_path / "out"
    only = ("--tier", "static", "--only", "[vfsi]*", "--through", through)
    done = prove(place, sif, out, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((out / "report.json").read_text())["cases"]
    outcomes = {case["name"]: case["outcome"] for case in cases}
    assert outcomes["versions"] == outcomes["files"] == outcomes["imports"] == "passed"
    machine = json.loads((out / "machine.json").read_text())
    assert machine["through"].split()[0] == through
    assert machine["through"].split()[1][0].isdigit()
    assert machine["sif"] == due
    assert machine["unpacked"] == machine["diff_ids"]
    assert machine["status"] == 0


def test_no_gpu_is_a_failure(place, sif, tmp_path):
    needs.apptainer()
    done = prove(place, sif, tmp_path / "out", "--only", "device")
    assert done.returncode == 1, done.stdout + done.stderr
    [case] = json.loads((tmp_path / "out/report.json").read_text())["cases"]
    assert (case["name"], case["outcome"]) == ("device", "failed")
    assert "no GPU found" in case["message"]
