"""The arguments and mount points of the sandbox, before anything is started."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from imgbuild.container import sandbox
from imgbuild.container.sandbox import Bind
from imgbuild.errors import InputError, IntegrityError


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def points(root: Path, *binds: Bind) -> dict[str, Any]:
    return sandbox._points(sandbox.Root(path=root), binds, network=False)


def test_mount_points_are_created(root):
    found = points(root)
    names = {"root": "", "proc": "/proc", "dev": "/dev", "sys": "/sys", "tmp": "/tmp"}
    assert {name: found[name] for name in names} == {
        name: f"{root}{path}" for name, path in names.items()
    }
    assert found["hosts"] == f"{root}/etc/hosts"
    assert (root / "etc/hosts").is_file()
    assert all((root / path.lstrip("/")).is_dir() for path in names.values())


def test_mount_points_are_inside_the_root(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "sys").symlink_to(outside)
    (root / "etc").symlink_to("../../outside")
    found = points(root, Bind(source=outside, target="/sys/in"))
    assert found["sys"] == f"{root}{outside}"
    assert found["hosts"] == f"{root}/outside/hosts"
    assert found["binds"] == [(False, str(outside), f"{root}{outside}/in")]
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
    assert found["binds"] == [
        (False, str(tmp_path / "file"), f"{root}/a/b"),
        (True, str(tmp_path), f"{root}/c"),
    ]
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


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "96211"),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(tmp_path, name, value, other):
    path = tmp_path / name.replace(".", "/")
    path.parent.mkdir()
    path.write_text(f"{value}\n")
    hint = sandbox._remedy(tmp_path)
    assert hint.startswith(f"{name} is {value}: ")
    assert hint.partition("sudo sysctl ")[2].partition("=")[0] == name
    path.write_text(f"{other}\n")
    assert sandbox._remedy(tmp_path) == sandbox.REMEDY


MODULES = ("enclosure", "enclosure_root", "kernel_calls", "control_groups")


@pytest.mark.parametrize("name", MODULES)
def test_the_started_process_imports_the_standard_library_alone(name):
    text = Path(sandbox.__file__).with_name(f"{name}.py").read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            for one in filter(None, names):
                own = one.rpartition("imgbuild.container.")[2] in MODULES
                assert own or one.partition(".")[0] in sys.stdlib_module_names, one
