"""`imgbuild diagnose` of real output, and `doctor --collect` of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = (sys.executable, "-m", "imgbuild")


def output_of(*command: str, cwd: Path) -> bytes:
    """stdout and stderr together, as a log has them."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.stdout


def diagnosed(text: bytes) -> list[dict[str, object]]:
    done = subprocess.run(
        [*PROGRAM, "diagnose", "--json"], input=text, capture_output=True, check=True
    )
    answer: list[dict[str, object]] = json.loads(done.stdout)["findings"]
    return answer


def test_missing_python_module_is_diagnosed(tmp_path: Path) -> None:
    text = output_of(sys.executable, "-c", "import flash_attn", cwd=tmp_path)
    assert diagnosed(text)[0]["code"] == "IMG723"


def test_missing_shared_library_is_diagnosed(tmp_path: Path) -> None:
    code = "import ctypes; ctypes.CDLL('libcudart.so.11.0')"
    assert diagnosed(output_of(sys.executable, "-c", code, cwd=tmp_path))[0]["code"] == "IMG770"


def test_killed_process_is_diagnosed(tmp_path: Path) -> None:
    text = output_of("bash", "-c", "sh -c 'kill -9 $$'; echo after", cwd=tmp_path)
    assert diagnosed(text)[0]["code"] == "IMG535"


def test_crashing_library_is_diagnosed(tmp_path: Path) -> None:
    code = "import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)"
    assert diagnosed(output_of(sys.executable, "-c", code, cwd=tmp_path))[0]["code"] == "IMG569"


def test_successful_pytest_and_pip_output_has_no_failure(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_error_is_fatal():\n    assert True\n")
    text = output_of(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", cwd=tmp_path)
    assert b"1 passed" in text
    assert diagnosed(text) == []
    assert diagnosed(output_of("git", "--help", "--all", cwd=tmp_path)) == []


def test_collected_data_describes_machine_without_secrets() -> None:
    environment = os.environ | {"HF_TOKEN": "hf_secret", "NCCL_DEBUG": "INFO"}
    done = subprocess.run(
        [*PROGRAM, "doctor", "--collect", "--json"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["host"]["kernel"]
    assert report["variables"]["NCCL_DEBUG"] == "INFO"
    assert report["variables"]["HF_TOKEN"] == "set"
    assert "hf_secret" not in done.stdout
