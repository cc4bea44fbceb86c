"""Tests the output, exit statuses and cached results of `imgbuild audit` on a small project."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from imgbuild.audit.judge import CHECKS
from imgbuild.audit.packages.pinned import ANY_GLIBC
from imgbuild.cache.store import Store
from imgbuild.cli._audit_targets import TargetAudits
from imgbuild.cli.audit import Check, project_glibc
from imgbuild.errors import InputError, Interrupted
from imgbuild.matrix.select import Selected
from imgbuild.report import Report
from imgbuild.solve import uv
from imgbuild.values import Arch
from tests.support import samples
from tests.support.audited_project import TARGET, Project
from tests.support.inprocess_project import SECOND, UNLOCKED, Command

# Checks that need no Debian package, since this project has no file of one.
CODE = ("--select", "imports", "--select", "calls", "--select", "metadata")
LOOSE = ("--requirements", "loose.txt", "--python", "3.11", "--arch", "x86_64")
TRL = """\
from vllm import LLM, Gone

class GRPOTrainer:
    def __init__(self, model):
        self.llm = LLM(model=model)

def corner():
    from vllm import AlsoGone
"""
GOOD = {"vllm": {"vllm/__init__.py": "class LLM:\n    def __init__(self, model): ...\n"}}
BAD = {**GOOD, "trl": {"trl/__init__.py": TRL}}
HEALTHY = {**GOOD, "trl": {"trl/__init__.py": TRL.replace(", Gone", "").replace("AlsoGone", "LLM")}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_select_option_accepts_every_check_of_the_audit() -> None:
    assert tuple(check.value for check in Check) == CHECKS


def test_audit_error_has_a_location_and_exit_status_4(folder: Path, imgbuild: Command) -> None:
    Project(folder, BAD)
    done = imgbuild("audit", TARGET, *CODE, status=4)
    error, place, _, counts = done.stdout.splitlines()
    assert error.startswith("error: trl 1.0 imports Gone from vllm, but vllm 1.0")
    assert error.endswith("[imports]")
    assert place == "    at trl 1.0 trl/__init__.py:1"
    assert counts == f"{TARGET} x86_64: 1 error, 0 warnings, 1 note"
    assert f"the audit found errors in {TARGET} x86_64" in done.stderr


def test_audit_notes_are_counted_and_shown_on_request(folder: Path, imgbuild: Command) -> None:
    Project(folder, BAD)
    plain = imgbuild("audit", TARGET, *CODE)
    noted = imgbuild("audit", TARGET, *CODE, "--notes")
    assert "AlsoGone" not in plain.stdout
    assert "note: trl 1.0 imports AlsoGone" in noted.stdout


def test_valid_package_set_has_no_findings(folder: Path, imgbuild: Command) -> None:
    Project(folder, HEALTHY)
    done = imgbuild("audit", TARGET, *CODE)
    assert (done.status, done.stdout) == (0, f"{TARGET} x86_64: 0 errors, 0 warnings, 0 notes\n")


def test_json_output_of_audit_is_one_document_with_all_findings(
    folder: Path, imgbuild: Command
) -> None:
    Project(folder, BAD)
    done = imgbuild("audit", "--all", *CODE, "--json")
    (report,) = json.loads(done.stdout)
    assert done.status == 4
    assert (report["target"], report["arch"]) == (TARGET, "x86_64")
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert [finding["evidence"]["subject"] for finding in errors] == ["vllm:Gone"]


def test_audit_runs_only_requested_checks(folder: Path, imgbuild: Command) -> None:
    Project(folder, BAD)
    done = imgbuild("audit", TARGET, "--select", "metadata")
    assert (done.status, done.stdout.count("\n")) == (0, 1)
    assert "weather" in imgbuild("audit", TARGET, "--select", "weather", status=2).stderr


def test_second_audit_reads_no_wheels(folder: Path, imgbuild: Command) -> None:
    project = Project(folder, BAD)
    first = imgbuild("audit", TARGET, *CODE)
    store = Store.open()
    for wheel in project.wheels.values():
        store.drop_file(wheel.sha256)
    second = imgbuild("audit", TARGET, *CODE, "--offline")
    assert (second.status, second.stdout) == (first.status, first.stdout)
    imgbuild("audit", TARGET, "--select", "calls", "--select", "elf", "--offline", status=7)


def test_waiver_turns_error_into_note(folder: Path, imgbuild: Command) -> None:
    project = Project(folder, BAD)
    assert imgbuild("audit", TARGET, *CODE).status == 4
    waiver = textwrap.indent(
        "waive:\n"
        '  - {check: imports, package: trl, subject: "vllm:Gone", reason: it is never imported}\n',
        "    ",
    )
    project.edit("    cuda: ", f"{waiver}    cuda: ")
    done = imgbuild("audit", TARGET, *CODE, "--notes", status=0)
    assert "(accepted: it is never imported)" in done.stdout


def test_junit_report_of_audit_has_a_case_for_each_check(folder: Path, imgbuild: Command) -> None:
    Project(folder, BAD)
    imgbuild("audit", TARGET, *CODE, "--junit", "report.xml")
    suite = ElementTree.parse(folder / "report.xml").getroot()[0]
    failed = {case.get("name"): case.find("failure") is not None for case in suite}
    assert failed == {"metadata": False, "imports": True, "calls": False}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--requirements", "pins.txt", TARGET), "cannot be combined"),
        (("trl==0.18.2", TARGET), "trl==0.18.2 and targets cannot be combined"),
        (("trl==0.18.2", "--all"), "trl==0.18.2 and targets cannot be combined"),
        (("trl==0.18.2", "--arch", "arm64", "--arch", "x86_64"), "can have only one arch"),
        (("trl==0.18.2", "--environment"), "trl==0.18.2 and --environment cannot be combined"),
        (("--environment", "gone", "--python", "3.11"), "--environment gone: no such file"),
        (("--environment", "--all"), "--environment and targets cannot be combined"),
        ((TARGET, "--glibc", "2.28"), "--glibc 2.28 does not apply to locked targets"),
        ((TARGET, "--python", "3.11"), "--python 3.11 does not apply to locked targets"),
        (("trl==0.18.2", "--glibc", "3.1"), "--glibc 3.1: invalid version"),
        (("trl==0.18.2", "--base", "debian-1"), "the matrix has no base debian-1"),
        (("trl==0.18.2", "--cuda", "new"), "--cuda new: expected a CUDA release with two numbers"),
        (("trl==0.18", "--python", "3"), "--python 3: "),
        (
            ("--requirements", "pins.txt", "--python", "3.11", "--arch", "arm64"),
            "cannot read pins.txt: No such file or directory\nhint: ",
        ),
        (("--requirements", "loose.txt", "--python", "3", "--arch", "arm64"), "--python 3: "),
        ((*LOOSE, "--keep"), "--keep applies only to wheels of targets"),
        ((*LOOSE, "--drop"), "--drop applies only to wheels of targets"),
        (
            ("trl==0.18.2", "--matrix", "no.yaml"),
            "no.yaml: no such file",
        ),
        (("--requirements", "loose.txt", "--python", "abc", "--arch", "arm64"), "--python abc: "),
    ],
)
def test_invalid_requirements_are_refused(
    folder: Path, imgbuild: Command, arguments: tuple[str, ...], words: str
) -> None:
    Project(folder, GOOD)
    (folder / "loose.txt").write_text("torch==2.6.0\ntrl>=0.18\n", encoding="utf-8")
    assert words in imgbuild("audit", *arguments, status=2).stderr


def test_requirements_that_are_not_text_are_refused(folder: Path, imgbuild: Command) -> None:
    (folder / "loose.txt").write_bytes(b"torch==2.6.0\xff")
    done = imgbuild("audit", *LOOSE, status=2)
    assert "loose.txt is not a UTF-8 text file: invalid byte at offset 12" in done.stderr


def test_pins_use_glibc_of_matrix_base(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    Project(folder, GOOD).edit('glibc: "2.36"', 'glibc: "2.41"')
    assert project_glibc("3.11", None) == project_glibc("3.12", folder) == "2.41"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert project_glibc("3.11", None) == ANY_GLIBC
    with pytest.raises(InputError, match="no such file"):
        project_glibc("3.11", elsewhere)


def test_target_without_lock_is_skipped_unless_named(folder: Path, imgbuild: Command) -> None:
    Project(folder, HEALTHY)
    matrix = folder / "matrix.yaml"
    matrix.write_text(matrix.read_text(encoding="utf-8") + SECOND.lstrip("\n"), encoding="utf-8")
    for words in (("--all",), ("cu1*",)):
        done = imgbuild("audit", *words, *CODE, "--json")
        assert (done.status, [report["target"] for report in json.loads(done.stdout)]) == (
            0,
            [TARGET],
        )
        assert f"{UNLOCKED} skipped" in done.stderr
    named = imgbuild("audit", TARGET, UNLOCKED, *CODE, status=5)
    assert f"no lock for target {UNLOCKED}" in " ".join(named.stderr.split())
    assert imgbuild("audit", "cu13*", *CODE).status == 5


def test_audit_of_other_targets_continues_after_a_missing_file(
    folder: Path, imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "default_index", lambda: "https://index.example/simple")
    Project(folder, HEALTHY)
    matrix = folder / "matrix.yaml"
    row = matrix.read_text(encoding="utf-8").partition(f"  {TARGET}:\n")[2]
    matrix.write_text(matrix.read_text(encoding="utf-8") + f"  absent:\n{row}", encoding="utf-8")
    text = (folder / "images" / TARGET / "lock.json").read_text(encoding="utf-8")
    lock = json.loads(text.replace(TARGET, "absent"))
    for wheel in lock["arch"]["x86_64"]["wheels"]:
        wheel["sha256"] = wheel["sha256"][::-1]
    (folder / "images/absent").mkdir()
    (folder / "images/absent/lock.json").write_text(json.dumps(lock), encoding="utf-8")
    done = imgbuild("audit", "absent", TARGET, *CODE, "--offline")
    assert (done.status, done.stdout) == (7, f"{TARGET} x86_64: 0 errors, 0 warnings, 0 notes\n")
    assert "1 target failed:\n  absent x86_64: " in done.stderr
    done = imgbuild("audit", "--all", *CODE, "--offline", "--json")
    assert (done.status, [each["target"] for each in json.loads(done.stdout)]) == (7, [TARGET])


def test_an_interrupt_ends_the_audit_of_all_targets() -> None:
    both = Selected(
        name=TARGET, target=samples.matrix().targets["small"], arches=(Arch.X86_64, Arch.ARM64)
    )

    def _audit(_: Selected, arch: Arch) -> Report:
        raise Interrupted(str(arch))

    with pytest.raises(Interrupted, match=str(Arch.X86_64)):
        TargetAudits().add([both], _audit)
