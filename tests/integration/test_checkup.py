"""Tests the doctor script with real driver libraries, stubs, and a user without a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).parents[2] / "smoke_tests/doctor.py"
REDUCE = SCRIPT.with_name("check_reduce.py")
DRIVER = """\
int cuInit(unsigned flags) { return %d; }
int cuDeviceGetCount(int *count) { *count = %d; return 0; }
"""


def driver(folder: Path, *, init: int = 0, count: int = 2, text: str = "") -> Path:
    """Compile a library with two driver functions into `folder`."""
    folder.mkdir()
    source = folder / "driver.c"
    source.write_text(text or DRIVER % (init, count))
    subprocess.run(
        [needs.require_tool("gcc"), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source,
         "-o", folder / "libcuda.so.1"],
        check=True,
    )  # fmt: skip
    return folder


def look(*words: str, before: tuple[str, ...] = (), **env: str) -> dict[str, dict[str, str]]:
    """Run the script and return its findings by check; the exit status must match."""
    base = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HOME": os.environ["HOME"]}
    done = subprocess.run(
        [*before, sys.executable, "-sE", str(SCRIPT), "--json", *words],
        env=base | env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    findings = json.loads(done.stdout)["findings"]
    errors = any(finding["severity"] == "error" for finding in findings)
    assert done.returncode == int(errors), done.stderr
    return {finding["check"]: finding for finding in findings}


def test_missing_link_to_the_driver_library_is_reported_with_a_remedy(tmp_path: Path) -> None:
    place = driver(tmp_path / "driver")
    findings = look("--gpus", "2", LD_LIBRARY_PATH=str(place))
    assert findings["driver"]["message"] == f"{place}/libcuda.so.1 detects 2 GPUs"
    assert "cannot find -lcuda" in findings["link with -lcuda"]["message"]
    assert (
        f"LIBRARY_PATH and TRITON_LIBCUDA_PATH to {place}" in findings["link with -lcuda"]["remedy"]
    )
    (place / "libcuda.so").symlink_to("libcuda.so.1")
    cured = look("--gpus", "2", LD_LIBRARY_PATH=str(place), LIBRARY_PATH=str(place))
    assert "link with -lcuda" not in cured


def test_doctor_script_reports_fewer_gpus_than_requested(tmp_path: Path) -> None:
    findings = look("--gpus", "4", LD_LIBRARY_PATH=str(driver(tmp_path / "driver")))
    assert findings["driver"]["severity"] == "error"
    assert "detects 2 GPUs, 4 were requested" in findings["driver"]["message"]


@pytest.mark.parametrize(("name", "init"), [("stubs", 0), ("elsewhere", 34)])
def test_stub_library_is_not_accepted_as_gpu_driver(tmp_path: Path, name: str, init: int) -> None:
    findings = look("--gpus", "1", LD_LIBRARY_PATH=str(driver(tmp_path / name, init=init)))
    assert findings["driver"]["severity"] == "error"
    assert "is a stub" in findings["driver"]["message"]


def test_library_that_only_has_the_name_of_the_gpu_driver_is_not_accepted(tmp_path: Path) -> None:
    place = driver(tmp_path / "driver", text="int other(void) { return 0; }")
    findings = look("--gpus", "1", LD_LIBRARY_PATH=str(place))
    assert findings["driver"]["severity"] == "error"
    assert f"{place}/libcuda.so.1 is not a driver library" in findings["driver"]["message"]
    assert look(LD_LIBRARY_PATH=str(place))["driver"]["severity"] == "warning"


def test_driver_that_detects_no_gpu_is_a_note_if_no_gpu_is_requested(tmp_path: Path) -> None:
    place = driver(tmp_path / "driver", init=100)
    findings = look(LD_LIBRARY_PATH=str(place))
    assert findings["driver"]["severity"] == "note"
    assert "detects no GPU, and none was requested" in findings["driver"]["message"]
    driver_finding = look("--gpus", "1", LD_LIBRARY_PATH=str(place))["driver"]
    assert driver_finding["severity"] == "error"
    assert "CUDA error 100" in driver_finding["message"]


def test_doctor_script_reports_a_user_without_a_passwd_entry(tmp_path: Path) -> None:
    needs.require_root()
    as_arbitrary_user = (
        needs.require_tool("setpriv", "util-linux"),
        "--reuid=54321",
        "--clear-groups",
    )
    home = {"HOME": "/root"}
    findings = look(before=as_arbitrary_user, **home)
    assert findings["user"]["severity"] == "error"
    assert "user id 54321 has no name" in findings["user"]["message"]
    named = look(before=as_arbitrary_user, USER="somebody", **home)
    assert named["user"]["message"] == "somebody, id 54321"


def reduce_(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the check of the interconnect as the only task of a job, with packages of `folder`."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, str(REDUCE), "--address", "127.0.0.1", "--port", "1", *words],
        env=env | {"SLURM_NODEID": "0", "SLURM_NNODES": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_doctor_script_reports_an_import_error_of_torch(tmp_path: Path) -> None:
    absent = reduce_(tmp_path, "--gpus", "8")
    assert absent.returncode == 0
    assert "not tested: the interconnect, since the image has no torch" in absent.stdout
    assert "not tested: whether the image can use the 8 GPUs" in absent.stdout
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('undefined symbol')")
    broken = reduce_(tmp_path, "--gpus", "8")
    assert broken.returncode != 0
    assert "ImportError: undefined symbol" in broken.stderr
