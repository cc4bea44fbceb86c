"""Tests that links, pipes and devices in a checkout cause no change outside of the project.

They replace a folder or file that a verb writes, at every depth of its path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import InputError, IntegrityError
from imgbuild.learn.loop import add_constraints
from imgbuild.lock import published
from imgbuild.matrix import load as matrices
from imgbuild.matrix import project_paths
from imgbuild.matrix.project_paths import Project
from imgbuild.oci import layout
from imgbuild.plan import current
from imgbuild.render import committed, contexts, write
from imgbuild.render.dockerfile import create_dockerfile
from imgbuild.smoke import records
from imgbuild.values import Arch
from tests.support import render_sample
from tests.support.inprocess_project import TARGET, Command, SampleProject
from tests.support.links import OBSTACLES, folder_state, outside_folder

BUILD = ("build", "--offline", "--jobs", "1", TARGET)


def linked(path: Path, target: Path) -> None:
    """Create a link to `target` at `path`, after moving an existing file away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(path.with_name("moved"))
    path.symlink_to(target)


@pytest.mark.parametrize(
    "name",
    ["build", f"build/{TARGET}", *(f"build/{TARGET}/{part}" for part in ("blobs", "blobs/sha256"))],
)
@pytest.mark.parametrize("built", [False, True])
def test_build_does_not_follow_a_link_to_a_folder(
    imgbuild: Command, sample: SampleProject, tmp_path: Path, name: str, built: bool
) -> None:
    elsewhere = outside_folder(tmp_path)
    (elsewhere / ("0" * 64)).write_bytes(b"mine")  # named as a blob
    if built:
        assert imgbuild(*BUILD).status == 0
    linked(sample.folder / name, elsewhere)
    if "blobs" in name and not built:
        (sample.folder / "build" / TARGET / layout.MARKER).write_bytes(layout.MARKER_TEXT)
    before = folder_state(elsewhere)
    done = imgbuild(*BUILD, status=2)
    assert f"{name}: it is a symbolic link" in done.stderr
    assert "remove the link" in done.stderr
    assert folder_state(elsewhere) == before


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["index.json", "oci-layout", "layer", "config"])
def test_a_build_replaces_only_files(
    imgbuild: Command, sample: SampleProject, tmp_path: Path, name: str, kind: str
) -> None:
    assert imgbuild(*BUILD).status == 0
    place, elsewhere = sample.folder / "build" / TARGET, outside_folder(tmp_path)
    manifest = sample.target_digests.arch[Arch.X86_64]
    blobs = {"layer": manifest.layers[-1].digest, "config": manifest.manifest}
    path = place / name
    if name in blobs:
        path = place / "blobs/sha256" / str(blobs[name]).removeprefix("sha256:")
    path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere / "c.json")
    else:
        OBSTACLES[kind](path)
    before = folder_state(elsewhere)
    done = imgbuild(*BUILD)
    assert done.status in (2, 9), done.stderr
    assert str(path.relative_to(sample.folder)) in done.stderr
    assert folder_state(elsewhere) == before


def test_path_given_by_the_user_can_contain_links(
    imgbuild: Command, sample: SampleProject, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (sample.folder / "big").symlink_to(tmp_path / "disk")
    assert imgbuild(*BUILD, "--output", "big").status == 0
    assert (tmp_path / "disk/index.json").is_file()
    (tmp_path / "here").symlink_to(sample.folder)
    assert imgbuild(*BUILD, "--matrix", str(tmp_path / "here/matrix.yaml")).status == 0


@pytest.mark.parametrize("verb", ["push", "run"])
def test_built_image_is_not_read_through_a_link(
    imgbuild: Command, sample: SampleProject, tmp_path: Path, verb: str
) -> None:
    linked(sample.folder / "build", outside_folder(tmp_path))
    words = {"push": (TARGET, "127.0.0.1:1/x"), "run": (TARGET, "--", "true")}[verb]
    done = imgbuild(verb, "--offline" if verb == "run" else "--yes", *words)
    assert done.status != 0
    assert folder_state(tmp_path / "outside") == {"c.json": b"mine", "deep/notes": b"mine"}


def test_build_keeps_other_files_in_a_layout(imgbuild: Command, sample: SampleProject) -> None:
    assert imgbuild(*BUILD).status == 0
    blobs = sample.folder / "build" / TARGET / "blobs/sha256"
    (blobs / "notes.txt").write_text("mine")
    (blobs / ("0" * 64)).write_text("an old blob")
    next(path for path in blobs.iterdir() if len(path.name) == 64 and path.name > "0" * 64).unlink()
    assert imgbuild(*BUILD).status == 0
    assert (blobs / "notes.txt").read_text() == "mine"
    assert not (blobs / ("0" * 64)).exists()


# -- what is committed


LOCK = render_sample.lock()


def _rendered(project: Project) -> None:
    committed.write_rendered(
        project, LOCK.target, {"Dockerfile": b"new", "files/etc/passwd": b"new"}
    )


def _locked(project: Project) -> None:
    current.write_locked(project, LOCK, render_sample.invented_digests(LOCK))


def _recorded(project: Project) -> None:
    records.add_runs(project.images, LOCK.target, (), {}, Store.open())


def _learned(project: Project) -> None:
    add_constraints(project.images, (), Store.open())


WRITERS: dict[str, tuple[Callable[[Project], None], str]] = {
    "Dockerfile": (_rendered, f"images/{LOCK.target}/Dockerfile"),
    "files": (_rendered, f"images/{LOCK.target}/files/etc/passwd"),
    "lock": (_locked, f"images/{LOCK.target}/lock.json"),
    "digests": (_locked, f"images/{LOCK.target}/digests.json"),
    "requirements": (_locked, f"images/{LOCK.target}/requirements-x86_64.txt"),
    "records": (_recorded, f"images/{LOCK.target}/smoke.json"),
    "constraints": (_learned, "images/constraints.yaml"),
}
DEPTHS = [
    (what, depth) for what, (_, path) in WRITERS.items() for depth in range(path.count("/") + 1)
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project, its cache, and the folders of all outputs."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    for _, path in WRITERS.values():
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
    return Project(matrix=tmp_path / "project/matrix.yaml")


@pytest.mark.parametrize(("what", "depth"), DEPTHS)
def test_committed_files_are_not_written_through_links(project, tmp_path, what, depth):
    writer, path = WRITERS[what]
    parts, elsewhere = path.split("/"), outside_folder(tmp_path)
    deep = elsewhere.joinpath(*parts[depth + 1 :])
    deep.parent.mkdir(parents=True, exist_ok=True)
    deep.with_name("notes").write_bytes(b"mine")
    target = elsewhere if depth + 1 < len(parts) else elsewhere / "c.json"
    linked(project.root.joinpath(*parts[: depth + 1]), target)
    before = folder_state(elsewhere)
    with pytest.raises(InputError, match=r"symbolic link|not a regular|has 1 problem|valid"):
        writer(project)
    assert folder_state(elsewhere) == before


@pytest.mark.parametrize("kind", OBSTACLES)
@pytest.mark.parametrize("what", ["Dockerfile", "files", "lock", "digests", "requirements"])
def test_committed_files_replace_only_files(project, what, kind):
    writer, path = WRITERS[what]
    OBSTACLES[kind](project.root / path)
    with pytest.raises(InputError, match=f"it is a {kind}"):
        writer(project)
    assert not (project.root / path).is_file()


@pytest.mark.parametrize("name", ["files", "files-amd64", "files-arm64"])
def test_rendering_removes_nothing_through_a_link(project, tmp_path, name):
    elsewhere = outside_folder(tmp_path)
    before = folder_state(elsewhere)
    linked(project.images / LOCK.target / name, elsewhere)
    dockerfile = project.images / LOCK.target / "Dockerfile"
    dockerfile.write_text(f"RUN install /run/context/{name}/c.json /c.json\n")
    with pytest.raises(InputError, match="symbolic link"):
        committed.write_rendered(project, LOCK.target, {})
    assert folder_state(elsewhere) == before


def test_rendering_does_not_change_other_folders(project, tmp_path):
    linked(project.images / LOCK.target / "files-x86", outside_folder(tmp_path))
    committed.write_rendered(project, LOCK.target, {"Dockerfile": b"new"})
    assert folder_state(tmp_path / "outside") == {"c.json": b"mine", "deep/notes": b"mine"}


def test_rendering_removes_only_rendered_files(project):
    """Only files copied by the current Dockerfile are removed; the check reports others."""
    matrix = render_sample.matrix()
    document = create_dockerfile(LOCK, render_sample.invented_digests(LOCK), matrix)
    expected = committed.rendered_files(project, matrix, LOCK, document)
    committed.write_rendered(project, LOCK.target, expected)
    folder = project.images / LOCK.target
    (folder / "files/notes.txt").write_text("mine")
    assert len(expected) > 3
    assert committed.stale_files(project, LOCK.target, expected) == [
        f"{folder / 'files/notes.txt'} is not used by the Dockerfile, so it can be removed"
    ]
    assert committed.write_rendered(project, LOCK.target, {})
    left = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert left == ["files/notes.txt"]


def test_lock_or_target_link_outside_project_is_an_error(project):
    for name in ("../../outside", "/etc"):
        with pytest.raises(InputError, match="is not a path inside this folder"):
            committed.write_rendered(project, name, {"Dockerfile": b"new"})
        with pytest.raises(InputError, match="is not a path inside this folder"):
            committed.write_rendered(project, LOCK.target, {f"files/{name}": b"new"})


@pytest.mark.parametrize("part", ["build", "build/wheels", f"build/wheels/{LOCK.target}"])
def test_wheel_folders_are_not_reached_through_links(project, tmp_path, part):
    linked(project.root / part, outside_folder(tmp_path))
    with pytest.raises(InputError, match="symbolic link"):
        contexts.wheels_folder(project, LOCK.target)


@pytest.mark.parametrize("name", ["requirements-x86_64.txt", "../../docker-bake.json"])
def test_pipe_in_place_of_a_checked_file_does_not_block(project, name):
    writer, _ = WRITERS["lock"]
    writer(project)
    path = project.images / LOCK.target / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    matrix = render_sample.matrix()
    check: dict[str, Callable[[], object]] = {
        "requirements-x86_64.txt": lambda: current.read_current(project, matrix, LOCK.target),
        "../../docker-bake.json": lambda: write.check_committed(project, matrix, [LOCK]),
    }
    with pytest.raises(Exception, match="does not match the lock"):
        check[name]()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "words", "error"), [
    ("ci.yaml", ("ci", "script", "--all", "--no-push"), "ci.yaml is not a regular file"),
    ("images/templates/slurm/single.j2", ("slurm", TARGET, "--", "true"), "single.j2: it is "),
    (f"images/{TARGET}/lock.json", ("digest", TARGET), "lock.json is not a regular file"),
    ("named", ("diff", TARGET, "named"), "named has no lock.json"),
    ("named", ("diff", TARGET, TARGET, "--files", "--accept", "named"), "named is not a regular "),
    ("named", ("smoke", "layout", "--lock", "named"), "named is not a regular file"),
    ("named", ("run", TARGET, "--env-file", "named", "--", "true"), "named is not a regular file"),
    ("named", ("audit", "-r", "named"), "named is not a regular file"),
    ("named", ("cves", TARGET, "--report", "named"), "named is not a regular file"),
    ("named", ("smoke", "--import", "named"), "named has no test results"),
    ("named", ("ci", "report", "--jobs-file", "named"), "named is not a regular file"),
])  # fmt: skip
@pytest.mark.parametrize("device", [False, True], ids=["pipe", "device"])
def test_pipe_or_device_in_place_of_an_input_is_refused(
    imgbuild: Command,
    sample: SampleProject,
    name: str,
    words: tuple[str, ...],
    error: str,
    device: bool,
) -> None:
    path = sample.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if device:
        path.symlink_to(os.devnull)
    else:
        os.mkfifo(path)
    done = imgbuild(*words)
    assert done.status not in (0, 1)
    assert error in done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "read", [matrices.load_matrix, published.load_matrix, published.published_sources]
)
def test_pipe_in_place_of_a_matrix_is_refused(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "matrix.yaml")
    with pytest.raises(IntegrityError, match=r"matrix\.yaml is not a regular file"):
        read(tmp_path / "matrix.yaml")


def test_project_behind_a_link_is_used(project, tmp_path):
    (project.root / "matrix.yaml").write_text("")
    (tmp_path / "link").symlink_to(project.root)
    _rendered(project_paths.find_project(tmp_path / "link"))
    assert (project.images / LOCK.target / "Dockerfile").read_bytes() == b"new"
