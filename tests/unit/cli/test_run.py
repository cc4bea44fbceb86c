"""Tests the container request for the options of `imgbuild run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from imgbuild.cache.store import Store
from imgbuild.cli import run
from imgbuild.cli.run import RunOptions
from imgbuild.container import driver, path_variables
from imgbuild.container.request import ContainerRequest, Mount
from imgbuild.container.run_in_image import CommandConfig
from imgbuild.errors import InputError
from tests.support.rows import each_row

IMAGE = CommandConfig(
    entrypoint=("/opt/imgbuild/entrypoint",), workdir="/workspace", user="1000:1000"
)


@pytest.fixture(autouse=True)
def _host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPUs whose home and current folder are empty."""
    for name in list(os.environ):
        if (
            name.startswith(("HF_", "WANDB_", "XDG_", "CUDA_"))
            or name in path_variables.variable_names()
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(driver, "DEVICES", tmp_path)
    monkeypatch.setattr(run, "process_ids", lambda: (1234, 5678))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def container_request(config: CommandConfig = IMAGE, **options: Any) -> ContainerRequest:
    return RunOptions(**options).container_request(
        config, ("true",), interactive=True, dry_run=False
    )


def test_container_request_has_default_values(tmp_path: Path) -> None:
    request = container_request()
    assert request.mounts == (Mount(source=tmp_path / "here", target="/workspace"),)
    assert (request.workdir, request.command, request.env) == ("/workspace", ("true",), {})
    assert (request.user, request.user_ids(), request.home) == (None, (1234, 5678), "/")
    assert (request.gpus, request.shm_size, request.network, request.tty) == (
        False,
        None,
        True,
        False,
    )


@pytest.mark.parametrize("workdir", ["", "/"])
def test_root_folder_of_the_image_is_not_hidden_by_mounts(workdir: str) -> None:
    request = container_request(CommandConfig(workdir=workdir))
    assert (request.workdir, request.mounts[0].target) == ("/workspace", "/workspace")


def test_run_does_not_mount_the_root_of_the_host_file_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/")
    assert container_request().mounts == ()


def test_run_mounts_the_home_folder() -> None:
    assert container_request(CommandConfig(entrypoint=("/other",))).home == "/tmp"
    assert container_request(user="0").home is None
    assert container_request(user="1000").home is None
    assert container_request(user="somebody").home is None
    assert container_request(env=["HOME=/mine"]).home is None


@pytest.mark.parametrize(("gpus", "reported"), [(None, True), ("0", False), ("all", False)])
def test_run_reports_that_a_printed_command_has_no_gpus(
    gpus: str | None, reported: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    RunOptions(gpus=gpus).container_request(IMAGE, ("true",), interactive=True, dry_run=True)
    assert ("to request GPUs, add --gpus all" in capsys.readouterr().err) is reported
    container_request()
    assert "no GPU is visible" not in capsys.readouterr().err


def test_gpus_of_the_machine_are_used_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    assert container_request().gpus is True
    assert container_request(gpus="0").gpus == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert container_request().env == {"CUDA_VISIBLE_DEVICES": None}
    assert container_request(gpus="1").env == {}


def test_run_mounts_the_hugging_face_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = tmp_path / "home/.cache/huggingface"
    usual.mkdir(parents=True)
    request = container_request()
    assert request.mounts[1] == Mount(source=usual, target="/mnt/huggingface")
    assert request.env == {"HF_HOME": "/mnt/huggingface"}
    assert len(container_request(hf_cache=False).mounts) == 1
    assert container_request(env=["HF_HOME=/elsewhere"]).env == {"HF_HOME": "/elsewhere"}
    monkeypatch.setenv("HF_HOME", str(tmp_path / "absent"))
    assert len(container_request().mounts) == 1
    assert f"{tmp_path / 'absent'} does not exist" in "".join(capsys.readouterr().err.split("\n"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert container_request().mounts[1].source == tmp_path


def test_run_reports_a_missing_hugging_face_cache_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reported() -> bool:
        container_request()
        return "does not exist, so models" in " ".join(capsys.readouterr().err.split())

    monkeypatch.setenv("HF_HOME", str(tmp_path / "absent"))
    assert [reported(), reported()] == [True, False]
    monkeypatch.setenv("HF_HOME", str(tmp_path / "other"))
    assert [reported(), reported()] == [True, False]
    lost = "models that the command downloads are lost when the command ends"
    text = f"{tmp_path / 'other'} does not exist, so {lost}"
    store = Store.open()
    assert store.fact(run.NOTICE, text) is not None
    store.put_fact(run.NOTICE, text, b"2026-01-01")  # another day
    assert [reported(), reported()] == [True, False]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "file"))  # nothing can be stored
    assert [reported(), reported()] == [True, True]


def test_run_passes_variables_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "WANDB_DIR", "OTHER"):
        monkeypatch.setenv(name, "secret")
    assert container_request().env == {"HF_TOKEN": None, "WANDB_API_KEY": None}
    given = container_request(env=["OTHER", "HF_TOKEN=mine", "EMPTY="]).env
    assert given == {"HF_TOKEN": "mine", "WANDB_API_KEY": None, "OTHER": None, "EMPTY": ""}


def test_run_mounts_or_reports_paths_in_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hub").mkdir()
    hub, mount = str(tmp_path / "hub"), Mount(source=tmp_path / "hub", target=str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", hub)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/triton")
    request = container_request()
    assert (request.mounts[1:], request.env) == ((mount,), {"HF_HUB_CACHE": hub})
    assert "TRITON_CACHE_DIR=/triton is not passed: " in capsys.readouterr().err
    assert container_request(hf_cache=False).env == {}
    # A given value is passed unchanged, without a mount.
    request = container_request(env=["HF_HUB_CACHE=/elsewhere", "TRITON_CACHE_DIR"])
    assert (request.mounts[1:], request.env["HF_HUB_CACHE"]) == ((), "/elsewhere")
    assert request.env["TRITON_CACHE_DIR"] is None
    # A name alone passes the value of this machine, which is mounted as without -e.
    assert container_request(env=["HF_HUB_CACHE"]).mounts[1:] == (mount,)
    # Volumes come first.
    (tmp_path / "other").mkdir()
    volume = Mount(source=tmp_path / "other", target=hub)
    assert container_request(volume=[f"{tmp_path}/other:{hub}"]).mounts[1:] == (volume,)


def test_run_reads_variables_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    path = tmp_path / "env"
    path.write_text("# comment\n\nA='b' \n  B=c=d\nHF_TOKEN\nNOT_SET_HERE\n")
    request = container_request(env_file=[path])
    assert request.env_files == {path: {"A": "'b' ", "B": "c=d", "HF_TOKEN": "secret"}}
    assert request.env == {}  # the value in the file is kept
    path.write_text("A=1\nexport B=2\n")
    with pytest.raises(InputError, match=r"env:2: invalid variable name: 'export B'"):
        container_request(env_file=[path])
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8 text"):
        container_request(env_file=[path])


def test_volume_options_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "here/data").mkdir()
    (tmp_path / "home").mkdir()
    mounts = container_request(volume=["data:/data:ro", f"{tmp_path}:/x/", "~/..:/y:rw"]).mounts[1:]
    assert [(mount.target, mount.writable) for mount in mounts] == [
        ("/data", False),
        ("/x", True),
        ("/y", True),
    ]
    assert [mount.source for mount in mounts[:2]] == [tmp_path / "here/data", tmp_path]
    replaced = container_request(volume=["data:/workspace"]).mounts
    assert replaced == (Mount(source=tmp_path / "here/data", target="/workspace"),)


@each_row("text", ["data", "data:here", ":/x", "/:/x:wo", "absent:/x"])
def test_invalid_volume_options_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--volume"):
        container_request(volume=[text])


@each_row("port", ["80", "8080:80", "127.0.0.1:8080:80/udp", "[::1]:80:80", "1-3:1-3"])
def test_port_options_are_parsed(port: str) -> None:
    assert container_request(publish=[port]).ports == (port,)


@each_row("size", ["16g", "64M", "1.5gb", "1024"])
def test_sizes_of_shared_memory_are_parsed(size: str) -> None:
    assert container_request(shm_size=size).shm_size == size
