"""Tests mounts, users, variables, exit status and interrupts of `imgbuild run` in each engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from imgbuild.container import engine
from imgbuild.values import Arch
from tests.support import images, needs, ordinary, prepared_program
from tests.support.matrix_text import VALID_MATRIX

pytestmark = pytest.mark.engine
TARGET = f"run-{uuid.uuid4().hex[:8]}"  # the name of the image in the engines
SCRIPT = "echo said; echo told >&2; cat hello; exit 7"
ENGINES = ("docker", "podman", "apptainer", "root")
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a target that contains only a shell, and with a file."""
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o755)  # for another user
    project(folder)
    return folder


def project(folder: Path) -> None:
    """A project in `folder` whose built target is a shell, and the file `hello`."""
    (folder / "matrix.yaml").write_text(
        VALID_MATRIX.replace("cu124-vllm", TARGET), encoding="utf-8"
    )
    (folder / "hello").write_text("hello\n", encoding="utf-8")
    (folder / "build").mkdir()
    images.write_tiny_image(folder, [Arch.X86_64]).rename(folder / "build" / TARGET)


@pytest.fixture(scope="module", autouse=True)
def _no_image_is_left() -> Iterator[None]:
    """Remove the image that the tests loaded into the engines."""
    yield
    for name in ("docker", "podman"):
        if (present := engine.find_engine(name)) is not None:
            engine.remove_image(present, f"{TARGET}:latest")


# Without long tests, two tests run in each engine, and the others in Docker and in a root folder.
SOME = [
    name if name in ("docker", "root") else pytest.param(name, marks=pytest.mark.long)
    for name in ENGINES
]


@pytest.fixture(params=SOME, name="through")
def _through(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "root":
        needs.user_namespaces()
    else:
        getattr(needs, f"require_{name}")()
    if name == "apptainer":
        needs.require_tool("mksquashfs", "squashfs-tools")
    return name


def forget(through: str) -> None:
    """Remove the image from an engine, which may have loaded it for another test."""
    if through in ("docker", "podman"):
        engine.remove_image(engine.require_engine(through), f"{TARGET}:latest")


def words(through: str, *options: str, script: str = SCRIPT) -> list[str]:
    named = ["run", TARGET, "--arch", "x86_64", "--through", through, *options]
    return ["-m", "imgbuild", *named, "--", "sh", "-c", script]


def run(
    folder: Path,
    command: Sequence[str],
    *,
    before: Sequence[str] = (),
    **env: str,
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "IMGBUILD_CACHE": str(folder / "cache"), **env}
    if not before:
        return prepared_program.run_prepared(command[2:], cwd=folder, env=env)
    return subprocess.run(
        [*before, *command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_run_returns_exit_status_and_output_of_the_command(folder: Path) -> None:
    needs.user_namespaces()
    done = run(folder, words("root", "-q"))
    assert (done.returncode, done.stdout, done.stderr) == (7, "said\nhello\n", "told\n")


LIBRARY = "x: error while loading shared libraries: libmpi.so.40: cannot open shared object file"


@pytest.mark.parametrize(
    "through", [pytest.param("docker", marks=pytest.mark.long), "root"], indirect=True
)
def test_failed_command_ends_with_its_likely_cause(folder: Path, through: str) -> None:
    script = f"echo said; echo '{LIBRARY}: No such file or directory' >&2; exit 127"
    done = run(folder, words(through, script=script))
    assert (done.returncode, done.stdout) == (127, "said\n")
    assert LIBRARY in done.stderr
    (cause,) = [line for line in done.stderr.splitlines() if "; cure: " in line]
    assert cause.startswith("IMG")
    assert "libmpi.so.40" in cause


def test_run_prints_no_cause_for_a_successful_or_unexplained_command(folder: Path) -> None:
    needs.user_namespaces()
    passed = run(folder, words("root", script=f"echo '{LIBRARY}' >&2"))
    unclear = run(folder, words("root", script="echo 'it did not work' >&2; exit 3"))
    assert (passed.returncode, unclear.returncode) == (0, 3)
    assert "cure: " not in passed.stderr + unclear.stderr


@pytest.mark.parametrize(
    "through", [pytest.param("podman", marks=pytest.mark.long), "apptainer"], indirect=True
)
def test_run_result_is_printed_as_json(folder: Path, through: str) -> None:
    done = run(folder, words(through, "--json"))
    assert done.returncode == 7, done.stderr
    answer = json.loads(done.stdout)
    assert "told\n" in answer.pop("stderr")
    assert answer == {
        "target": TARGET,
        "arch": "x86_64",
        "through": through,
        "status": 7,
        "stdout": "said\nhello\n",
    }


def test_run_leaves_no_files_in_the_cache(folder: Path) -> None:
    needs.user_namespaces()
    script = "mkdir /tmp/closed; touch /tmp/closed/x; chmod 0 /tmp/closed"
    run(folder, words("root", "-q", script=script))
    left = [path for path in (folder / "cache").rglob("*") if path.name in ("root", "closed")]
    assert left == []


@pytest.mark.parametrize("through", ENGINES, indirect=True)
def test_container_has_the_requested_settings(folder: Path, through: str, tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "hf"
    for place in (data, cache):
        place.mkdir()
        (place / "file").write_text("x")
    (tmp_path / "env").write_text("# of the file\nFROM_FILE=a 'quoted' $x\nHF_TOKEN\n")
    options = [
        *("-v", f"{data}:/data:ro", "-v", f"{data}:/more", "-e", "GIVEN=b,c d", "-e", "NAMED"),
        *("--env-file", str(tmp_path / "env")),
    ]
    script = (
        'echo "$GIVEN;$NAMED;$FROM_FILE;$HF_TOKEN;$WANDB_PROJECT;$LEFT_OUT;$WANDB_DIR"; pwd; id -u;'
        'ls "$HF_HOME"; echo made >made-here; echo made >/more/new; touch /data/new; touch $HOME/x;'
        "exit 3"
    )
    env = {"HF_TOKEN": "secret", "WANDB_PROJECT": "p", "LEFT_OUT": "no", "WANDB_DIR": "/host"}
    done = run(
        folder, words(through, *options, script=script), NAMED="e=f", HF_HOME=str(cache), **env
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"b,c d;e=f;a 'quoted' $x;secret;p;;\n/opt\n{os.geteuid()}\nfile\n"
    created_file = folder / "made-here"
    assert (created_file.read_text(), created_file.stat().st_uid) == ("made\n", os.geteuid())
    assert sorted(path.name for path in data.iterdir()) == ["file", "new"]
    assert "ead-only file system" in done.stderr
    created_file.unlink()


def test_path_variables_have_same_content_in_container(
    folder: Path, through: str, tmp_path: Path
) -> None:
    hub, ca = tmp_path / "models/hub", tmp_path / "ca.pem"
    hub.mkdir(parents=True)
    ca.write_text("x")
    script = (
        'echo "$HF_HUB_CACHE;$WANDB_DIR;$SSL_CERT_FILE;$TRITON_CACHE_DIR;$TORCH_HOME;$TMPDIR";'
        'echo made >"$HF_HUB_CACHE/new"; cat "$SSL_CERT_FILE"; echo y >"$SSL_CERT_FILE"'
    )
    env = {
        "HF_HUB_CACHE": str(hub), "WANDB_DIR": "build", "SSL_CERT_FILE": str(ca),
        "TRITON_CACHE_DIR": str(hub), "TORCH_HOME": str(tmp_path / "absent"), "TMPDIR": "/tmp",
    }  # fmt: skip
    done = run(folder, words(through, script=script), **env)
    assert done.stdout == f"{hub};{folder}/build;{ca};;;\nx", done.stderr
    assert (hub / "new").read_text() == "made\n"
    assert (hub / "new").stat().st_uid == os.geteuid()
    assert ca.read_text() == "x"
    for name in ("TRITON_CACHE_DIR", "TORCH_HOME", "TMPDIR"):
        assert f"{name}={env[name]} is not passed: " in " ".join(done.stderr.split())


def test_path_set_explicitly_is_passed_without_a_mount(folder: Path) -> None:
    """A warning is printed if no mount contains the path."""
    needs.user_namespaces()
    done = run(folder, words("root", "-e", "HF_HUB_CACHE=/srv/hub", script='echo "$HF_HUB_CACHE"'))
    assert done.stdout == "/srv/hub\n"
    assert "-v /srv/hub:/srv/hub" in " ".join(done.stderr.split())


def test_command_of_another_user_without_network_receives_the_token(
    folder: Path, through: str
) -> None:
    """--verbose prints all command lines that imgbuild starts; none contains the token."""
    options = ("--verbose", "--user", "4321:4322", "--no-network")
    script = "id -u; id -g; echo $HF_TOKEN; cat /proc/net/dev"
    done = run(folder, words(through, *options, script=script), HF_TOKEN="a-secret")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4321\n4322\na-secret\n")
    assert "echo" in done.stderr
    assert "a-secret" not in done.stderr
    assert " lo:" in done.stdout
    assert "eth0" not in done.stdout


def test_files_written_by_run_belong_to_the_ordinary_user() -> None:
    needs.user_namespaces()
    with ordinary.nobody_home() as folder:
        project(folder)
        for path in [folder, *folder.rglob("*")]:
            shutil.chown(path, "nobody", "nogroup")
        done = run(
            folder,
            words("root", script="echo x >made; id -u; touch $HOME/x && echo home; exit 5"),
            before=[*ordinary.as_nobody(), "env", ordinary.nobody_python(folder), "-B"],
            HOME=str(folder),
            PYTHONPATH=str(REPOSITORY / "builder"),
        )
        assert done.returncode == 5, done.stderr
        assert done.stdout == f"{folder.stat().st_uid}\nhome\n"
        assert (folder / "made").stat().st_uid == folder.stat().st_uid


TRAP = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("script", "times"),
    [(TRAP, 1), pytest.param("echo ready; sleep 1000", 2, marks=pytest.mark.long)],
)
def test_interrupt_stops_command(folder: Path, through: str, script: str, times: int) -> None:
    """A command that ignores the first interrupt is stopped by the second."""
    with subprocess.Popen(
        [sys.executable, *words(through, "-q", script=script)],
        cwd=folder,
        env={**os.environ, "IMGBUILD_CACHE": str(folder / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(times):
            # Simultaneous signals would be merged; podman loses signals until its output is set up.
            time.sleep(1)
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        status = process.returncode
    if times == 1 and through != "root":  # which has no process to pass a signal on
        assert (status, rest) == (3, "caught\n")
    else:
        assert status in (130, 137)


def test_dry_run_with_root_folder_is_refused(folder: Path) -> None:
    done = run(folder, words("root", "--dry-run"))
    assert (done.returncode, "--through docker" in done.stderr) == (2, True)


@pytest.mark.parametrize("through", SOME[:3], indirect=True)
def test_dry_run_of_the_run_command_has_no_effect(folder: Path, through: str) -> None:
    forget(through)
    paths = sorted(path for path in folder.rglob("*") if "cache" not in path.parts)
    done = run(folder, words(through, "--dry-run", "-e", "A=b c"), HF_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert sorted(path for path in folder.rglob("*") if "cache" not in path.parts) == paths
    if through != "apptainer":
        assert f"imgbuild load {TARGET}" in done.stderr
        assert engine.inspect_image(engine.require_engine(through), f"{TARGET}:latest") is None


@pytest.mark.parametrize(
    "through",
    ["docker", pytest.param("podman", marks=pytest.mark.long), "apptainer"],
    indirect=True,
)
def test_command_printed_by_dry_run_has_the_same_result(folder: Path, through: str) -> None:
    forget(through)
    first = run(folder, words(through, script="true"))  # the image is loaded, or the SIF made
    assert through == "apptainer" or f"loading {TARGET} into {through}, " in first.stderr
    arguments = words(through, "--dry-run", "-e", "A=b c", script='echo "$A $HF_TOKEN"')
    result = run(folder, arguments, HF_TOKEN="another")
    done = subprocess.run(
        ["sh", "-c", result.stdout], cwd=folder, env={**os.environ, "HF_TOKEN": "secret"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "b c secret\n"), done.stderr
