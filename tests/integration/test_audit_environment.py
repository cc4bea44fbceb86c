"""Tests `imgbuild audit` of environments that uv creates offline, and of local wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from imgbuild.audit.packages.environment import open_environment
from imgbuild.errors import InputError
from imgbuild.system import uv_program
from tests.support import prepared_program, samples

TRL = b"from vllm import LLM, Gone\n\nclass GRPOTrainer: ...\n"
VLLM = b"class LLM: ...\nclass Gone: ...\n"


class Machine:
    """A folder with wheels and environments, and a separate cache, without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.wheels.mkdir()

    def wheel(
        self, package: str, version: str, source: bytes, requires: Sequence[str] = ()
    ) -> Path:
        """A wheel with one module."""
        files = {f"{package}/__init__.py": source}
        return samples.write_wheel(self.wheels, package, version, files, requires)

    def environment(self, *pins: str) -> Path:
        """Create a virtual environment with packages, using uv."""
        root = self.folder / "env"
        python = ["--python", sys.executable]
        self._run([uv_program.uv_path(), "venv", "-q", "--offline", "--clear", *python, str(root)])
        chosen = ["--offline", "--no-index", "--find-links", str(self.wheels), "--no-deps"]
        python = ["--python", str(root / "bin" / "python")]
        self._run([uv_program.uv_path(), "pip", "install", "-q", *chosen, *python, *pins])
        return root

    def audit(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `imgbuild audit` with the given arguments."""
        done = prepared_program.run_prepared(["audit", *words], cwd=self.folder, env=self._env())
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def _run(self, command: Sequence[str]) -> None:
        subprocess.run(command, env=self._env(), cwd=self.folder, check=True, capture_output=True)

    def _env(self) -> dict[str, str]:
        env = {
            **os.environ,
            "IMGBUILD_CACHE": str(self.folder / "cache"),
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
        }
        env.pop("VIRTUAL_ENV", None)
        return env


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.wheel("trl", "9.0", TRL, ["vllm>=8"])
    machine.wheel("vllm", "8.0", VLLM)
    machine.wheel("vllm", "9.0", b"class LLM: ...\n")
    return machine


def test_report_of_a_broken_environment_begins_with_the_errors(machine: Machine) -> None:
    root = machine.environment("trl==9.0", "vllm==9.0")
    done = machine.audit("--environment", str(root / "bin" / "python"), status=4)
    error, place, _, counts = done.stdout.splitlines()
    missing = "trl 9.0 imports Gone from vllm, but vllm 9.0 does not define it"
    assert error.startswith(f"error: {missing}")
    assert place == "    at trl 9.0 trl/__init__.py:1"
    assert counts.endswith("x86_64: 1 error, 0 warnings, 0 notes")
    assert "the audit found errors in" in done.stderr


@pytest.mark.parametrize("version", [pytest.param("1.0", marks=pytest.mark.long), "2.0"])
def test_invalid_constructor_call_in_module_body_is_an_error(
    machine: Machine, version: str
) -> None:
    repository = "class Repository:\n    def __init__(self, name, version=None):\n"
    refuses = "        if version is None: raise ValueError('no version')\n"
    body = refuses if version == "2.0" else "        self.name = name\n"
    machine.wheel("hub", version, f"{repository}{body}".encode())
    machine.wheel("app", "1.0", b'from hub import Repository\nT = {"a": Repository("x")}\n')
    root = machine.environment("app==1.0", f"hub=={version}")
    command = [str(root / "bin" / "python"), "-c", "import app"]
    fails = subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert fails == (version == "2.0")
    done = machine.audit("--environment", str(root), status=4 if fails else 0)
    words = "app 1.0 raises ValueError when it is imported (hub/__init__.py:3) with hub 2.0"
    assert (f"error: {words}" in done.stdout) == fails
    assert ("    at app 1.0 app/__init__.py:2" in done.stdout) == fails


def test_missing_requirement_is_an_error_in_an_environment(machine: Machine) -> None:
    path = machine.wheels / "trl-9.0-py3-none-any.whl"
    machine.environment("trl==9.0")
    done = machine.audit("--environment", "env", "--select", "metadata", status=4)
    assert "trl 9.0 requires vllm>=8, but vllm is not in this package set" in done.stdout
    named = machine.audit(f"trl @ {path.as_uri()}", "--select", "metadata")
    assert named.stdout == "pins x86_64: 0 errors, 0 warnings, 0 notes\n"


def test_environment_audit_is_cached_until_file_changes(machine: Machine) -> None:
    root = machine.environment("trl==9.0", "vllm==9.0")
    first = machine.audit("--environment", str(root), status=4)
    assert "using the cached report" not in first.stderr
    second = machine.audit("--environment", str(root), status=4)
    assert "using the cached report; use --again to repeat the audit" in second.stderr
    assert second.stdout == first.stdout
    program = str(root / "bin" / "python")
    other = machine.audit("--environment", program, status=4)
    assert "using the cached report" in other.stderr
    assert other.stdout == first.stdout.replace(f"{root} ", f"{program} ")
    again = machine.audit("--environment", str(root), "--again", status=4)
    assert (again.stdout, "using the cached report" in again.stderr) == (first.stdout, False)
    (source,) = root.glob("lib/python3*/site-packages/vllm/__init__.py")
    source.unlink()  # it may be a hard link to uv's own copy
    source.write_bytes(VLLM)
    assert "0 errors" in machine.audit("--environment", str(root)).stdout


def test_environment_defaults_to_venv_in_current_folder(machine: Machine) -> None:
    machine.environment("vllm==9.0").rename(machine.folder / ".venv")
    done = machine.audit("--environment", "--json")
    (report,) = json.loads(done.stdout)
    assert Path(report["target"]).parts[0] == ".venv"
    assert (report["findings"], report["unread"]) == ([], [])


def test_unreadable_package_fails_the_audit(machine: Machine) -> None:
    root = machine.environment("vllm==9.0")
    (info,) = root.glob("lib/python3*/site-packages/vllm-9.0.dist-info")
    (info.parent / "trl-9.0.dist-info").mkdir()
    done = machine.audit("--environment", str(root), "--junit", "report.xml", status=4)
    assert done.stdout.startswith("not read: trl-9.0.dist-info: METADATA is missing\n")
    assert "not all packages were read: trl-9.0.dist-info" in done.stderr
    assert 'name="packages"' in (machine.folder / "report.xml").read_text()


def test_packages_of_an_interpreter_without_an_environment_are_audited() -> None:
    environment = open_environment(os.path.realpath(sys.executable))
    assert environment.python == ".".join(map(str, sys.version_info[:3]))
    assert "pip" in {package.wheel.package for package in environment.packages}


def test_environment_packages_precede_system_packages(machine: Machine) -> None:
    machine.wheel("pip", "0.1", b"")
    root = machine.environment("pip==0.1")
    config = root / "pyvenv.cfg"
    text = config.read_text().replace("= false", "= true")
    config.write_text(text)
    environment = open_environment(str(root))
    assert len(environment.folders) > 1
    assert {package.wheel.package: package.wheel.version for package in environment.packages}[
        "pip"
    ] == "0.1"


def test_program_that_is_not_python_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no\n")
    program.chmod(0o755)
    with pytest.raises(InputError, match="cannot be run as Python"):
        open_environment(str(program))
