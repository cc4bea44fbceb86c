"""Tests how variables whose value is a path are mounted in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.container import arguments, path_variables
from imgbuild.container.engine import EngineKind
from imgbuild.container.path_variables import PathVariables, passed_paths, unmounted_paths
from imgbuild.container.request import ContainerRequest, Mount
from tests.support.rows import each_row

MOUNTED = [
    (row, name)
    for row in path_variables.path_variable_table()
    if row.use == "mounted"
    for name in row.names
]
LEFT_OUT = [
    (row, name)
    for row in path_variables.path_variable_table()
    if row.use == "not passed"
    for name in row.names
]
NAMES = [name for _, name in (*MOUNTED, *LEFT_OUT)]


def place(folder: Path, row: PathVariables) -> tuple[Path, Path]:
    """A value for a variable of `row`, with the required mount."""
    value = folder / "value"
    if row.holds == "folder":
        value.mkdir()
    elif row.holds == "file":
        value.touch()
    return value, folder if row.holds == "new file" else value


def test_each_path_variable_is_in_one_row_of_the_variables_table() -> None:
    assert len(NAMES) == len(set(NAMES)) > 60


@each_row(("row", "name"), MOUNTED, ids=[name for _, name in MOUNTED])
def test_path_in_a_variable_is_mounted_at_the_same_path(
    row: PathVariables, name: str, tmp_path: Path
) -> None:
    value, mounted = place(tmp_path, row)
    variables = passed_paths({name: str(value)})
    assert variables.env == {name: str(value)}
    writable = row.holds != "file"
    assert variables.mounts == (Mount(source=mounted, target=str(mounted), writable=writable),)
    assert variables.messages == ()
    assert unmounted_paths({name: str(value)}, [str(mounted)]) == []


@each_row("name", [name for _, name in MOUNTED])
def test_each_engine_passes_mount_and_variable_of_a_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_variables, "_path_exists", lambda _: True)
    variables = passed_paths({name: "/x/value"})
    (mount,) = variables.mounts
    bind = f"{mount.source}:{mount.target}{'' if mount.writable else ':ro'}"
    request = ContainerRequest(mounts=variables.mounts, env=variables.env)
    kinds: tuple[EngineKind, ...] = ("docker", "podman")
    for kind in kinds:
        words = arguments.engine_command(kind, request, "x", "image").command
        assert {f"--volume={bind}", f"--env={name}=/x/value"} <= {*words}
    invocation = arguments.apptainer_command(request, "apptainer", Path("x.sif"))
    assert f"--bind={bind}" in invocation.command
    assert invocation.env == {f"APPTAINERENV_{name}": "/x/value"}


@each_row(("row", "name"), LEFT_OUT, ids=[name for _, name in LEFT_OUT])
def test_omitted_path_variable_is_reported_with_a_remedy(
    row: PathVariables, name: str, tmp_path: Path
) -> None:
    variables = passed_paths({name: str(tmp_path)})
    assert (variables.env, variables.mounts) == ({}, ())
    (message,) = variables.messages
    assert message.startswith(f"{name}={tmp_path} is not passed: {row.reason}; ")
    assert message.endswith(f" -v {tmp_path}:{tmp_path} -e {name}={tmp_path}")


def test_omitted_path_variables_of_one_row_share_a_message(tmp_path: Path) -> None:
    variables = passed_paths(
        {"TRITON_CACHE_DIR": "/a", "VLLM_CACHE_ROOT": "/b", "TMPDIR": "/c", "HF_X": "/d"}
    )
    assert [message.partition(" not")[0] for message in variables.messages] == [
        "TRITON_CACHE_DIR=/a, VLLM_CACHE_ROOT=/b are",
        "TMPDIR=/c is",
    ]


def test_missing_path_in_a_variable_is_reported_and_not_passed(tmp_path: Path) -> None:
    folder, file = tmp_path / "hub", tmp_path / "ca.pem"
    variables = passed_paths({"HF_HUB_CACHE": str(folder), "SSL_CERT_FILE": str(file)})
    assert (variables.env, variables.mounts) == ({}, ())
    assert [message.partition(" is not passed: ")[2] for message in variables.messages] == [
        f"{folder} does not exist; mkdir -p {folder}",
        f"{file} does not exist; correct or unset SSL_CERT_FILE",
    ]
    assert not folder.exists()


@each_row("path", ["/", "/opt", "/usr", "/tmp", "/var", "/mine"])
def test_mount_that_hides_a_folder_of_the_image_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_variables, "_path_exists", lambda _: True)
    folders = path_variables.image_folders(["X=/mine/cache", "PATH=/opt/venv/bin:/bin", "N=1"])
    variables = passed_paths({"WANDB_DIR": path}, folders=folders)
    assert (variables.env, variables.mounts) == ({}, ())
    (message,) = variables.messages
    assert "of the image; to pass it, add -v " in message
    assert message.endswith(f" -v {path}:/mnt/wandb_dir -e WANDB_DIR=/mnt/wandb_dir")


def test_path_in_another_mount_is_not_mounted_again(tmp_path: Path) -> None:
    (tmp_path / "a/hub").mkdir(parents=True)
    env = {"HF_HUB_CACHE": str(tmp_path / "a/hub")}
    same = Mount(source=tmp_path, target=str(tmp_path))
    assert passed_paths(env, mounts=[same]) == path_variables.PassedPaths(
        env=env, mounts=(), messages=()
    )
    instead = Mount(source=Path("/b"), target=env["HF_HUB_CACHE"])
    assert passed_paths(env, mounts=[instead]).env == env
    other = Mount(source=Path("/b"), target=str(tmp_path / "a"))
    (message,) = passed_paths(env, mounts=[other]).messages
    mount = f"-v {tmp_path}/a/hub:/mnt/hf_hub"
    assert f"/b is mounted at {tmp_path}/a; to pass it, add {mount}" in message
    below = Mount(source=Path("/b"), target=f"{tmp_path}/a/hub/x")
    assert passed_paths(env, mounts=[below]).mounts == ()


def test_path_below_another_path_is_not_mounted_twice(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    variables = passed_paths(
        {"HF_HUB_CACHE": str(tmp_path), "HF_DATASETS_CACHE": f"{tmp_path}/data"}
    )
    assert [mount.target for mount in variables.mounts] == [str(tmp_path)]
    assert variables.env["HF_DATASETS_CACHE"] == f"{tmp_path}/data"


def test_relative_paths_in_variables_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("home/hub", "runs"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    variables = passed_paths(
        {"HF_HUB_CACHE": "~/hub", "WANDB_DIR": "runs/../runs/", "HF_XET_CACHE": ""}
    )
    assert variables.env == {
        "HF_HUB_CACHE": f"{tmp_path}/home/hub",
        "WANDB_DIR": f"{tmp_path}/runs",
    }
    assert [str(mount.source) for mount in variables.mounts] == list(variables.env.values())


@each_row(
    ("value", "folder"),
    [
        ("file:///x/runs", "/x/runs"), ("file:/x/runs", "/x/runs"), ("/x/runs", "/x/runs"),
        ("sqlite:////x/runs/db", "/x/runs"), ("https://user:secret@host/x", None),
        ("sqlite:///db", None), ("file:./runs", None), ("databricks://x", None),
    ],
)  # fmt: skip
def test_file_urls_are_mounted_and_other_urls_pass_unchanged(
    value: str, folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_variables, "_path_exists", lambda _: True)
    variables = passed_paths({"MLFLOW_TRACKING_URI": value})
    assert [mount.target for mount in variables.mounts] == [folder or "none"] * bool(folder)
    # A URL may contain a password, which must not appear in a command line.
    assert variables.env == {"MLFLOW_TRACKING_URI": value if folder else None}


def test_hugging_face_cache_variables_are_omitted_together(tmp_path: Path) -> None:
    env = {name: str(tmp_path) for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "WANDB_DIR")}
    variables = passed_paths(env, hf_cache=False)
    assert (list(variables.env), variables.messages) == (["WANDB_DIR"], ())
    assert list(passed_paths(env, without={"WANDB_DIR"}).env) == [
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
    ]


def test_path_in_a_variable_outside_all_mounts_is_a_warning(tmp_path: Path) -> None:
    env = {"HF_HUB_CACHE": "/x/hub", "TRITON_CACHE_DIR": "/opt/venv/y", "OUT": "/z"}
    (warning,) = unmounted_paths(env, ["/workspace"])
    assert warning == (
        "HF_HUB_CACHE=/x/hub: /x/hub of this machine is not mounted in the container; to mount it,"
        " add -v /x/hub:/x/hub"
    )
    assert unmounted_paths(env, ["/x"]) == []
    assert unmounted_paths({"NCCL_DEBUG_FILE": "/x/nccl.%h"}, [], "--bind {0}")[0].endswith(
        "--bind /x"
    )
    # A container has a separate /tmp.
    assert len(unmounted_paths({"WANDB_DIR": str(tmp_path)}, [])) == 1
    assert unmounted_paths({"WANDB_DIR": f"{tmp_path}/absent"}, []) == []


def test_read_only_command_receives_only_settings_files(tmp_path: Path) -> None:
    (tmp_path / "topo.xml").touch()
    env = {
        "NCCL_TOPO_FILE": f"{tmp_path}/topo.xml", "NCCL_DEBUG_FILE": f"{tmp_path}/log",
        "NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_FILE": "/absent",
    }  # fmt: skip
    passed_env, mounts = path_variables.split_settings(env)
    assert passed_env == {name: env[name] for name in ("NCCL_TOPO_FILE", "NCCL_NVLS_ENABLE")}
    assert [(mount.target, mount.writable) for mount in mounts] == [(env["NCCL_TOPO_FILE"], False)]
