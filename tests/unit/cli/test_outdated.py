"""Tests `imgbuild outdated` with requirements files, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from imgbuild.cli import _outdated_report, _output
from imgbuild.cli import outdated as verb
from imgbuild.cli._outdated_report import OutdatedReport
from imgbuild.http.client import HttpClient
from imgbuild.lock.published import load_matrix
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import PackageIndex
from imgbuild.update.newer import NewerVersion
from imgbuild.update.newer_targets import NewerTarget
from imgbuild.update.other_updates import BaseUpdates, DebianUpdate, KnownVulnerabilities
from imgbuild.update.solved_version import SolvedVersion
from imgbuild.values import Arch
from tests.support import folder_index
from tests.support.inprocess_project import Command, read_json
from tests.support.local_index import LocalIndex


@pytest.fixture(name="imgbuild")
def _imgbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in a folder with requirements.txt and an index elsewhere."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    index = LocalIndex()
    for version, torch in (("1.0", "2.6.0"), ("2.0", "2.7.0"), ("3.0", "2.8.0")):
        index.wheel("engine", version, [f"torch=={torch}"])
    for version in ("2.5.0", "2.6.0", "2.6.1", "2.7.0", "2.8.0"):
        index.wheel("torch", version)
    index.wheel("arm", "1.0")
    index.wheel("arm", "2.0", tag=folder_index.ARM)
    index.wheel("old", "1.0", tag=folder_index.OLD_PYTHON)
    catalogue = folder_index.catalogue_with(index, tmp_path / "index")
    monkeypatch.setattr(verb, "load_matrix", lambda _: catalogue)
    return Command(monkeypatch, capsys)


def rows(imgbuild: Command, *arguments: str) -> dict[str, dict[str, object]]:
    """The packages of the only report, by name."""
    (report,) = read_json(imgbuild("outdated", *arguments, "--json"))
    return {row["package"]: row for row in report["packages"]}


def test_outdated_applies_all_requirement_lines_of_a_package(imgbuild: Command) -> None:
    Path("requirements.txt").write_text(
        "torch>=2.5\nengine==1.0\ntorch<2.7  # twice\ntorch!=2.6.1\ntorch<2; python_version < '3'\n"
    )
    packages = rows(imgbuild, "-r", "requirements.txt", "--arch", "x86_64")
    torch = packages["torch"]
    assert torch["version"] == "2.6.0"
    place = "requirements.txt:1, requirements.txt:3, requirements.txt:4"
    assert torch["reasons"] == [
        f"{place} requires torch>=2.5,!=2.6.1,<2.7",
        "engine 1.0 requires torch==2.6.0",
    ]
    assert packages["engine"]["newest"] == packages["engine"]["takes"] == "3.0"
    assert packages["engine"]["moves"] == ["torch"]


def test_outdated_reports_pins_that_block_each_other(imgbuild: Command) -> None:
    Path("requirements.txt").write_text("torch==2.6.0\nengine==1.0\narm==1.0\nold\nnosuch==1\n")
    packages = rows(imgbuild, "-r", "requirements.txt", "--arch", "x86_64")
    assert packages["engine"]["reasons"] == ["3.0 requires torch==2.8.0, not 2.6.0"]
    assert packages["torch"]["reasons"] == ["engine 1.0 requires torch==2.6.0"]
    assert packages["arm"]["reasons"] == ["no wheel for x86_64 with Python 3.11"]
    assert packages["old"]["error"] == "no allowed version has a wheel for this Python and machine"
    assert packages["nosuch"]["error"] == "the index has no such package"
    assert rows(imgbuild, "-r", "requirements.txt", "--arch", "arm64")["arm"]["takes"] == "2.0"
    lines = imgbuild("outdated", "-r", "requirements.txt", "--arch", "x86_64").stdout.splitlines()
    assert lines[0] == (
        "requirements.txt (x86_64, Python 3.11): 3 of 5 packages have newer versions,"
        " METADATA allows 0"
    )
    assert lines[1].split("  ")[0] == "package"


def test_outdated_reports_a_file_without_newer_versions(imgbuild: Command) -> None:
    Path("requirements.txt").write_text("torch==2.8.0\n")
    done = imgbuild("outdated", "-r", "requirements.txt")
    assert done.status == 0
    assert "0 of 1 package have newer versions" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_index_that_cannot_be_read_is_an_error_after_the_table(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = load_matrix(project_paths.catalogue_project().matrix)
    closed = PackageIndex(url="http://127.0.0.1:9/simple", upload_times="none")
    indexes = {**catalogue.indexes, catalogue.default_index: closed}
    unreachable = msgspec.structs.replace(catalogue, indexes=indexes)
    monkeypatch.setattr(verb, "load_matrix", lambda _: unreachable)
    monkeypatch.setitem(HttpClient.__init__.__kwdefaults__ or {}, "attempts", 1)
    Path("requirements.txt").write_text("torch==2.8.0\nengine\n")
    done = imgbuild("outdated", "-r", "requirements.txt")
    assert done.status == 7
    assert done.stdout.count("not checked: http://127.0.0.1:9/simple/") == 2
    assert "2 packages could not be checked: engine, torch" in done.stderr
    done = imgbuild("outdated", "-r", "requirements.txt", "--json")
    assert (done.status, len(json.loads(done.stdout)[0]["packages"])) == (7, 2)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "Missing argument 'TARGET'"),
        (("-r", "nosuch.txt"), 2, "nosuch.txt: no such file or folder"),
        (("-r", "requirements.txt", "cu124-vllm"), 2, "--requirements and targets cannot be"),
        (("-r", "requirements.txt", "--all"), 2, "--requirements and targets cannot be combined"),
        (("-r", "requirements.txt", "--solve"), 2, "--solve applies to targets and projects"),
        (("-r", "requirements.txt", "--python", "x"), 2, "--python x"),
        (("cu124-vllm", "--python", "3.12"), 2, "does not apply to locked targets"),
        (("nosuch",), 3, "no target matches nosuch"),
    ],
)
def test_invalid_outdated_options_are_refused(
    imgbuild: Command, arguments: tuple[str, ...], status: int, message: str
) -> None:
    Path("requirements.txt").write_text("torch\n")
    done = imgbuild("outdated", *arguments)
    assert done.status == status
    assert message in done.stderr


REPORT = OutdatedReport(
    name="cu124-vllm",
    arch=(Arch.X86_64, Arch.ARM64),
    python="3.11.2",
    cuda="12.4",
    as_of="2026-09-27",
    looked_up=30,
    unlisted=150,
    packages=(
        NewerVersion(
            package="a",
            version="1.0",
            newest="2.0",
            required=False,
            allowed="2.0",
            pinned=True,
            notes=("vllm 0.8.5 does not load models with a 2.0",),
        ),
        NewerVersion(
            package="vllm",
            version="0.8.5",
            newest="0.33.0",
            allowed="0.9.0",
            moves=("x", "y", "z", "w"),
            reasons=("0.33.0 requires torch==2.14.0, not 2.6.0", "second", "third"),
        ),
        NewerVersion(package="broken", version="1", error="404"),
    ),
    base=BaseUpdates(
        base="debian-12",
        arch=Arch.X86_64,
        packages=187,
        date="2026-11-26",
        updates=(
            *(
                DebianUpdate(package=f"lib{n}", version="1-1", newest="1-2", security=True)
                for n in range(10)
            ),
            DebianUpdate(package="apt", version="2", newest="3", security=False),
        ),
    ),
    vulnerabilities=KnownVulnerabilities(arch=Arch.X86_64, error="no connection"),
    solved=(
        SolvedVersion(package="vllm", version="0.33.0", reasons=("torch is pinned",)),
        SolvedVersion(
            package="peft", version="0.20", changes={"torch": "2.6.0 -> 2.7.0"}, audit="no error"
        ),
    ),
)


def test_table_of_outdated_has_all_kinds_of_rows() -> None:
    lines = _outdated_report.report_lines(REPORT, whole=False)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert (
        "vllm 0.8.5 0.9.0 0.33.0\n0.33.0 requires torch==2.14.0, not 2.6.0; second; 1 more;" in text
    )
    assert (
        "only files that were uploaded before 2026-09-27 (its as_of); a lock with a later" in text
    )
    assert "0.9.0 also changes x, y and 2 more" in text
    assert "\na 1.0 2.0 2.0\npinned in the matrix\n" in text
    assert "note on a 1.0: vllm 0.8.5 does not load models with a 2.0" in text
    assert text.endswith("150 other packages of cu124-vllm; to list them, add --packages")
    assert "broken 1 - -\nnot checked: 404" in text
    assert "lib7 1-1 1-2 1-2\nsecurity update of Debian (2026-11-26)" in text
    assert "lib8" not in text
    assert (
        "base debian-12 - - -\nand 2 security updates and 1 other; to list them, add --packages"
        in text
    )
    assert "advisories - - -\nvulnerabilities are unknown: no connection" in text
    assert "imgbuild update cu124-vllm --axis base" in text
    assert "vllm 0.33.0: cannot be solved\ntorch is pinned" in text
    assert "peft 0.20: can be solved, with torch 2.6.0 -> 2.7.0\naudit: no error" in text
    whole = _outdated_report.report_lines(REPORT, whole=True)
    names = [line.split()[0] for line in whole]
    assert names.index("vllm") < names.index("a")  # what is required comes first
    assert {"lib9", "apt"} <= set(names)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_table_of_outdated_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(_output, "terminal_width", lambda: width)
    lines = _outdated_report.report_lines(REPORT, whole=True)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("  0.33.0 requires") for line in lines)


def test_table_of_outdated_ends_with_newer_targets_and_retirement_reason() -> None:
    newer_target = NewerTarget(
        target="cu130-new", cuda="13.0", driver="580.65.06", versions={"vllm": "0.33.0"}
    )
    report = OutdatedReport(
        name="old",
        arch=(Arch.X86_64,),
        python="3.11",
        cuda="12.4",
        looked_up=1,
        packages=(),
        retired="cu130-new takes its place",
        targets=(newer_target,),
    )
    assert _outdated_report.report_lines(report, whole=False)[-3:] == [
        "old is retired: cu130-new takes its place",
        "newer target: cu130-new has vllm 0.33.0 (CUDA 13.0, driver 580.65.06 or newer)",
        (
            "to compare, run: imgbuild diff old cu130-new; to move a project to it, run: "
            "imgbuild update --to cu130-new"
        ),
    ]
    none = msgspec.structs.replace(report, retired="", targets=())
    assert _outdated_report.report_lines(none, whole=False)[-1].startswith("newer target: none")
