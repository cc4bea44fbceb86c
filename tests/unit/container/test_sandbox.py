"""Tests that the arguments of the sandbox are checked before it starts."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from imgbuild.container import sandbox
from imgbuild.container.sandbox import BindMount
from imgbuild.errors import InputError
from tests.support.rows import each_row


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def test_bind_mount_of_a_missing_path_is_an_error(root, tmp_path):
    with pytest.raises(InputError, match=r"cannot mount .*absent"):
        sandbox.run_in_sandbox(
            sandbox.SandboxRoot(path=root),
            ["true"],
            binds=[BindMount(source=tmp_path / "absent", target="/x")],
        )


def test_missing_sandbox_root_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"cannot use .*absent"):
        sandbox.run_in_sandbox(sandbox.SandboxRoot(path=tmp_path / "absent"), ["true"])


def test_missing_command_is_an_error(root):
    with pytest.raises(InputError, match="command is empty"):
        sandbox.run_in_sandbox(sandbox.SandboxRoot(path=root), [])


@pytest.mark.parametrize(
    ("name", "forbidding", "allowing"),
    [
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "10000"),
    ],
)
def test_error_names_the_kernel_setting_that_forbids_namespaces(
    tmp_path, name, forbidding, allowing
):
    path = tmp_path / name.replace(".", "/")
    path.parent.mkdir()
    path.write_text(f"{forbidding}\n")
    hint = sandbox._remedy(tmp_path)
    assert f"disables user namespaces ({name} is {forbidding}); " in hint
    assert f"sudo sysctl {name}={allowing}`, or run as root" in hint
    path.write_text(f"{allowing}\n")
    assert sandbox._remedy(tmp_path) == sandbox.REMEDY


MODULES = ("enclosure", "enclosure_root", "kernel_calls", "control_groups")


@each_row("name", MODULES)
def test_sandbox_process_imports_only_the_standard_library(name):
    text = Path(sandbox.__file__).with_name(f"{name}.py").read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            for module in filter(None, names):
                is_local = module.rpartition("imgbuild.container.")[2] in MODULES
                assert is_local or module.partition(".")[0] in sys.stdlib_module_names, module
