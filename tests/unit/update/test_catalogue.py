"""Tests that all files of a new row are written, or none."""

from __future__ import annotations

import contextlib
import datetime
import shutil

import msgspec
import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.errors import InputError
from imgbuild.learn.loop import add_constraints
from imgbuild.matrix import constraints, tried_updates
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.project_paths import Project, find_project
from imgbuild.matrix.tried_updates import DerivedRow
from imgbuild.system.folder import OpenFolder
from imgbuild.update import catalogue, row_text
from imgbuild.update.trial import MatrixRow, TriedRow
from imgbuild.values import Arch
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, read_json

NAME = "cu124-vllm-trl0.18.3"
DAY = datetime.date(2026, 11, 28)
MADE = DerivedRow(of=TARGET, made=DAY, moved={"trl": "0.18.3"})


@pytest.fixture
def scratch(sample, tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    shutil.copyfile(sample.matrix, folder / "matrix.yaml")
    (folder / "images").mkdir()
    return Project(matrix=folder / "matrix.yaml")


@pytest.fixture
def tried(sample, scratch):
    """A renamed copy of the locked row, locked in the scratch folder."""
    matrix = load_matrix(sample.matrix)
    target = matrix.targets[TARGET]
    row = MatrixRow(
        name=NAME,
        target=row_text.renew_texts(target, TARGET, MatrixRow(name="", target=target), DAY),
    )
    lock, digests = inprocess_project.lock_target(
        scratch.root, row.add_to_matrix(matrix), NAME, sample.wheels, (Arch.X86_64,)
    )
    return TriedRow(row=row, lock=lock, digests=digests)


@pytest.fixture
def inputs(sample):
    return Inputs(load_matrix(sample.matrix), Context.open())


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file()}  # fmt: skip


def test_update_writes_row_lock_and_digests(imgbuild, sample, scratch, tried, inputs):
    before = snapshot(sample.folder)
    assert catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs) == ()
    after = snapshot(sample.folder)
    assert after.keys() - before.keys() >= {
        (sample.folder / "images" / NAME / file).relative_to(sample.folder)
        for file in ("lock.json", "digests.json", "requirements-x86_64.txt")
    }
    changed = {str(path) for path in before if after[path] != before[path]}
    assert changed <= {"matrix.yaml", "images/layers.json", "images/packages.json",
                       "docker-bake.json"}  # fmt: skip
    answer = imgbuild("lock", "--check", NAME, "--json")
    assert read_json(answer)[0]["digest"] == tried.digests.digest
    assert not list(sample.folder.glob("images/.*"))
    assert tried_updates.read_updates(sample.folder / "images").rows == {NAME: MADE}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_update_leaves_no_partial_row(
    sample, scratch, tried, inputs, monkeypatch, error
):
    project, write = find_project(sample.folder), OpenFolder.write
    matrix = sample.matrix.read_bytes()
    calls, last, whole = 0, 0, False

    def failing(self, name, data):
        nonlocal calls
        calls += 1
        if calls == last:
            raise error
        written = write(self, name, data)
        if calls == -last:
            raise error
        return written

    monkeypatch.setattr(OpenFolder, "write", failing)
    for last in [*range(1, 40), *range(-1, -40, -1)]:
        calls = 0
        with contextlib.suppress(error):
            catalogue.place_row(project, scratch, tried, MADE, inputs)
        whole = sample.matrix.read_bytes() != matrix
        folder = project.images / NAME
        assert folder.exists() == whole, last
        assert not list(project.images.glob(".*.new-*")), last
        if whole:
            assert {"lock.json", "digests.json"} <= {path.name for path in folder.iterdir()}
            load_matrix(sample.matrix)
            shutil.rmtree(folder)
            sample.matrix.write_bytes(matrix)
        if calls < abs(last):
            break
    assert whole  # the last run was not interrupted
    assert calls > 4


def test_folder_of_a_killed_update_is_replaced(sample, scratch, tried, inputs):
    left = sample.folder / "images" / NAME
    left.mkdir()
    (left / "lock.json").write_text("half")
    catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs)
    assert (left / "lock.json").read_bytes() == (scratch.images / NAME / "lock.json").read_bytes()


def test_update_folder_that_is_a_link_is_refused(sample, scratch, tried, inputs, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("here")
    matrix = sample.matrix.read_bytes()
    (sample.folder / "images" / NAME).symlink_to(outside)
    with pytest.raises(InputError, match=NAME):
        catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs)
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert sample.matrix.read_bytes() == matrix


@pytest.mark.parametrize("name", ["matrix.yaml", "images/updates.json"])
def test_update_output_that_is_a_link_is_refused(sample, tmp_path, name):
    outside = tmp_path / "outside"
    shutil.copyfile(sample.matrix, outside)
    place = sample.folder / name
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    with pytest.raises(InputError, match=name):
        catalogue.require_regular(Project(matrix=sample.matrix))


def test_row_added_by_another_process_is_not_replaced(sample, scratch, tried, inputs):
    catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs)
    before = snapshot(sample.folder)
    with pytest.raises(InputError, match=f"already has a row {NAME}"):
        catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs)
    assert snapshot(sample.folder) == before


def test_change_of_the_matrix_by_another_process_is_kept(sample, scratch, tried, inputs):
    sample.edit("an old image", "a very old image")
    catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs)
    matrix = load_matrix(sample.matrix)
    assert matrix.targets[TARGET].summary == "a very old image"
    assert matrix.targets[NAME] == tried.row.target


def test_constraints_violated_by_a_lock_are_returned_but_not_written(
    sample, scratch, tried, inputs
):
    fine = Constraint(package="trl", versions="==0.18.2", needs="torch<9")
    broken = msgspec.structs.replace(fine, needs="torch>=9")
    unrelated = msgspec.structs.replace(fine, package="elsewhere", needs="torch<8")
    add_constraints(scratch.images, [fine, broken, unrelated], inputs.store)
    left_out = catalogue.place_row(find_project(sample.folder), scratch, tried, MADE, inputs)
    assert left_out == (broken,)
    assert constraints.read_constraints(sample.folder / "images") == (fine,)
