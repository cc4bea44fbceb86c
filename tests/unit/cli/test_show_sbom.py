"""Tests where `imgbuild show --sbom` writes documents, and its messages about them."""

from __future__ import annotations

import json

import pytest

from imgbuild.values import Arch, digest_of
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, Command, SampleProject, read_json
from tests.unit.attest.sbom.test_document import valid_cyclonedx, valid_spdx


@pytest.fixture
def command(
    sample: SampleProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    return Command(monkeypatch, capsys)


def test_single_sbom_is_written_to_stdout_or_to_a_file(command: Command, sample: SampleProject):
    shown = command("show", TARGET, "--sbom", "cyclonedx")
    assert shown.status == 0
    valid_cyclonedx(shown.stdout.encode())
    result = command("show", TARGET, "--sbom", "cyclonedx", "--output", "out/bill.json")
    data = (sample.folder / "out/bill.json").read_bytes()
    assert data == shown.stdout.encode()
    assert result.stdout == f"{TARGET} x86_64 {digest_of(data)} out/bill.json\n"


def test_json_output_has_the_image_digest_of_the_sbom(command: Command, sample: SampleProject):
    (sbom_file,) = read_json(command("show", TARGET, "--sbom", "spdx", "--json"))
    assert sbom_file["image"] == sample.target_digests.arch[Arch.X86_64].manifest
    valid_spdx(json.dumps(sbom_file["document"]).encode())
    (written,) = read_json(command("show", TARGET, "--sbom", "spdx", "-o", "a.json", "--json"))
    assert written == {**sbom_file, "document": None, "output": "a.json"}


def test_several_sboms_are_written_to_a_folder_and_not_to_stdout(
    command: Command, sample: SampleProject
):
    from imgbuild.matrix.load import load_matrix

    matrix = load_matrix(sample.matrix)
    inprocess_project.lock_target(
        sample.folder, matrix, inprocess_project.UNLOCKED, sample.wheels, Arch
    )
    result = command("show", "--sbom", "cyclonedx", "--all")
    assert (result.status, result.stdout) == (2, "")
    assert "stdout can contain only one SBOM" in result.stderr
    assert command("show", "--sbom", "cyclonedx", "--all", "--output", "bills").status == 0
    assert sorted(path.name for path in (sample.folder / "bills").iterdir()) == [
        f"{TARGET}-x86_64.cdx.json",
        f"{inprocess_project.UNLOCKED}-arm64.cdx.json",
        f"{inprocess_project.UNLOCKED}-x86_64.cdx.json",
    ]
    assert (
        command("show", "--sbom", "spdx", inprocess_project.UNLOCKED, "--arch", "arm64").status == 0
    )


def test_target_without_a_lock_is_refused(command: Command):
    result = command("show", "--sbom", "cyclonedx", inprocess_project.UNLOCKED)
    assert (result.status, result.stdout) == (5, "")
    assert f"imgbuild lock {inprocess_project.UNLOCKED}" in result.stderr
