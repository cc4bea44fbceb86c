"""Tests moving the rows of a project to another published target, and all conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.errors import InputError, NothingSelected
from imgbuild.lock import published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import PublishedTarget
from imgbuild.resolve import first_matrix, init
from imgbuild.resolve.first_matrix import WantedExtension
from imgbuild.update import project_move
from imgbuild.update.project_move import ProjectMove
from imgbuild.values import Arch
from tests.support import extended, folder_index, samples
from tests.support.local_index import LocalIndex

MATRIX = """\
# The images of our team.
version: 1
published:
  small:   # what we start from
    # copied by hand
    lock: published/small
    from: ../project
    image: registry.example.org/team/images
targets:
  trainer:
    extends: small  # keeps its versions
    summary: trains
    requirements: [requirements.txt]
    as_of: 2025-07-01
    indexes: {}
  other:
    like: small
    summary: another
    cuda: "12.8"
indexes:
  pypi: {url: 'INDEX', upload_times: none}
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A project with two rows that extend `small`, and its index."""
    index = LocalIndex()
    index.wheel("gadget", "1.0", ["numpy<2.3"])
    index.wheel("pinned", "1.0", ["numpy==2.2.6"])
    index.wheel("fine", "1.0", ["numpy>=2"])
    url = folder_index.write_index(index, tmp_path / "index")
    matrix = extended.create_repository(tmp_path / "ours", MATRIX.replace("INDEX", url))
    (matrix.parent / "requirements.txt").write_text("numpy\n")
    return matrix.parent


def renamed(name: str, numpy: str, as_of: str = "2026-01-01", cuda: str = "12.8") -> Lock:
    """A published lock `name` with another version of numpy."""
    lock = samples.lock(samples.wheel("numpy", numpy, 5000))
    settings = msgspec.structs.replace(
        lock.settings,
        labels={
            **lock.settings.labels,
            "org.opencontainers.image.title": name,
            "dev.imgbuild.target": name,
            "dev.imgbuild.as-of": as_of,
            "dev.imgbuild.cuda": cuda,
        },
    )
    return msgspec.structs.replace(lock, target=name, as_of=as_of, cuda=cuda, settings=settings)


def target(folder: Path, lock: Lock) -> PublishedTarget:
    """A published target on disk."""
    extended.publish_target(folder, lock)
    return published.read_published_target(folder, lock.target)


def move(
    folder: Path, rows: Sequence[str], numpy: str = "2.4.0", name: str = "large"
) -> ProjectMove:
    """The move of `rows` to a target with another numpy."""
    new = target(folder / "staged" / name, renamed(name, numpy))
    old = published.read_published_target(folder / "published/small", "small")
    lock = "published/small" if name == "small" else f"published/{name}"
    return ProjectMove(rows=tuple(rows), old=old, new=new, origin="catalogue", lock=lock)


def moved(folder: Path, planned: ProjectMove) -> str:
    """The text of the matrix after a move."""
    path = folder / "matrix.yaml"
    data = path.read_bytes()
    value = published.decode_extensions(path, data)
    return project_move.new_matrix(path, data, value, planned).decode()


def test_project_update_changes_all_rows_and_keeps_comments(folder: Path) -> None:
    text = moved(folder, move(folder, ("trainer", "other")))
    expected = MATRIX
    for before, after in (
        ("small:   #", "large:   #"),
        ("published/small", "published/large"),
        ("from: ../project", "from: catalogue"),
        ("extends: small", "extends: large"),
        ("like: small", "like: large"),
    ):
        assert expected.count(before) == 1
        expected = expected.replace(before, after)
    # The day and the CUDA release are those of the new target or earlier.
    expected = expected.replace("    as_of: 2025-07-01\n", "").replace('    cuda: "12.8"\n', "")
    index = (folder / "matrix.yaml").read_text().split("pypi: ")[1]
    assert text == expected.split("pypi: ")[0] + "pypi: " + index


def test_a_target_used_by_other_rows_is_kept(folder: Path) -> None:
    text = moved(folder, move(folder, ("trainer",)))
    value = published.decode_extensions(folder / "matrix.yaml", text.encode())
    assert set(value.published) == {"small", "large"}
    assert value.published["large"].lock == "published/large"
    assert value.published["small"].image == "registry.example.org/team/images"
    assert (value.targets["trainer"].extends, value.targets["other"].like) == ("large", "small")
    assert value.targets["other"].cuda == "12.8"


@pytest.mark.parametrize(
    ("image", "name", "keeps"),
    [
        ("registry.example.org/team/images", "large", True),
        ("registry.example.org/team/small", "large", False),
        ("registry.example.org/team/images:2025", "large", False),
        ("registry.example.org:5000/team/small", "small", True),
        (f"registry.example.org/team/images@sha256:{'0' * 64}", "small", False),
        ("oci:build/small", "small", False),
    ],
)
def test_image_location_is_kept_if_it_has_the_new_layers(
    folder: Path, image: str, name: str, *, keeps: bool
) -> None:
    assert project_move.keeps_image(image, move(folder, ("trainer",), name=name)) is keeps


def test_comments_written_by_init_name_the_new_target(folder: Path, tmp_path: Path) -> None:
    old = published.read_published_target(folder / "published/small", "small")
    row = WantedExtension(name="trainer", requirements=("requirements.txt",))
    text = first_matrix.matrix_text(row, old, "published/small", init.CATALOGUE_PLACE, "")
    assert f"as_of: {old.lock.as_of}" in text
    (folder / "matrix.yaml").write_text(text)
    after = moved(folder, move(folder, ("trainer",)))
    assert "small" not in after
    assert "# as_of: 2026-01-01" in after
    assert "registry.example.org/imgbuild/large" in after
    del tmp_path


def conflicts(folder: Path, planned: ProjectMove, row: str = "trainer") -> list[str]:
    """The conflicts with a move of one row."""
    path = folder / "matrix.yaml"
    value = published.decode_extensions(path, path.read_bytes())
    matrix = published.load_matrix(path)
    context = Context.open(root=folder / "cache")
    return project_move.move_conflicts(row, value.targets[row], planned, folder, matrix, context)


def test_project_update_lists_every_conflict_with_its_location(folder: Path) -> None:
    planned = move(folder, ("trainer",))
    assert conflicts(folder, planned) == []
    text = "fine\ngadget\npinned==1.0\nnosuch>=2\n"
    (folder / "requirements.txt").write_text(f"{text}numpy<2.4; python_version > '3'\n")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\nrequires-python = "<3.11"\n'
    )
    matrix = folder / "matrix.yaml"
    text = matrix.read_text().replace("[requirements.txt]", "[requirements.txt, pyproject.toml]")
    matrix.write_text(
        text.replace(
            "  other:", '    requires: {numpy: {spec: "<2.3", reason: "we need it"}}\n  other:'
        )
    )
    assert conflicts(folder, planned) == [
        "pyproject.toml:4: requires Python <3.11, but large has 3.11",
        "requirements.txt:5: requires numpy<2.4, but large has 2.4.0",
        "matrix.yaml: requires numpy<2.3, but large has 2.4.0",
        "requirements.txt:4: nosuch>=2: the index has no such package",
        "requirements.txt:2: gadget 1.0 requires numpy<2.3, but large has 2.4.0",
        "requirements.txt:3: pinned 1.0 requires numpy==2.2.6, but large has 2.4.0",
    ]


def test_row_with_like_is_resolved_again(folder: Path) -> None:
    planned = move(folder, ("other",))
    matrix = folder / "matrix.yaml"
    text = matrix.read_text().replace(
        "    summary: another", "    summary: another\n    requirements: [requirements.txt]"
    )
    matrix.write_text(text)
    (folder / "requirements.txt").write_text("numpy==2.2.6\ngadget\nnosuch\n")
    assert sorted(conflicts(folder, planned, "other")) == [
        "requirements.txt:1: numpy==2.2.6: the index has no such package",
        "requirements.txt:3: nosuch: the index has no such package",
    ]


def test_architecture_missing_in_the_new_target_is_a_conflict(folder: Path) -> None:
    planned = move(folder, ("trainer",))
    matrix = folder / "matrix.yaml"
    row = published.decode_extensions(matrix, matrix.read_bytes()).targets["trainer"]
    row = msgspec.structs.replace(row, arch=(Arch.ARM64,))
    context = Context.open(root=folder / "cache")
    reasons = project_move.move_conflicts(
        "trainer", row, planned, folder, published.load_matrix(matrix), context
    )
    assert reasons == ["matrix.yaml: trainer is for arm64, but large does not support arm64"]


def test_project_update_selects_all_rows_or_only_named_rows(folder: Path) -> None:
    path = folder / "matrix.yaml"
    value = published.decode_extensions(path, path.read_bytes())
    assert project_move.rows_to_move(value, ()) == ("trainer", "other")
    assert project_move.rows_to_move(value, ("other",)) == ("other",)
    with pytest.raises(NothingSelected, match="no target nosuch in the project"):
        project_move.rows_to_move(value, ("nosuch",))
    apart = msgspec.structs.replace(value.targets["other"], like="third")
    value = msgspec.structs.replace(value, targets={**value.targets, "other": apart})
    with pytest.raises(InputError, match="use different targets: small, third"):
        project_move.rows_to_move(value, ())
