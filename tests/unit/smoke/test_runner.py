"""Tests the expected content, reports and functions of the smoke tests."""

from __future__ import annotations

import ast
import io
import json
import math
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from imgbuild import codec
from imgbuild.cli import smoke
from imgbuild.errors import InputError, WorkFailed
from imgbuild.lock import lock_file
from imgbuild.report import CaseResult, Report, has_passed
from imgbuild.smoke import junit_report, runner
from imgbuild.system.console import console
from imgbuild.system.process import ProcessResult
from imgbuild.values import Arch
from tests.support import samples
from tests.support.rows import each_row
from tests.support.smoke_scripts import CRASH, ENGINE, LINKER, SCRIPTS, smoke_module


def test_exit_messages_of_torch_are_not_the_cause(monkeypatch):
    remark = "[rank0]:[W1121 14:49:44.912411769 ProcessGroupNCCL.cpp:1496] Warning: not destroyed"
    assert smoke_module("run", monkeypatch).last_line(
        f"25 of 25 tensors changed\n{remark}\n\n"
    ) == ("25 of 25 tensors changed")
    assert smoke_module("run", monkeypatch).last_line(remark) == ""


def test_names_in_an_import_log_are_distinguished(monkeypatch):
    parts = smoke_module("smoke_import", monkeypatch).parts
    log = (
        "smoke-import: begin a\nhello\nsmoke-import: ok a\nsmoke-import: begin b\nTraceback\n"
        "no end of linesmoke-import: failed b\nsmoke-import: begin c\nboom\n"
    )
    assert parts(log) == {
        "a": ("ok", "hello"),
        "b": ("failed", "Traceback\nno end of line"),
        "c": ("", "boom"),
    }


def test_allowed_failure_matches_only_its_name_and_error(monkeypatch):
    module = smoke_module("smoke_import", monkeypatch)
    entry = {"name": "vllm.*_C", "error": "libcuda.so.1", "reason": "x"}
    broken = module.Attempt("ImportError: libcuda.so.1: cannot open", "")
    other = module.Attempt("ImportError: undefined symbol: _ZN5torch", "")
    assert module.accepts(entry, "vllm._C", broken)
    assert not module.accepts(entry, "vllm._C", other)
    assert not module.accepts(entry, "vllm.other", broken)
    assert module.idle([entry], {"vllm._C": broken}) == []
    assert (
        "no import fails with this error"
        in module.idle([entry], {"vllm._C": module.Attempt("", "")})[0]
    )


def test_allowed_failure_can_require_a_cause_in_the_log(monkeypatch):
    """Some packages print the same message for different causes."""
    module = smoke_module("smoke_import", monkeypatch)
    entry = {"name": "sgl_kernel*", "error": "common_ops", "log": "libcuda.so.1", "reason": "x"}
    last = "No module named 'common_ops'"
    assert module.accepts(
        entry, "sgl_kernel", module.Attempt(last, f"libcuda.so.1: cannot\n{last}")
    )
    assert not module.accepts(
        entry, "sgl_kernel", module.Attempt(last, "undefined symbol: _ZN5torch")
    )


def test_allowed_failure_for_a_missing_driver_can_be_unused_with_a_driver(monkeypatch):
    module = smoke_module("smoke_import", monkeypatch)
    entry = {"name": "vllm._C", "error": "libcuda.so.1", "reason": "x", "needs": "driver"}
    well = {"vllm._C": module.Attempt("", "")}
    monkeypatch.setattr(module, "has_driver", lambda: True)
    assert module.idle([entry], well) == []
    monkeypatch.setattr(module, "has_driver", lambda: False)
    assert len(module.idle([entry], well)) == 1


def test_outcome_of_a_smoke_case_depends_on_exit_status_and_log(monkeypatch):
    run = smoke_module("run", monkeypatch)
    assert run.verdict(0, "noise\ndone\n", 1) == ("passed", "done")
    assert run.verdict(run.SKIPPED, "no trl here", 1) == ("skipped", "no trl here")
    assert run.verdict(1, LINKER, 1)[1].startswith("/usr/bin/ld: cannot find")
    assert run.verdict(3, "", 1) == ("failed", "ended with status 3 without output")
    assert (
        run.verdict(-11, CRASH, 1)[1] == "killed by SIGSEGV: Fatal Python error: Segmentation fault"
    )
    assert run.verdict(None, "step 1\n", 60)[1] == "timed out after 60 s; last line: step 1"
    answered = run.verdict(None, f"{ENGINE}INFO waiting for the engine\n", 60)[1]
    assert answered.startswith(
        "timed out after 60 s; last line: INFO waiting for the engine; its log"
    )
    assert "its log has: ValueError: No memory for" in answered


def test_long_case_log_keeps_the_beginning_and_the_end(monkeypatch):
    clipped = smoke_module("run", monkeypatch).clip("first" + "x" * 1000 + "last", 100)
    assert clipped.startswith("first")
    assert clipped.endswith("last")
    assert len(clipped) < 200


def test_every_smoke_case_has_a_script_and_every_script_a_case(monkeypatch):
    run = smoke_module("run", monkeypatch)
    cases = [case for tier in run.TIERS.values() for case in tier]
    assert len(cases) == len({(case.script, case.arguments) for case in cases})
    scripts = {path.name for tier in run.TIERS for path in SCRIPTS.glob(f"{tier}_*.py")}
    assert {case.script for case in cases} == scripts | {"quick_start.py"}  # of several tiers
    for tier in run.TIERS.values():
        assert len(tier) == len({case.name for case in tier})


@pytest.mark.parametrize("tier", ["gpu", "multi-gpu"])
def test_gpu_tier_starts_no_case_if_the_gate_fails(tier, monkeypatch):
    first, *rest = smoke_module("run", monkeypatch).TIERS[tier]
    assert first.gate
    assert not any(case.gate for case in rest)


def test_verl_metrics_are_read(monkeypatch):
    logged = smoke_module("gpu_verl", monkeypatch).logged
    log = (
        "(TaskRunner pid=9) step:1 - actor/grad_norm:np.float64(1.5) - actor/pg_loss:-2.5e-05"
        " - critic/score/mean:0.25 - actor/entropy:nan - perf/total_num_tokens:300\n"
    )
    keys = ("actor/grad_norm", "actor/pg_loss", "critic/score/mean", "perf/total_num_tokens")
    assert [logged(log, key) for key in keys] == [1.5, -2.5e-05, 0.25, 300]
    assert math.isnan(logged(log, "actor/entropy"))
    assert logged(log, "actor/loss") is None


def test_verl_options_match_version(monkeypatch):
    module = smoke_module("gpu_verl", monkeypatch)
    settings = module.settings(Path("/m"), Path("/d.parquet"), Path("/r.py"), "vllm")
    assert settings["actor_rollout_ref.model.override_config.attn_implementation"] == "sdpa"
    assert settings["actor_rollout_ref.rollout.load_format"] == "safetensors"
    assert "trainer.use_v1" not in settings  # the default, though TransferQueue is not installed


def test_allowed_failures_have_reasons():
    document = json.loads((SCRIPTS / "allowed.json").read_text())
    lists = {"requirements", "entry points", "imports", "cases"}
    assert document.keys() == lists | {"about"}
    for entry in [entry for name in lists for entry in document[name]]:
        assert len(entry["reason"]) > 20, entry
        assert entry["error"], entry
        keys = {"package", "versions", "python", "name", "error", "log", "needs", "reason"}
        assert entry.keys() <= keys
        assert entry.get("needs", "driver") == "driver"


def test_allowed_failure_can_be_limited_to_a_python_release(monkeypatch):
    module = smoke_module("smoke_import", monkeypatch)
    release = "{}.{}".format(*sys.version_info)
    assert module.is_for_python({})
    assert module.is_for_python({"python": ["3.1", release]})
    assert not module.is_for_python({"python": ["3.1"]})


# In the static tier of cu128-unsloth2026.10, an entry for 2026.10.9 accepted nothing.
@pytest.mark.parametrize(
    ("package", "name", "others"),
    [
        ("vllm", "vllm.*", set()),
        ("unsloth", "unsloth*", {"2026.10.9"}),
        ("unsloth-zoo", "unsloth_zoo*", {"2026.10.9"}),
    ],
)
def test_allowed_failure_for_a_missing_driver_applies_to_every_locked_version(
    package, name, others
):
    """Each version is tested separately, because a vLLM without kernels has no missing driver."""
    entries = json.loads((SCRIPTS / "allowed.json").read_text())["imports"]
    mine = [each for each in entries if (each["package"], each["name"]) == (package, name)]
    locked = {
        wheel.version
        for path in (SCRIPTS.parent / "images").glob("*/lock.json")
        for resolution in lock_file.read_lock(path.parents[1], path.parent.name).arch.values()
        for wheel in resolution.wheels
        if wheel.package == package
    }
    assert locked
    assert {version for each in mine for version in each["versions"]} == locked - others
    assert {each["needs"] for each in mine} == {"driver"}


def test_smoke_tests_do_not_import_imgbuild():
    for path in SCRIPTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            modules = [*named, getattr(node, "module", None) or ""]
            assert not any(name.partition(".")[0] == "imgbuild" for name in modules), path


def test_expected_content_for_smoke_tests_matches_the_lock():
    expected = runner.create_expectation(samples.lock(samples.wheel("trl", "0.18.2")), Arch.X86_64)
    assert expected.packages == {"pip": "1.0", "torch": "2.6.0", "trl": "0.18.2"}
    assert expected.debian == ("bash", "python3")
    assert (expected.prefix, expected.cache) == ("/opt/venv", "/var/cache/imgbuild")
    with pytest.raises(InputError, match="not include arm64"):
        runner.create_expectation(samples.lock(), Arch.ARM64)


def test_archive_of_smoke_tests_has_the_expected_content():
    expected = runner.create_expectation(samples.lock(), Arch.X86_64)
    with tarfile.open(fileobj=io.BytesIO(b"".join(runner.test_tar(expected)))) as archive:
        names = archive.getnames()
        written = archive.extractfile("expect.json")
        assert written is not None
        read = codec.decode(written.read(), runner.Expectation, file="expect.json")
        assert all(member.uid == 0 and member.mode in (0o644, 0o755) for member in archive)
    assert read == expected
    assert {path.name for path in SCRIPTS.iterdir() if path.is_file()} < set(names)


CASES = (
    CaseResult(name="import torch", outcome="passed", seconds=1.5, message="torch", log="log"),
    CaseResult(
        name="import vllm", outcome="failed", seconds=2.0, message="a < b", log="nul \x00 ]]>"
    ),
    CaseResult(name="import vllm: vllm._C", outcome="skipped", seconds=0.0, message="no driver"),
)


def answer(cases: tuple[CaseResult, ...], status: int, *, tier: str = "static") -> ProcessResult:
    document = runner.RunnerReport(format=runner.FORMAT, tier=tier, python="3.11", cases=cases)
    return ProcessResult(status, msgspec.json.encode(document).decode(), "talk")


def test_smoke_report_is_read():
    expected = runner.create_expectation(samples.lock(), Arch.X86_64)
    report = runner.read_report(answer(CASES, 1), expected, "static")
    assert report == Report(target="small", arch=Arch.X86_64, tier="static", cases=CASES)
    assert not report.ok
    assert runner.read_report(answer(CASES[:1], 0), expected, "static").ok


@each_row(
    ("result", "words"),
    [
        (ProcessResult(1, "", "python: not found\n"), "did not run.*\n.*python: not found"),
        (ProcessResult(0, "{}", ""), "did not run"),
        (answer(CASES[:1], 0, tier="cpu"), "has tier cpu and format 1"),
        (answer(CASES[:1], 1), "status 1, but the report lists 1 passed, 0 failed"),
        (answer(CASES, 0), "status 0, but the report lists 1 passed, 1 failed"),
        (answer((), 0), "status 0, but the report lists 0 passed"),
        (answer(CASES[2:], 0), "status 0, but the report lists 0 passed, 0 failed, 1 skipped"),
    ],
)
def test_inconsistent_or_missing_report_is_an_error(result, words):
    expected = runner.create_expectation(samples.lock(), Arch.X86_64)
    with pytest.raises(WorkFailed, match=words):
        runner.read_report(result, expected, "static")


def test_smoke_run_with_only_skipped_cases_fails():
    expected = runner.create_expectation(samples.lock(), Arch.X86_64)
    assert not has_passed(runner.read_report(answer(CASES[2:], 1), expected, "static").cases)
    assert has_passed(runner.read_report(answer(CASES[:1], 0), expected, "static").cases)


def test_junit_report_of_smoke_tests_counts_cases_and_escapes_text():
    report = Report(target="small", arch="x86_64", tier="static", cases=CASES)
    suite = ElementTree.fromstring(junit_report.junit_document([report]))[0]
    counts = {key: suite.attrib[key] for key in ("tests", "failures", "skipped", "time")}
    assert counts == {"tests": "3", "failures": "1", "skipped": "1", "time": "3.500"}
    failure = suite[1].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "a < b"
    assert suite[1].findtext("system-out") == "nul \ufffd ]]>"
    assert suite[2].find("skipped") is not None
    assert [child.tag for child in suite[0]] == ["system-out"]


def test_failed_and_skipped_smoke_cases_are_printed(capsys, monkeypatch):
    report = Report(target="small", arch="x86_64", tier="static", cases=CASES)
    monkeypatch.setattr(console, "verbosity", 0)
    smoke.print_report(report)
    output = " ".join(capsys.readouterr().err.split())
    assert "1 passed, 1 failed, 1 skipped" in output
    assert "import vllm" in output
    assert "import torch" in output
    assert "2.0" in output


def test_verbose_option_prints_the_full_case_log(capsys, monkeypatch):
    log = "\n".join(f"line {number}." for number in range(100))
    failed = CaseResult(name="nccl", outcome="failed", seconds=3, message="no peers", log=log)
    quick = [
        CaseResult(name=f"import p{number}", outcome="passed", seconds=0.1) for number in range(9)
    ]
    report = Report(target="small", arch="x86_64", tier="gpu", cases=(failed, *quick))
    monkeypatch.setattr(console, "verbosity", 0)
    smoke.print_report(report)
    output = capsys.readouterr().err
    assert "line 99." in output
    assert "line 69." not in output
    assert "9 more, under 1 s each" in output
    assert "import p3" not in output
    monkeypatch.setattr(console, "verbosity", 1)
    smoke.print_report(report)
    output = capsys.readouterr().err
    assert "line 0." in output
    assert "import p3" in output
