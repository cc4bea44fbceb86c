"""The arguments and mount points of the sandbox, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.container import sandbox
from imgbuild.container.sandbox import Bind
from imgbuild.errors import InputError, IntegrityError


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def points(root: Path, *binds: Bind) -> list[str]:
    return sandbox._arguments(sandbox.Root(path=root), binds, network=False, readonly=False)


def test_mount_points_are_created(root):
    found = points(root)
    names = ["", "/proc", "/dev", "/sys", "/tmp", "/etc/hosts"]
    assert found[:6] == [f"{root}{name}" for name in names]
    assert (root / "etc/hosts").is_file()
    assert all((root / name.lstrip("/")).is_dir() for name in names[:5])


def test_mount_points_are_inside_the_root(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "sys").symlink_to(outside)
    (root / "etc").symlink_to("../../outside")
    found = points(root, Bind(source=outside, target="/sys/in"))
    assert found[3] == f"{root}{outside}"
    assert found[5] == f"{root}/outside/hosts"
    assert found[-3:] == ["ro", str(outside), f"{root}{outside}/in"]
    assert list(outside.iterdir()) == []


def test_a_link_in_place_of_hosts_is_replaced(root, tmp_path):
    (root / "etc").mkdir()
    (root / "etc/hosts").symlink_to(tmp_path / "victim")
    points(root)
    assert not (root / "etc/hosts").is_symlink()
    assert not (tmp_path / "victim").exists()


def test_files_and_folders_are_bound_alike(root, tmp_path):
    (tmp_path / "file").write_text("x")
    found = points(
        root,
        Bind(source=tmp_path / "file", target="/a/b"),
        Bind(source=tmp_path, target="c", writable=True),
    )
    first = ["ro", str(tmp_path / "file"), f"{root}/a/b"]
    assert found[10:] == [*first, "rw", str(tmp_path), f"{root}/c"]
    assert (root / "a/b").is_file()
    assert (root / "c").is_dir()


def test_a_bind_of_a_missing_path_is_an_error(root, tmp_path):
    with pytest.raises(InputError, match="absent"):
        points(root, Bind(source=tmp_path / "absent", target="/x"))


def test_a_bind_outside_the_image_is_an_error(root, tmp_path):
    with pytest.raises(IntegrityError, match="leads out"):
        points(root, Bind(source=tmp_path, target="/../x"))


def test_a_missing_root_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot use"):
        points(tmp_path / "absent")


def test_no_command_is_an_error(root):
    with pytest.raises(InputError, match="no command"):
        sandbox.run(sandbox.Root(path=root), [])


def test_the_script_has_no_unreplaced_placeholder():
    assert "@" not in sandbox._script().replace('"$@"', "")
