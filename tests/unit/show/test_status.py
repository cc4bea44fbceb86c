"""Tests the states of targets, and the selection of targets by options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import NothingSelected
from imgbuild.lock import extension
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Matrix, PackageIndex, RequiredPackage
from imgbuild.matrix.project_paths import Project, find_project
from imgbuild.matrix.select import Selected
from imgbuild.plan import current, image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.show import status
from imgbuild.system.console import console
from imgbuild.values import Condition
from tests.support import extended, inprocess_project, samples, standalone_matrix
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, SampleProject

FAR = {"torch": "pytorch", "triton": "pytorch"}


def matrix(tmp_path: Path, **assigned: str) -> Matrix:
    """A matrix with one target, whose packages are from the given indexes."""
    indexes = {
        "pypi": PackageIndex(),
        "pytorch": PackageIndex(url="https://example.org/whl/{cuda_tag}", upload_times="none"),
        "wheels": PackageIndex(url=f"{tmp_path.as_uri()}/wheels/", upload_times="none", flat=True),
    }
    requirements = {"flash-attn": RequiredPackage(reason=samples.REASON)}
    sample_matrix = samples.matrix(indexes=assigned, requires=requirements)
    return msgspec.structs.replace(sample_matrix, indexes=indexes)


def test_default_index_is_not_a_requirement_of_the_target(tmp_path: Path) -> None:
    assert status.target_needs(matrix(tmp_path), "small") == ()
    assert status.target_needs(matrix(tmp_path, torch="pypi"), "small") == ()


def test_index_other_than_the_default_is_a_requirement_of_the_target(tmp_path: Path) -> None:
    assert status.target_needs(matrix(tmp_path, **FAR), "small") == (
        "the index pytorch for torch, triton",
    )


def test_server_of_a_standalone_python_is_a_requirement_of_the_target() -> None:
    needed = ("the archive of Python 3.12 on forge.example",)
    assert status.target_needs(standalone_matrix.matrix(), "small") == needed


def test_missing_wheel_is_listed_until_it_exists(tmp_path: Path) -> None:
    sample_matrix = matrix(tmp_path, **{"flash-attn": "wheels"})
    assert status.target_needs(sample_matrix, "small") == ("a wheel of flash-attn in wheels/",)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "other-1.0-py3-none-any.whl").touch()
    assert status.target_needs(sample_matrix, "small") == ("a wheel of flash-attn in wheels/",)
    (tmp_path / "wheels" / "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl").touch()
    assert status.target_needs(sample_matrix, "small") == ()


def test_target_with_unmet_requirement_is_skipped_unless_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = Project(matrix=tmp_path / "matrix.yaml")
    sample_matrix = matrix(tmp_path, **FAR)
    near = samples.matrix().targets["small"]
    sample_matrix = msgspec.structs.replace(
        sample_matrix, targets={**sample_matrix.targets, "near": near}
    )
    selected = [
        Selected(name=name, target=target, arches=target.arch)
        for name, target in sample_matrix.targets.items()
    ]
    reachable = status.reachable_targets(project, sample_matrix, selected, ["*"], console)
    assert [item.name for item in reachable] == ["near"]
    output = " ".join(capfd.readouterr().err.split())
    assert "skipping small, which needs the index pytorch for torch, triton" in output
    assert "to lock such a target anyway, select it by name: small" in output
    reachable = status.reachable_targets(project, sample_matrix, selected, ["small", "near"])
    assert [item.name for item in reachable] == ["small", "near"]


def test_selection_that_leaves_no_target_is_reported(tmp_path: Path) -> None:
    project = Project(matrix=tmp_path / "matrix.yaml")
    sample_matrix = matrix(tmp_path, **FAR)
    target = sample_matrix.targets["small"]
    selected = [Selected(name="small", target=target, arches=target.arch)]
    assert (
        status.reachable_targets(project, sample_matrix, selected, []) == selected
    )  # the only one
    two = {"small": target, "near": target}
    sample_matrix = msgspec.structs.replace(sample_matrix, targets=two)
    with pytest.raises(NothingSelected) as caught:
        status.reachable_targets(project, sample_matrix, selected, [])
    assert caught.value.hint == "to lock such a target anyway, select it by name: small"


def test_targets_of_a_project_have_states(sample: SampleProject, imgbuild: Command) -> None:
    # The target's torch comes from another index; it has a lock, so nothing is needed any more.
    lines = imgbuild("list", "--wide").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["target", TARGET, UNLOCKED]
    ends = [[cell.strip() for cell in line.split("  ") if cell][-2:] for line in lines]
    digest = sample.target_digests.digest.removeprefix("sha256:")[:12]
    assert ends == [
        ["state", "tested"],
        ["locked", f"{digest}: no test record for this digest"],
        ["not locked", "-"],
    ]
    sample.edit('value: "1", reason: the newer engine', 'value: "0", reason: the newer engine')
    (row,) = inprocess_project.read_json(imgbuild("list", "--state", "stale", "--json"))
    assert row["target"] == TARGET
    assert any("VLLM_USE_V1" in reason for reason in row["reasons"])


def test_all_option_selects_locked_targets_and_reports_other_targets(
    sample: SampleProject, imgbuild: Command
) -> None:
    sample.edit('torch: "2.11.0"}', 'torch: "2.11.0"}\n    indexes: {torch: torch}')
    done = imgbuild("lock", "--check", "--all")
    assert (done.status, done.stdout) == (0, f"{TARGET} {sample.target_digests.digest}\n")
    output = " ".join(done.stderr.split())
    assert f"skipping {UNLOCKED}, which needs the index torch for torch" in output
    assert imgbuild("lock", "--check", UNLOCKED).status == 5


def test_list_filters_without_a_result_are_reported(
    sample: SampleProject, imgbuild: Command
) -> None:
    assert imgbuild("list", "--cuda", "13", "--state", "locked").status == 3
    (row,) = inprocess_project.read_json(imgbuild("list", "--cuda", "12", "--json"))
    assert (row["target"], row["state"]) == (TARGET, Condition.LOCKED)


CHANGES: dict[str, Callable[[SampleProject], object]] = {
    "matrix.yaml": lambda sample: sample.edit('{value: "1", reason', '{value: "0", reason'),
    "lock.json": lambda sample: _replace(sample, "lock.json", '"25.0"', '"25.1"'),
    "digests.json": lambda sample: _replace(sample, "digests.json", '"size": ', '"size": 1'),
    "an unreadable lock": lambda sample: _file(sample, "lock.json").write_bytes(b"\xff"),
    "requirements": lambda sample: _replace(sample, "requirements-x86_64.txt", "25.0", "25.1"),
    "no requirements": lambda sample: _file(sample, "requirements-x86_64.txt").unlink(),
    "constraints.yaml": lambda sample: _constraint(sample, "vllm>=0.9"),
    "no digests": lambda sample: _file(sample, "digests.json").unlink(),
    "no lock": lambda sample: _file(sample, "lock.json").unlink(),
}  # fmt: skip


def _file(sample: SampleProject, name: str) -> Path:
    return sample.folder / "images" / TARGET / name


def _replace(sample: SampleProject, name: str, old: str, new: str) -> None:
    text = _file(sample, name).read_text()
    assert old in text
    _file(sample, name).write_text(text.replace(old, new, 1))


def _constraint(sample: SampleProject, needs: str) -> None:
    entry = Constraint(package="trl", versions="==0.18.2", needs=needs)
    constraints.constraints_path(sample.folder / "images").write_bytes(
        constraints.encode_constraints([entry])
    )


def _states(sample: SampleProject) -> dict[str, status.TargetState]:
    project = find_project(sample.folder)
    names = (TARGET, UNLOCKED)
    return status.target_states(project, load_matrix(project.matrix), names, Store.open())


@pytest.mark.parametrize("change", CHANGES)
def test_stored_target_state_is_not_used_after_a_change(sample: SampleProject, change: str) -> None:
    first = _states(sample)
    assert first[TARGET].condition is Condition.LOCKED
    assert _states(sample) == first
    CHANGES[change](sample)
    project = find_project(sample.folder)
    matrix = load_matrix(project.matrix)
    expected = {name: status.target_state(project, matrix, name) for name in (TARGET, UNLOCKED)}
    assert expected[TARGET].condition is not Condition.LOCKED
    assert _states(sample) == _states(sample) == expected


def test_satisfied_constraints_leave_a_target_locked(sample: SampleProject) -> None:
    _constraint(sample, "vllm>=0.8")
    assert _states(sample)[TARGET].condition is Condition.LOCKED
    _constraint(sample, "vllm>=0.9")
    assert _states(sample)[TARGET].condition is Condition.STALE


def test_stored_target_state_is_used_instead_of_the_lock(
    sample: SampleProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _states(sample)
    monkeypatch.delattr(current, "read_current")
    assert _states(sample) == first
    _replace(sample, "lock.json", "25.0", "25.1")
    with pytest.raises(AttributeError):
        _states(sample)


def test_invalid_stored_state_is_ignored(sample: SampleProject) -> None:
    first = _states(sample)
    for data in (b"", b"\xff", b"[1]", b'{"cu124-vllm": "no hash"}'):
        Store.open().put_fact(status.FACT, str(sample.matrix.resolve()), data)
        assert _states(sample) == first


def test_targets_are_listed_if_the_cache_is_not_writable(
    sample: SampleProject, imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cache = imgbuild("list", "--json")
    (sample.folder / "file").touch()
    monkeypatch.setenv("IMGBUILD_CACHE", str(sample.folder / "file"))
    without = imgbuild("list", "--json")
    assert (without.status, without.stdout) == (0, with_cache.stdout)
    assert without.stderr == with_cache.stderr
    assert "states of targets could not be stored" in imgbuild("list", "--wide", "-v").stderr


def test_list_without_states_does_not_compute_target_states(
    sample: SampleProject, imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "locked" in imgbuild("list", "--wide").stdout
    assert TARGET in imgbuild("list", "--state", "locked").stdout
    monkeypatch.delattr(status, "target_states")
    assert TARGET in imgbuild("list").stdout
    assert TARGET in imgbuild("list", "--with", "trl").stdout


def test_changed_added_file_is_detected_with_cached_state(tmp_path: Path) -> None:
    path = extended.create_repository(tmp_path)
    matrix, project = extended.read_extended(path), Project(matrix=path)
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    records = extended.invented_records(create_plan(lock, arch) for arch in lock.arch)
    current.write_locked(project, lock, image_digests.compute_digests(lock, records))

    def _condition() -> Condition:
        return status.target_states(project, matrix, [extended.OWN_TARGET], Store.open())[
            extended.OWN_TARGET
        ].condition

    assert _condition() is Condition.LOCKED
    (tmp_path / "train.sh").write_bytes(b"other")
    assert _condition() is Condition.STALE
    (tmp_path / "train.sh").write_bytes(extended.SCRIPT)
    assert _condition() is Condition.LOCKED
