"""Tests the smoke tests on small environments with at most one fault."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from imgbuild.report import CaseResult
from imgbuild.smoke import runner
from tests.support import needs, smoke_environment

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "smoke_tests"
NOTHING: Mapping[str, list[Any]] = {"imports": [], "entry points": [], "requirements": []}


class Sample:
    """A virtual environment with its expected content, on which smoke tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.site,) = folder.glob("venv/lib/python*/site-packages")
        wheels = (*(folder / "wheels").iterdir(), smoke_environment.pip_wheel())
        self.expect: dict[str, Any] = {
            "format": runner.FORMAT,
            "target": "small",
            "arch": "x86_64",
            "prefix": str(folder / "venv"),
            "cache": str(folder / "cache"),
            "workdir": str(folder / "work"),
            "debian": [],
            "flashinfer": "off",
            "packages": smoke_environment.wheel_versions(wheels),
        }
        self.allowed: dict[str, Any] = dict(NOTHING)

    def add(self, name: str, files: Mapping[str, bytes], *, locked: bool = True) -> None:
        """Install another wheel."""
        wheel = smoke_environment.make_wheel(self.folder / "wheels", name, "1.0", files)
        smoke_environment.make_venv(self.folder / "venv", [wheel])
        if locked:
            self.expect["packages"][name] = "1.0"

    def run(
        self, only: str, *, tier: str = "static", timeout_factor: float = 1, **env: str
    ) -> dict[str, CaseResult]:
        """Run cases with the Python of the environment."""
        (self.folder / "expect.json").write_text(json.dumps(self.expect))
        (self.folder / "allowed.json").write_text(json.dumps(self.allowed))
        done = subprocess.run(
            [
                *(self.folder / "venv/bin/python", SCRIPTS / "run.py", "--json", "--tier", tier),
                *("--expect", self.folder / "expect.json", "--case", only),
                *("--allowed", self.folder / "allowed.json"),
                *("--timeout-factor", str(timeout_factor)),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "PYTHONPYCACHEPREFIX": str(self.folder / "pycache"),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        cases = json.loads(done.stdout)["cases"]
        outcomes = {case["outcome"] for case in cases}
        assert done.returncode == (0 if outcomes & {"passed"} and "failed" not in outcomes else 1)
        return {case["name"]: CaseResult(**case) for case in cases}


@pytest.fixture(name="template", scope="module")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to copy to a folder `sample` beside it, with the byte code of pip.

    The byte code, which takes seconds to compile, is valid only at these paths.
    """
    folder = tmp_path_factory.mktemp("smoke") / "sample"
    (folder / "wheels").mkdir(parents=True)
    site = smoke_environment.make_venv(
        folder / "venv", smoke_environment.good_wheels(folder / "wheels")
    )
    subprocess.run(
        [folder / "venv/bin/python", "-m", "compileall", "-q", site / "pip"],
        env={"PYTHONPYCACHEPREFIX": str(folder / "pycache")}, check=True,
    )  # fmt: skip
    return folder.rename(folder.with_name("template"))


@pytest.fixture(name="sample")
def _sample(template: Path) -> Iterator[Sample]:
    folder = template.with_name("sample")

    def _copy(source: str, target: str) -> None:
        """No test changes files of pip."""
        (os.link if "/pip/" in source else shutil.copy2)(source, target)

    shutil.copytree(template, folder, symlinks=True, copy_function=_copy)
    yield Sample(folder)
    shutil.rmtree(folder)


def test_smoke_tests_of_a_valid_package_set_pass(sample):
    cases = sample.run("versions|requirements|files|imports")
    assert cases.keys() >= {"versions", "requirements", "files", "imports"}
    assert {item.outcome for item in cases.values()} == {"passed"}, cases


def test_all_top_level_names_are_imported(sample):
    cases = sample.run("imports")
    assert cases["import alpha"].message == "1 names: alpha"
    assert cases["import beta"].message == "2 names: beta, spaces.inner"
    assert cases["imports"].message == "4 names of 3 distributions"


def old(sample):
    sample.expect["packages"]["beta"] = "2.1"


def absent(sample):
    sample.expect["packages"]["gamma"] = "1.0"


def extra(sample):
    sample.add("gamma", {"gamma.py": b""}, locked=False)


def twice(sample):
    sample.add("beta", {"beta_too.py": b""})


def lost(sample):
    (sample.site / "alpha/data.txt").unlink()


def cut(sample):
    (sample.site / "alpha/data.txt").write_text("dat")


def stray(sample):
    (sample.site / "alpha/stray.py").write_text("")


def dangling(sample):
    (sample.site / "alpha/link").symlink_to("nothing")


def alone(sample):
    sample.expect["packages"].pop("beta")
    for path in (sample.site / "beta-2.0.dist-info").iterdir():
        path.unlink()
    (sample.site / "beta-2.0.dist-info").rmdir()


def raising(sample):
    sample.add("gamma", {"gamma/__init__.py": b"from alpha import NOTHING\n"})


def crashing(sample):
    sample.add("gamma", {"gamma.py": b"import os\nos.abort()\n", "later.py": b""})


def hanging(sample):
    sample.add("gamma", {"gamma.py": b"import time\ntime.sleep(600)\n"})


def leaving(sample):
    sample.add("gamma", {"gamma.py": b"import os\nos._exit(0)\n"})


@pytest.mark.parametrize(
    ("case", "break_it", "words"),
    [
        ("versions", old, "beta 2.1 is locked, but 2.0 is installed"),
        ("versions", absent, "gamma 1.0 is locked but not installed"),
        ("versions", extra, "gamma 1.0 in"),
        ("versions", twice, "beta is installed 2 times"),
        ("requirements", alone, "alpha 1.0 requires beta, which is not installed."),
        ("files", lost, "alpha/data.txt: No such file"),
        ("files", cut, "alpha/data.txt: 3 bytes, expected 4 from RECORD"),
        ("files", stray, "alpha/stray.py: in no RECORD"),
        ("files", dangling, "alpha/link: a broken link"),
    ],
)
def test_smoke_tests_of_a_broken_package_set_fail_with_a_reason(sample, case, break_it, words):
    break_it(sample)
    case_result = sample.run(case)[case]
    assert case_result.outcome == "failed"
    assert words in case_result.message


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (raising, "gamma: ImportError: cannot import name 'NOTHING' from 'alpha'"),
        (crashing, "gamma: ended with status -6: Fatal Python error: Aborted"),
        (hanging, "gamma: timed out after 3 s"),
        (leaving, "gamma: ended with status 0"),
    ],
)
def test_failing_import_is_reported_with_its_module_and_cause(sample, break_it, words):
    break_it(sample)
    cases = sample.run("imports", timeout_factor=0.01 if break_it is hanging else 1)
    assert cases["import gamma"].outcome == "failed"
    assert words in cases["import gamma"].message
    assert cases["import alpha"].outcome == "passed"
    assert cases["imports"].outcome == "failed"
    assert cases["imports"].message == "error: gamma does not import"


def test_next_module_is_imported_after_a_crash(sample):
    sample.add("gamma", {"first.py": b"import os\nos.abort()\n", "second.py": b"1 / 0\n"})
    message = sample.run("imports")["import gamma"].message
    assert "first: ended with status -6" in message
    assert "second: ZeroDivisionError: division by zero (second.py:1)" in message


ENTRY = {"package": "gamma", "name": "gamma", "reason": "a reason that is long enough"}


def test_accepted_import_failure_is_skipped(sample):
    raising(sample)
    sample.allowed["imports"] = [{**ENTRY, "error": "cannot import name 'NOTHING'"}]
    cases = sample.run("imports")
    assert cases["import gamma: gamma"].outcome == "skipped"
    assert "cannot import name 'NOTHING'" in cases["import gamma: gamma"].message
    assert ENTRY["reason"] in cases["import gamma: gamma"].message
    assert cases["import gamma"].outcome == "skipped"
    assert cases["imports"].outcome == "passed"


@pytest.mark.long  # unit/smoke/test_runner.py has the rules
@pytest.mark.parametrize("versions", [None, ["1.0"]])
def test_allowed_failure_that_does_not_occur_is_a_failure(sample, versions):
    sample.add("gamma", {"gamma.py": b""})
    bounded = {"versions": versions} if versions else {}
    sample.allowed["imports"] = [{**ENTRY, **bounded, "error": "cannot import"}]
    cases = sample.run("imports")
    assert "but no import fails with this error" in cases["import gamma"].message
    assert cases["imports"].outcome == "failed"


@pytest.mark.long  # unit/smoke/test_runner.py has the rules
def test_allowed_failure_applies_only_to_its_package_version(sample):
    raising(sample)
    sample.allowed["imports"] = [{**ENTRY, "versions": ["0.9"], "error": "cannot import name"}]
    assert sample.run("imports")["import gamma"].outcome == "failed"


@pytest.mark.long
def test_unused_waiver_of_a_requirement_is_a_failure(sample):
    line = "alpha 1.0 requires beta, which is not installed."
    sample.allowed["requirements"] = [{"package": "alpha", "error": line, "reason": "as above"}]
    idle = sample.run("requirements")["requirements"]
    assert idle.outcome == "failed"
    assert "but pip does not report it" in idle.message
    alone(sample)
    assert sample.run("requirements")["requirements"].outcome == "passed"


SGLANG = {
    "sglang/__init__.py": b"",
    "sglang/jit_kernel/utils.py": b"""\
import contextlib

@contextlib.contextmanager
def override_jit_cuda_arch(major, minor):
    yield
""",
    "sglang/jit_kernel/activation.py": b"""\
import subprocess

SOURCE = "int twice(int number) { return 2 * number; }"

def _jit_activation_module(dtype):
    command = ["cc", "-xc", "-c", "-", "-o", "/dev/null"]
    done = subprocess.run(command, input=SOURCE, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("ninja exited with status 1" + chr(10) + done.stderr)
""",
}


@pytest.mark.long
def test_failing_sglang_kernel_compilation_is_reported(sample):
    needs.require_tool("gcc")
    sample.add("torch", {"torch.py": b"bfloat16 = 'bf16'\n"})
    sample.add("sglang", SGLANG)
    sound = sample.run("sglang kernels")["sglang kernels"]
    assert (sound.outcome, sound.message) == ("passed", "activation compiled for sm_90")
    source = sample.site / "sglang/jit_kernel/activation.py"
    source.write_text(source.read_text().replace("2 * number", "2 * unknown"))
    case_result = sample.run("sglang kernels")["sglang kernels"]
    assert case_result.outcome == "failed"
    assert re.search(r"activation: <stdin>:1:\d+: error: .unknown. undeclared", case_result.log)
    source.unlink()
    none = sample.run("sglang kernels")["sglang kernels"]
    assert none.message == "error: SGLang has none of the kernels of this case"


SAVER = b"""\
from pathlib import Path
def get_binary_path_from_package(stem):
    return Path(__file__).parent / f"{stem}.so"
"""


def test_preloaded_library_dependencies_are_checked(sample, tmp_path):
    needs.require_tool("gcc")
    sample.add("sglang", {"sglang.py": b""})
    sample.add("torch-memory-saver", {"torch_memory_saver/utils.py": SAVER})
    library = sample.site / "torch_memory_saver/torch_memory_saver_hook_mode_preload.so"
    other = tmp_path / "libabsent.so.1"
    command = ["gcc", "-shared", "-fPIC", "-xc", "/dev/null", "-xnone", "-o"]
    subprocess.run([*command, library], check=True)
    assert sample.run("sglang preload")["sglang preload"].outcome == "passed"
    subprocess.run([*command, other, f"-Wl,-soname,{other.name}"], check=True)
    subprocess.run([*command, library, "-Wl,--no-as-needed", other], check=True)
    message = sample.run("sglang preload")["sglang preload"].message
    assert message.endswith(f"{library.name}: {other.name} => not found")


def test_missing_compiler_is_reported(sample, monkeypatch):
    needs.require_tool("g++", "g++")
    sample.expect["debian"] = ["g++", "gcc"]
    assert sample.run("compiler")["compiler"].outcome == "passed"
    monkeypatch.setenv("PATH", "/nonexistent")
    case_result = sample.run("compiler")["compiler"]
    assert case_result.outcome == "failed"
    assert case_result.message.startswith(
        "FileNotFoundError: [Errno 2] No such file or directory: 'cc'"
    )


def test_cases_for_packages_that_are_not_in_the_lock_are_skipped(sample):
    sample.expect["debian"] = ["libc6"]
    del sample.expect["packages"]["pip"]
    cases = sample.run("compiler|requirements|entry points")
    assert {case.outcome for case in cases.values()} == {"skipped"}
    assert cases["compiler"].message == "the lock has no gcc"


def test_driver_library_in_the_image_is_a_failure(sample):
    library = sample.folder / "venv/lib/stubs/libcuda.so"
    library.parent.mkdir()
    library.write_bytes(b"")
    case_result = sample.run("system")["system"]
    assert case_result.outcome == "failed"
    assert str(library) in case_result.log


def test_stub_library_found_by_the_loader_is_not_a_driver(sample):
    """Without a driver on the host, a library with its name belongs to the image."""
    stub = sample.folder / "stubs/libcuda.so.1"
    stub.parent.mkdir()
    subprocess.run(["gcc", "-shared", "-o", stub, "-x", "c", os.devnull], check=True)
    case_result = sample.run("system", LD_LIBRARY_PATH=str(stub.parent))["system"]
    assert f"a CUDA driver library is in the image: {stub}" in case_result.log


def test_smoke_tests_refuse_to_run_as_root(sample):
    needs.require_root()
    assert "the user is root" in sample.run("system")["system"].log


@pytest.mark.long  # the test of other packages has the rule
def test_cases_for_main_packages_that_are_not_in_the_lock_are_skipped(sample):
    case_results = sample.run("*", tier="cpu")
    assert case_results["grpo step"].outcome == "skipped"
    assert case_results["grpo step"].message == "the lock has no trl"
    assert sample.run("triton*")["triton launcher"].outcome == "skipped"


EXPECTED = {
    "packages": {}, "prefix": "/", "cache": "/", "workdir": "/", "debian": [], "flashinfer": "off",
}  # fmt: skip


@pytest.mark.parametrize(
    ("expect", "words", "message"),
    [
        ("{", [], "expect.json: Expecting property name"),
        ("{}", [], "expect.json: missing keys: packages, prefix, cache"),
        ("[]", [], "expect.json: missing keys: packages"),
        (json.dumps({**EXPECTED, "format": 2}), [], "unsupported format 2 (expected 1)"),
        (
            json.dumps(EXPECTED),
            ["--case=grop*"],
            "(it has: tokenizers, vllm reads a model",
        ),
        (
            json.dumps(EXPECTED),
            ["--timeout-factor=0"],
            "invalid --timeout-factor: 0.0 (expected a number above 0)",
        ),
        (json.dumps(EXPECTED), ["--jobs=0"], "invalid --jobs: 0 (expected 1 or more)"),
        (json.dumps(EXPECTED), ["--report=/absent/r.json"], "/absent/r.json: its folder does not"),
        (json.dumps(EXPECTED), ["--model=/absent"], "/absent: no config.json in this folder"),
    ],
)
def test_invalid_runner_input_is_an_error_before_cases_run(expect, words, message, tmp_path):
    (tmp_path / "expect.json").write_text(expect)
    command = [sys.executable, str(SCRIPTS / "run.py"), "--tier=cpu"]
    done = subprocess.run(
        [*command, f"--expect={tmp_path}/expect.json", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not done.stdout


@pytest.mark.long
def test_modules_added_by_a_pth_file_are_imported_under_their_own_names(sample):
    failing = b"import sys\nassert __name__ == 'inner', __name__\n"
    sample.add("gamma", {"gamma.pth": b"deep/below\n", "deep/below/inner.py": failing})
    assert sample.run("imports")["import gamma"].message == "1 names: inner"


def test_shared_library_without_an_init_function_is_not_imported(sample):
    library = {"gamma/__init__.py": b"", "gamma/libgamma.so": b"\x7fELF", "gamma/empty.so": b""}
    sample.add("gamma", library)
    assert sample.run("imports")["import gamma"].message == "1 names: gamma"
    sample.add("delta", {"delta/__init__.py": b"", "delta/fake.so": b"PyInit_fake\0"})
    assert "delta.fake: ImportError" in sample.run("imports")["import delta"].message


def test_module_listed_in_top_level_file_is_imported(sample):
    sample.add(
        "gamma",
        {
            "gamma/__init__.py": b"",
            "gamma/generated_pb2.py": b"raise RuntimeError('made for a newer protobuf')\n",
            "gamma/other.py": b"raise RuntimeError('not declared')\n",
            "gamma-1.0.dist-info/top_level.txt": b"gamma\ngamma/generated_pb2\ngamma/gone\n",
        },
    )
    message = sample.run("imports")["import gamma"].message
    assert "gamma.generated_pb2: RuntimeError: made for a newer protobuf" in message
    assert "gamma.other" not in message
    assert "gamma.gone" not in message


def command(sample: Sample, name: str, text: str) -> None:
    """Install the command `name`, a shell script."""
    path = sample.folder / "venv/bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        ("echo usage: sft, grpo", "passed", "the command line lists its methods"),
        ("echo usage: sft", "failed", "the output has nothing like grpo"),
        (":", "failed", "ended with status 0 and printed nothing"),
        ("echo 'ImportError: no rich'; exit 1", "failed", "ImportError: no rich"),
    ],
)
def test_documented_command_prints_expected_output(sample, text, outcome, message):
    sample.add("trl", {"trl/__init__.py": b""})
    command(sample, "trl", text)
    case = sample.run("trl help", tier="cpu")["trl help"]
    assert (case.outcome, message in case.message) == (outcome, True), case.message


def test_missing_documented_command_is_a_failure(sample):
    sample.add("trl", {"trl/__init__.py": b""})
    case = sample.run("trl help", tier="cpu")["trl help"]
    assert case.outcome == "failed"
    assert "bin/trl" in case.message
    assert sample.run("trl help|tokenizers", tier="cpu")["tokenizers"].outcome == "skipped"


COMMAND = {"package": "trl", "versions": ["1.0"], "name": "trl help", "error": "no rich"}


@pytest.mark.long
def test_accepted_failure_is_skipped_and_its_unexpected_pass_is_a_failure(sample):
    sample.add("trl", {"trl/__init__.py": b""})
    sample.allowed["cases"] = [{**COMMAND, "reason": "rich is another project"}]
    command(sample, "trl", "echo 'ImportError: no rich'; exit 1")
    case = sample.run("trl help", tier="cpu")["trl help"]
    assert (case.outcome, case.message) == ("skipped", "rich is another project")
    command(sample, "trl", "echo sft grpo")
    case = sample.run("trl help", tier="cpu")["trl help"]
    assert (case.outcome, "but the case passes" in case.message) == ("failed", True)
    sample.allowed["cases"] = [{**COMMAND, "versions": ["0.9"], "reason": "another version"}]
    assert sample.run("trl help", tier="cpu")["trl help"].outcome == "passed"
