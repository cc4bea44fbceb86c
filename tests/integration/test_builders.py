"""Tests that Docker builds the committed Dockerfile of a small image with the files of imgbuild."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import dockerfile_project, images, needs
from tests.support.sample_project import TARGET, Project

pytestmark = [pytest.mark.engine, pytest.mark.network]
BUILD = ("build", TARGET, "--builder", "docker")
DIFF = ("diff", TARGET, "--builder", "docker", "--json")
LOOK = "import thewheel, sys; print(thewheel.VALUE, sys.prefix)"
FORGET = 'description~="venv-|exec /bin/sh"'  # the steps that install, in what BuildKit keeps


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    needs.require_buildx()
    with dockerfile_project.locked_project(tmp_path_factory.mktemp("builders")) as project:
        project.run("render", TARGET)
        yield project


@pytest.fixture
def with_step(project: Project) -> Iterator[Project]:
    """The project; its Dockerfile is restored after each test."""
    folder = project.folder / "images/templates"
    folder.mkdir()
    yield project
    shutil.rmtree(folder)
    project.run("render", TARGET)


def add_step(project: Project, words: str) -> None:
    """Add a RUN step with `words` at the start of the committed Dockerfile."""
    text = "FROM base AS venv-{{ stage.arch }}\nRUN " + words + "\n"
    (project.folder / "images/templates/base.j2").write_text(text)
    project.run("render", TARGET)


def leftovers(project: Project) -> list[str]:
    """The temporary folders below build/."""
    return [path.name for path in (project.folder / "build").rglob(".*") if path.is_dir()]


def test_docker_build_has_the_same_files_as_imgbuild_build(project):
    compared = json.loads(project.run(*DIFF).stdout)[0]["comparison"]
    assert compared["equal"]
    assert compared["left"]["paths"] > 1000
    assert compared["left"]["digest"] != compared["right"]["digest"]
    assert all(each["reason"] for each in compared["differences"])
    # Differences only in large targets: they need every entry, except for arm64's variant.
    assert {each["like"] for each in compared["unused"]} <= {"", "folder"}
    assert leftovers(project) == []


def test_image_built_by_docker_is_usable(project):
    answer = json.loads(project.run(*BUILD, "--json").stdout)[0]
    place = project.folder / "build/docker" / TARGET
    assert (answer["output"], answer["digest"]) == (str(place), images.verify_layout(place).digest)
    assert leftovers(project) == []
    for through in ("root", "docker"):
        done = project.run(
            "run", TARGET, "--layout", str(place), "--through", through, "--json",
            "--", "python", "-c", LOOK,
        )  # fmt: skip
        outcome = json.loads(done.stdout)
        assert (outcome["status"], outcome["stdout"]) == (0, "42 /opt/venv\n"), outcome
    subprocess.run(["docker", "image", "rm", "--force", TARGET], check=False, capture_output=True)
    # It is not mistaken for the image of the lock.
    (built,) = json.loads(project.run("build", TARGET, "--json").stdout)
    assert built["digest"] == project.run("digest", TARGET).stdout.strip()
    assert built["output"] == str(project.folder / "build" / TARGET)


@pytest.mark.long
def test_diff_exits_with_status_1_if_files_differ(project, tmp_path):
    project.run("build", TARGET)
    project.run(*BUILD)
    pair = [str(project.folder / "build" / name / TARGET) for name in (".", "docker")]
    done = project.run("diff", "--files", *pair, status=1)
    assert "/opt/venv/bin/acall: content: " in done.stderr
    accept = tmp_path / "accept.yaml"
    accept.write_text("- {path: '**', field: '**', reason: for this test}\n")
    assert " equal " in project.run("diff", "--files", *pair, "--accept", str(accept)).stdout


@pytest.mark.long
def test_uncached_rebuild_has_same_digest(project):
    digests = set()
    for _ in range(2):
        subprocess.run(
            ["docker", "buildx", "prune", "--all", "--force", "--filter", FORGET],
            check=True, capture_output=True,
        )  # fmt: skip
        done = project.run(*BUILD, "--json")
        assert "uv pip install --no-deps thewheel==1.0" in done.stderr  # no step was cached
        digests.add(json.loads(done.stdout)[0]["digest"])
        time.sleep(1.1)  # so that another second is the time of what is written
    assert len(digests) == 1


def test_dockerfile_that_does_not_match_the_lock_is_not_built(project):
    path = project.folder / "images" / TARGET / "Dockerfile"
    text = path.read_text()
    path.write_text(text + "RUN touch /more\n")
    for words in (BUILD, DIFF):
        done = project.run(*words, status=5)
        assert f"{path} does not match the lock" in done.stderr
        assert "hint: run imgbuild render --all" in done.stderr
    path.write_text(text)


def test_failed_docker_build_is_an_error_and_leaves_no_files(with_step):
    add_step(with_step, "echo the cause && exit 3")
    out = with_step.folder / "build/fails"
    done = with_step.run(*BUILD, "--output", str(out), status=1)
    assert "[venv-amd64 " in done.stderr
    assert "exit code: 3" in done.stderr
    assert "the cause" in done.stderr
    assert "to repeat the build, run: docker buildx bake" in done.stderr
    assert not out.exists()
    assert leftovers(with_step) == []


@pytest.mark.long
def test_paths_can_contain_commas_colons_and_spaces(project, tmp_path):
    folder = tmp_path / "a,b: c" / "é@1"
    shutil.copytree(project.folder, folder, ignore=shutil.ignore_patterns("build"))
    copy = Project(folder, project.index_url, project.cache)
    assert json.loads(copy.run(*DIFF).stdout)[0]["comparison"]["equal"]
    assert leftovers(copy) == []


@pytest.mark.long
def test_concurrent_builds_of_target_are_serialized(with_step, tmp_path):
    add_step(with_step, f"echo started {uuid.uuid4().hex} && sleep 3")
    processes = []
    for number in range(2):
        words = (*BUILD, "--output", str(tmp_path / f"out-{number}"), "--json", "--verbose")
        process = subprocess.Popen(
            with_step.command(*words), cwd=with_step.folder, env=with_step.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        if number == 0:  # the other begins in the middle of it
            assert process.stderr is not None
            assert any("started" in line for line in process.stderr)
    results = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert "waiting for another imgbuild" in results[1][1]
    answers = [json.loads(stdout)[0] for stdout, _ in results]
    assert answers[0]["digest"] == answers[1]["digest"]
    for answer in answers:
        images.verify_layout(Path(answer["output"]))
    assert leftovers(with_step) == []


@pytest.mark.parametrize(
    "sign", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_interrupted_docker_build_is_cancelled_and_leaves_no_files(with_step, sign):
    mark = str(3600 + uuid.uuid4().int % 10**6)
    add_step(with_step, f"echo started && sleep {mark}")
    out = with_step.folder / "build/stopped"
    command = with_step.command(*BUILD, "--output", str(out), "--verbose")
    with subprocess.Popen(
        command,
        cwd=with_step.folder, env=with_step.environment(), stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith(" started\n"):
                break
        # BuildKit does not always end a step that is cancelled while runc starts it.
        for _ in range(300):
            if _sleeping(mark):
                break
            time.sleep(0.1)
        process.send_signal(sign)
        result = process.stderr.read()
    assert process.returncode == 128 + sign, result
    assert "Traceback" not in result
    assert not out.exists()
    assert leftovers(with_step) == []
    for _ in range(300):
        if _sleeping(mark) == 0:
            break
        time.sleep(0.1)
    assert _sleeping(mark) == 0  # in the engine too


def _sleeping(mark: str) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes() == b"sleep\0" + mark.encode() + b"\0"
        except OSError:
            continue
    return count


@pytest.mark.long
def test_buildx_builder_variable_selects_builder(project, monkeypatch):
    context = subprocess.run(
        ["docker", "context", "show"], check=True, capture_output=True, text=True
    ).stdout.strip()
    monkeypatch.setenv("BUILDX_BUILDER", context)  # each Docker context has a builder with its name
    project.run(*BUILD)
    monkeypatch.setenv("BUILDX_BUILDER", "absent")
    done = project.run(*BUILD, status=2)
    assert "set BUILDX_BUILDER to a builder listed by `docker buildx ls`" in done.stderr


def digest_of(archive: Path) -> str:
    """The digest of the image in an archive."""
    with tarfile.open(archive, encoding="utf-8") as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        (image,) = json.load(index)["manifests"]
    return str(image["digest"])


@pytest.mark.long
def test_printed_dockerfile_commands_work(project):
    text = (project.folder / f"images/{TARGET}/Dockerfile").read_text()
    lines = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    script = "\n".join(lines)
    for words in ("imgbuild build", "docker buildx build", "docker load"):
        assert words in script
    script = script.replace("imgbuild build", f"{' '.join(project.command())} build")
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=project.folder, env=project.environment(), check=True, capture_output=True,
    )  # fmt: skip
    removed = subprocess.run(
        ["docker", "image", "rm", "--force", TARGET], check=True, capture_output=True, text=True
    )
    assert f"Untagged: {TARGET}:latest" in removed.stdout, (
        "the commands in the header must load the image into Docker"
    )
    archive = project.folder / f"build/{TARGET}.oci.tar"
    project.run(*BUILD)
    pair = [str(archive), str(project.folder / "build/docker" / TARGET)]
    assert " equal " in project.run("diff", "--files", *pair).stdout
    digest = digest_of(archive)
    archive.unlink()
    subprocess.run(
        ["docker", "buildx", "bake", TARGET], cwd=project.folder, check=True, capture_output=True
    )
    assert digest_of(archive) == digest, "the bake file must build the same image"
