"""Tests the command line of each engine for a container request."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.container import arguments
from imgbuild.container.engine import EngineKind
from imgbuild.container.request import ContainerRequest, Mount
from imgbuild.errors import InputError
from tests.support.rows import each_row

KINDS: tuple[EngineKind, ...] = ("docker", "podman")
WORK = Mount(source=Path("/home/me/project"), target="/workspace")
FULL = ContainerRequest(
    command=("python", "train.py", "--lr", "1e-5"),
    workdir="/workspace",
    mounts=(WORK, Mount(source=Path("/data"), target="/data", writable=False)),
    env={"HF_TOKEN": None, "A": "b c"},
    env_files={Path("/home/me/env"): {"FROM_FILE": "x", "A": "overridden"}},
    ports=("8000:8000",),
    caller=(1234, 5678),
    home="/",
    gpus=True,
    interactive=True,
    tty=True,
)
PLAIN = ContainerRequest(command=("true",), caller=(1234, 5678))


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")


changed = msgspec.structs.replace


def command(kind: EngineKind, request: ContainerRequest, **options: bool) -> tuple[str, ...]:
    return arguments.engine_command(kind, request, kind, "x", **options).command


def test_docker_arguments_match_the_container_request() -> None:
    invocation = arguments.engine_command("docker", FULL, "docker", "rl:latest", init=True)
    assert invocation.command == (
        *("docker", "run", "--rm", "--init", "--user=1234:5678", "--interactive", "--tty"),
        *("--gpus", "all", "--ipc=host", "--publish=8000:8000"),
        *("--volume=/home/me/project:/workspace", "--volume=/data:/data:ro"),
        *("--workdir=/workspace", "--env=HOME=/", "--env-file=/home/me/env"),
        *("--env=HF_TOKEN", "--env=A=b c"),
        *("rl:latest", "python", "train.py", "--lr", "1e-5"),
    )
    assert (invocation.env, invocation.env_from) == ({}, {})
    assert "secret" not in invocation.text()
    assert "'--env=A=b c'" in invocation.text()


def test_podman_arguments_match_the_container_request() -> None:
    invocation = arguments.engine_command("podman", FULL, "podman", "rl:latest", rootless=True)
    assert invocation.command == (
        *("podman", "run", "--rm", "--userns=keep-id", "--interactive", "--tty"),
        *("--device", "nvidia.com/gpu=all", "--ipc=host", "--publish=8000:8000"),
        *("--volume=/home/me/project:/workspace", "--volume=/data:/data:ro"),
        *("--workdir=/workspace", "--env=HOME=/", "--env-file=/home/me/env"),
        *("--env=HF_TOKEN", "--env=A=b c"),
        *("rl:latest", "python", "train.py", "--lr", "1e-5"),
    )


def test_apptainer_arguments_match_the_container_request() -> None:
    invocation = arguments.apptainer_command(FULL, "apptainer", Path("/images/rl.sif"))
    assert invocation.command == (
        *("apptainer", "--quiet", "run", "--cleanenv", "--no-eval", "--pwd=/workspace"),
        *("--bind=/home/me/project:/workspace", "--bind=/data:/data:ro", "--nv"),
        *("/images/rl.sif", "python", "train.py", "--lr", "1e-5"),
    )
    assert invocation.env == {"APPTAINERENV_FROM_FILE": "x", "APPTAINERENV_A": "b c"}
    assert invocation.env_from == {"APPTAINERENV_HF_TOKEN": "HF_TOKEN"}
    assert arguments.variables_from_process(invocation.env_from) == {
        "APPTAINERENV_HF_TOKEN": "secret"
    }
    assert invocation.text().startswith(
        "APPTAINERENV_FROM_FILE=x APPTAINERENV_A='b c' APPTAINERENV_HF_TOKEN=\"$HF_TOKEN\" apptain"
    )


def test_files_written_by_the_container_belong_to_the_caller() -> None:
    def users(*words: str) -> list[str]:
        return [word for word in words if word.startswith("--user")]

    assert users(*command("docker", PLAIN)) == ["--user=1234:5678"]
    # Root in the container of a rootless Docker is the user who started it.
    assert users(*command("docker", PLAIN, rootless=True)) == ["--user=0:0"]
    assert users(*command("podman", PLAIN)) == ["--user=1234:5678"]
    named = changed(PLAIN, user="7:8")
    for kind in KINDS:
        assert users(*command(kind, named, rootless=True)) == ["--user=7:8"]


def test_apptainer_changes_the_user_only_if_the_caller_is_root() -> None:
    with pytest.raises(InputError, match="--user 7: Apptainer runs commands as the current user"):
        arguments.apptainer_command(changed(PLAIN, user="7"), "apptainer", Path("x.sif"))
    root = changed(PLAIN, user="7:8", caller=(0, 0))
    words = arguments.apptainer_command(root, "apptainer", Path("x.sif")).command
    assert words[-6:-2] == ("--security", "uid:7", "--security", "gid:8")
    same = changed(PLAIN, user="1234:5678")
    assert "--security" not in arguments.apptainer_command(same, "apptainer", Path("x.sif")).command


def test_shared_memory_network_and_gpus_are_passed() -> None:
    request = changed(PLAIN, shm_size="16g", network=False, gpus=2, name="mine")
    docker = command("docker", request)
    podman = command("podman", request)
    for words in (docker, podman):
        assert {"--shm-size=16g", "--network=none", "--name=mine"} <= {*words}
        assert "--ipc=host" not in words
    assert docker[docker.index("--gpus") + 1] == "2"
    assert [word for word in podman if "gpu" in word] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert (
        "--network=none" in arguments.apptainer_command(request, "apptainer", Path("x.sif")).command
    )


@each_row(
    ("source", "docker", "apptainer"),
    [
        ("/a b", "--volume=/a b:/x:ro", "--bind=/a b:/x:ro"),
        ("/a:b", "--mount=type=bind,src=/a:b,dst=/x,ro", "--mount=type=bind,src=/a:b,dst=/x,ro"),
        ("/a,b", "--volume=/a,b:/x:ro", '--mount=type=bind,"src=/a,b",dst=/x,ro'),
        (
            '/a:"b,',
            '--mount=type=bind,"src=/a:""b,",dst=/x,ro',
            '--mount=type=bind,"src=/a:""b,",dst=/x,ro',
        ),
    ],
)
def test_paths_with_separator_characters_are_escaped(
    source: str, docker: str, apptainer: str
) -> None:
    request = changed(PLAIN, mounts=(Mount(source=Path(source), target="/x", writable=False),))
    assert docker in command("docker", request)
    assert docker in command("podman", request)
    assert apptainer in arguments.apptainer_command(request, "apptainer", Path("x.sif")).command


def test_selinux_labels_are_disabled_for_mounts() -> None:
    request = changed(PLAIN, mounts=(WORK,), selinux=True)
    assert "--security-opt=label=disable" in command("podman", request)
    unmounted = changed(PLAIN, selinux=True)
    assert "--security-opt=label=disable" not in command("docker", unmounted)


def test_container_options_that_an_engine_ignores_are_reported() -> None:
    request = changed(FULL, shm_size="1g")
    assert arguments.ignored_options(request, "docker") == []
    for through in ("apptainer", "root"):
        lines = arguments.ignored_options(request, through)
        assert [line.partition(" is ignored")[0] for line in lines] == ["--publish", "--shm-size"]
        assert arguments.ignored_options(PLAIN, through) == []


def test_variables_and_user_of_a_container_request_are_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert FULL.all_variables() == {"FROM_FILE": "x", "HF_TOKEN": "secret", "A": "b c"}
    monkeypatch.delenv("HF_TOKEN")
    assert FULL.all_variables() == {"FROM_FILE": "x", "A": "b c"}
    assert PLAIN.user_ids() == (1234, 5678)
    assert changed(PLAIN, user="7:8").user_ids() == (7, 8)
    assert changed(PLAIN, user="7").user_ids() == (7, 5678)
    assert changed(PLAIN, user="somebody").user_ids() is None
