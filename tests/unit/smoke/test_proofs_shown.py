"""Proofs are shown: in the README, beside the matrix's own words; those committed are sound."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from imgbuild import codec, project
from imgbuild.cache.store import Store
from imgbuild.lock import lock as locks
from imgbuild.plan import seal as seals
from imgbuild.smoke import proofs, records, reports
from imgbuild.values import Arch
from tests.sourcecode import ROOT
from tests.unit import cli_project
from tests.unit.cli_project import TARGET, UNLOCKED, Command, World
from tests.unit.proof_world import OTHER, left


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return cli_project.make(tmp_path)


@pytest.fixture
def imgbuild(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def test_the_words_of_the_matrix_and_the_ledger_are_compared() -> None:
    def _run(tier: str, *, good: bool = True, arch: Arch = Arch.X86_64) -> records.Run:
        return records.Run(
            date="2026-11-21T14:48:17Z", arch=arch, tier=tier,  # type: ignore[arg-type]
            result="pass" if good else "fail", digest=OTHER, config=OTHER, versions={},
            seconds=1, passed=int(good), failed=int(not good), skipped=0, through="docker",
        )  # fmt: skip

    told = "The image passes the gpu tier on one H200: this. The static and cpu tiers pass."
    assert proofs.contradictions(told, [_run("gpu"), _run("static"), _run("cpu")]) == ()
    assert proofs.contradictions(told, [_run("gpu", good=False), _run("static")]) == (
        "matrix.yaml says 'The image passes the gpu tier on one H200'; recorded: gpu failed",
        "matrix.yaml says 'The static and cpu tiers pass'; recorded: no run of cpu",
    )
    told = "Passes nothing. The arm64 image is emulated, not proven; on x86_64 it is not run."
    assert proofs.contradictions(told, [_run("cpu")]) == ()
    assert proofs.contradictions(told, [_run("gpu")]) == (
        "matrix.yaml says 'on x86_64 it is not run'; recorded: gpu passed",
    )
    assert proofs.contradictions("A lead, not a proof of this image.", [_run("multi-gpu")]) == (
        "matrix.yaml says 'A lead, not a proof of this image'; recorded: multi-gpu passed",
    )


def test_contradictions_are_told(world: World, imgbuild: Command) -> None:
    row = f"  {TARGET}:\n"
    world.edit(row, f"{row}    proof: The image passes the gpu tier.\n")
    done = imgbuild("list", TARGET)
    assert "recorded: no run of gpu" in " ".join(done.stderr.split())
    (shown,) = cli_project.json_of(imgbuild("list", TARGET, "--json"))
    assert len(shown["contradictions"]) == 1
    left(world)
    assert imgbuild("smoke", "--import", "docs/out").status == 0
    assert "warning" not in imgbuild("list", TARGET).stderr


def test_the_table_is_written_between_its_marks(world: World, imgbuild: Command) -> None:
    page = world.folder / "README.md"
    page.write_text("# Head\n\n<!-- images -->\nold\n<!-- /images -->\n\ntail\n")
    left(world)
    assert imgbuild("smoke", "--import", "docs/out").status == 0
    assert "wrote README.md" in imgbuild("list", "--into", "README.md").stderr
    text = page.read_text()
    assert text.startswith("# Head\n\n<!-- images -->\n<!-- made from locks and proofs by: ")
    assert text.endswith("|\n\n<!-- /images -->\n\ntail\n")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{TARGET}`"))
    assert "x86_64 0.0 GB" in row
    assert "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21" in row
    assert UNLOCKED not in text
    assert "README.md is up to date" in imgbuild("list", "--into", "README.md").stderr
    page.write_text("# Head\n")
    done = imgbuild("list", "--into", "README.md")
    assert (done.status, page.read_text()) == (2, "# Head\n")
    assert "<!-- images -->" in done.stderr


KEPT = sorted(path.parent for path in (ROOT / "docs/proofs").glob("*/machine.json"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_reports_that_are_kept_give_the_runs_that_are_committed(
    folder: Path, tmp_path: Path
) -> None:
    said = json.loads((folder / "machine.json").read_bytes())
    target = said["target"]
    committed = records.read_ledger(ROOT / "images", target)
    assert said["config"] in committed.images
    own = project.Project(matrix=tmp_path / "matrix.yaml")
    sealed = seals.read_seal(ROOT / "images", locks.read_lock(ROOT / "images", target))
    if sealed.arch[Arch(said["arch"])].config != said["config"]:
        return  # it was of an image of the past, whose lock stands in the history
    for name in ("lock.json", "digests.json"):
        (own.images / target).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "images" / target / name, own.images / target)
    shutil.copytree(folder, tmp_path / "docs/proofs" / folder.name)
    proofs.prove(own, reports.claims(tmp_path / "docs/proofs" / folder.name, own), Store.open())
    (run,) = records.read_ledger(own.images, target).runs
    assert run in committed.runs


def test_committed_ledgers_are_sound_and_name_reports_that_are_there() -> None:
    found = [path.parent.name for path in (ROOT / "images").glob("*/smoke.json")]
    assert "cu124-vllm" in found
    for target in found:
        known = records.read_ledger(ROOT / "images", target)
        path = records.ledger_path(ROOT / "images", target)
        assert codec.encode(known) == path.read_bytes()
        for run in known.runs:
            assert not run.report or (ROOT / run.report).exists(), run


def test_the_readme_shows_the_images_and_proofs_of_now(tmp_path: Path, imgbuild: Command) -> None:
    page = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", page)
    done = imgbuild("list", "--into", str(page), "--matrix", str(ROOT / "matrix.yaml"))
    assert done.status == 0, done.stderr
    assert page.read_text() == (ROOT / "README.md").read_text(), "imgbuild list --into README.md"
