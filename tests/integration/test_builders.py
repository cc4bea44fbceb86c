"""Docker, podman and buildah build the Dockerfile of a small image: the same files as imgbuild."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import signal
import subprocess
import tarfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.oci import layout
from tests.support import dockerfile_project, images, needs
from tests.support.sample_project import TARGET, Project

pytestmark = [pytest.mark.engine, pytest.mark.network]
BUILDERS = ("docker", "podman", "buildah")
LOOK = "import thewheel, sys; print(thewheel.VALUE, sys.prefix)"
FORGET = 'description~="venv-|exec /bin/sh"'  # the steps that install, in what BuildKit keeps


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with dockerfile_project.project(tmp_path_factory.mktemp("builders")) as made:
        made.run("render", TARGET)
        yield made


def need(builder: str) -> None:
    """Skip unless `builder` answers."""
    if builder == "docker":
        needs.buildx()
    else:
        needs.tool(builder)


@pytest.fixture
def template(project: Project) -> Iterator[Path]:
    """A template of the project's own, `base.j2`, to be written by the test."""
    folder = project.folder / "images/templates"
    folder.mkdir()
    yield folder / "base.j2"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def copied(project: Project, folder: Path) -> Project:
    """The same project in another folder, where nothing is built."""
    shutil.copytree(project.folder, folder, ignore=shutil.ignore_patterns("build"))
    return Project(folder, project.index_url, project.cache)


def built(project: Project, builder: str) -> Path:
    """The layout that `builder` makes, made once."""
    place = project.folder / "build" / builder / TARGET
    if not place.exists():
        project.run("build", TARGET, "--builder", builder)
    return place


def step(template: Path, words: str) -> None:
    """Let the Dockerfile run `words` in a step of its own, first of all."""
    text = "FROM base AS venv-{{ stage.arch }}\nRUN " + words + "\n"
    template.write_text(text)


def leftovers(project: Project) -> list[str]:
    """What a build must not leave behind."""
    return [path.name for path in (project.folder / "build").rglob(".*") if path.is_dir()]


@pytest.mark.parametrize("builder", BUILDERS)
def test_another_builder_makes_the_same_files(project, builder):
    need(builder)
    answer = json.loads(project.run("build", TARGET, "--builder", builder, "--json").stdout)[0]
    place = project.folder / "build" / builder / TARGET
    found = images.verified(place)
    assert (answer["output"], answer["digest"]) == (str(place), found.digest)
    assert found.notes["dev.imgbuild.builder"] == builder
    assert leftovers(project) == []

    pair = f"embedded,{builder}"
    compared = json.loads(project.run("diff", TARGET, "--builders", pair, "--json").stdout)[0]
    comparison = compared["comparison"]
    assert comparison["equal"]
    assert comparison["left"]["paths"] > 1000
    assert comparison["left"]["digest"] != comparison["right"]["digest"] == found.digest
    assert all(each["reason"] for each in comparison["differences"])
    # What only large targets have: whole targets need every entry, arm64's variant aside.
    assert {each["like"] for each in comparison["unused"]} <= {"", "folder"}


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_what_another_builder_made_is_used_like_any_image(project, builder):
    need(builder)
    place = str(built(project, builder))
    for through in ("root", builder):
        done = project.run(
            "run", TARGET, "--layout", place, "--through", through, "--json",
            "--", "python", "-c", LOOK,
        )  # fmt: skip
        said = json.loads(done.stdout)
        assert (said["status"], said["stdout"]) == (0, "42 /opt/venv\n"), said
    subprocess.run([builder, "image", "rm", "--force", TARGET], check=False, capture_output=True)


def test_an_image_that_docker_built_is_not_taken_for_the_sealed_one(project):
    needs.buildx()
    built(project, "docker")
    own = json.loads(project.run("build", TARGET, "--json").stdout)[0]
    assert own["digest"] == project.run("digest", TARGET).stdout.strip()
    assert own["output"] == str(project.folder / "build" / TARGET)


def test_compare_tells_a_difference_and_its_status(project, tmp_path):
    needs.buildx()
    project.run("build", TARGET)
    pair = [str(project.folder / "build" / TARGET), str(built(project, "docker"))]
    done = project.run("diff", "--files", *pair, status=1)
    assert "/opt/venv/bin/acall: content: " in done.stderr
    accept = tmp_path / "accept.yaml"
    accept.write_text("- {path: '**', field: '**', reason: for this test}\n")
    assert " equal " in project.run("diff", "--files", *pair, "--accept", str(accept)).stdout


@pytest.mark.long
def test_a_second_build_without_what_was_kept_gives_the_same_digest(project):
    docker = needs.buildx()
    digests = set()
    for _ in range(2):
        subprocess.run(
            [docker, "buildx", "prune", "--all", "--force", "--filter", FORGET],
            check=True, capture_output=True,
        )  # fmt: skip
        done = project.run("build", TARGET, "--builder", "docker", "--json")
        assert "uv pip install --no-deps thewheel==1.0" in done.stderr  # it was really done
        digests.add(json.loads(done.stdout)[0]["digest"])
        time.sleep(1.1)  # so that another second is the time of what is written
    assert len(digests) == 1


def test_a_step_that_fails_is_an_error_and_nothing_is_left(project, template):
    needs.buildx()
    step(template, "echo the cause && exit 3")
    out = project.folder / "build/fails"
    done = project.run("build", TARGET, "--builder", "docker", "--output", str(out), status=1)
    assert "[venv-amd64 " in done.stderr
    assert "exit code: 3" in done.stderr
    assert "the cause" in done.stderr
    assert "to repeat: docker buildx build" in done.stderr
    assert "Dockerfile does not follow from the lock" in done.stderr
    assert not out.exists()
    assert leftovers(project) == []


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_a_secret_is_seen_by_its_step_and_by_no_layer(project, template, tmp_path, builder):
    need(builder)
    secret = f"-----BEGIN {uuid.uuid4().hex}-----\n"
    certificates = tmp_path / "a,b: c" / "ca,1.pem"
    certificates.parent.mkdir()
    certificates.write_text(secret)
    # The one network that a step has is its own loopback.
    step(
        template,
        'test "$(ls /sys/class/net)" = lo\n'
        "RUN --mount=type=secret,id=ca,required=true sha256sum < /run/secrets/ca > /seen",
    )
    out = project.folder / "build" / f"secret-{builder}"
    project.run(
        "build", TARGET, "--builder", builder, "--ca", str(certificates), "--output", str(out)
    )
    found = layout.read(out)
    seen = 0
    for blob in (out / "blobs/sha256").iterdir():
        data = blob.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        assert secret.strip().encode() not in data
        seen += hashlib.sha256(secret.encode()).hexdigest().encode() in data
    assert seen == 1, found


@pytest.mark.long
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_folder_with_commas_colons_and_spaces_is_a_folder(project, tmp_path, builder):
    need(builder)
    odd = copied(project, tmp_path / "a,b: c" / "é@1")
    pair = f"embedded,{builder}"
    done = odd.run("diff", TARGET, "--builders", pair)
    assert " equal " in done.stdout
    assert f"with {builder} …" in done.stderr
    assert leftovers(odd) == []


@pytest.mark.long
def test_compare_builds_anew_what_does_not_follow_from_what_lies_there(project, template):
    needs.buildx()
    words = ["diff", TARGET, "--builders", "embedded,docker"]

    def _was_built(status: int = 0) -> bool:
        return "with docker …" in project.run(*words, status=status).stderr

    index = built(project, "docker") / "index.json"
    assert not _was_built()
    step(template, "touch /more")  # the Dockerfile is another one
    assert _was_built(status=1)
    assert not _was_built(status=1)
    template.unlink()
    assert not _was_built()
    beside = project.folder / "images" / TARGET / "more.txt"
    beside.write_text("a file that a step sees\n")
    assert _was_built()
    assert not _was_built()
    beside.unlink()
    text = index.read_text()
    version = json.loads(text)["manifests"][0]["annotations"]["dev.imgbuild.builder-version"]
    assert re.fullmatch(r"docker \d+\.\S+, buildx v?\d+\.\S+", version)
    index.write_text(text.replace(version, "docker 1.0, buildx 0.12.0"))
    assert _was_built()
    index.write_text(text)
    assert not _was_built()
    shutil.rmtree(project.folder / "build/compare")
    layer = max((index.parent / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    away = layer.rename(index.parent / "away")
    assert _was_built()
    away.rename(layer)


@pytest.mark.parametrize("builder", ["docker", pytest.param("podman", marks=pytest.mark.long)])
def test_two_builds_at_once_do_not_disturb_each_other(project, template, tmp_path, builder):
    """Of one target: they share a folder of wheels. Of two with one base: its name with podman."""
    need(builder)
    step(template, f"echo started {uuid.uuid4().hex} && sleep 3")
    other = project if builder == "docker" else copied(project, tmp_path / "other")
    if builder == "docker":
        (project.folder / "build/wheels" / TARGET / ".new-left").touch()  # of one that was killed
    processes = []
    for number, each in enumerate((project, other)):
        words = ["--builder", builder, "--output", str(tmp_path / f"out-{number}")]
        process = subprocess.Popen(
            each.command("build", TARGET, *words, "--json", "--verbose"),
            cwd=each.folder, env=each.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        if number == 0:  # the other begins in the middle of it
            assert process.stderr is not None
            assert any("started" in line for line in process.stderr)
    result = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], result
    assert "waiting for another imgbuild" in result[1][1]
    answers = [json.loads(stdout)[0] for stdout, _ in result]
    assert answers[0]["digest"] == answers[1]["digest"]
    for answer in answers:
        images.verified(Path(answer["output"]))
    assert leftovers(project) == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_build_and_leaves_nothing(project, template, sign):
    needs.buildx()
    mark = str(3600 + uuid.uuid4().int % 10**6)
    step(template, f"echo started && sleep {mark}")
    out = project.folder / "build/stopped"
    command = project.command(
        "build", TARGET, "--builder", "docker", "--output", str(out), "--verbose"
    )
    with subprocess.Popen(
        command, cwd=project.folder, env=project.environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith(" started\n"):
                break
        process.send_signal(sign)
        result = process.stderr.read()
    assert process.returncode == 128 + sign, result
    assert "Traceback" not in result
    assert not out.exists()
    assert leftovers(project) == []
    for _ in range(300):
        if _sleeping(mark) == 0:
            break
        time.sleep(0.1)
    assert _sleeping(mark) == 0  # in the engine too


def _sleeping(mark: str) -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == b"sleep\0" + mark.encode() + b"\0"
        except OSError:
            continue
    return found


def test_steps_are_kept_in_a_registry(project):
    docker, registry = needs.buildx(), needs.registry()
    place = f"{registry}/cache-{uuid.uuid4().hex[:12]}:1"
    # A builder by its name: every engine has one that is called as its context.
    named = subprocess.run(
        [docker, "context", "show"], check=True, capture_output=True, text=True
    ).stdout.strip()
    words = ["build", TARGET, "--builder", "docker", "--buildx-builder", named]
    first = project.run(*words, "--cache-to", f"type=registry,ref={place},mode=max", "--json")
    host, _, name = place.removesuffix(":1").partition("/")
    kind = {"Accept": "application/vnd.oci.image.index.v1+json,"
            "application/vnd.oci.image.manifest.v1+json"}  # fmt: skip
    request = urllib.request.Request(f"http://{host}/v2/{name}/manifests/1", headers=kind)
    with urllib.request.urlopen(request) as answer:
        assert b"buildkit" in answer.read()
    subprocess.run(
        [docker, "buildx", "prune", "--all", "--force", "--filter", FORGET],
        check=True, capture_output=True,
    )  # fmt: skip
    second = project.run(*words, "--cache-from", f"type=registry,ref={place}", "--json")
    [step] = re.findall(r"^#(\d+) .*thewheel==1\.0", second.stderr, re.MULTILINE)
    assert f"#{step} CACHED\n" in second.stderr
    assert json.loads(first.stdout)[0]["digest"] == json.loads(second.stdout)[0]["digest"]


def test_a_builder_that_is_not_there_is_told(project):
    needs.buildx()
    done = project.run(
        "build", TARGET, "--builder", "docker", "--buildx-builder", "absent", status=2
    )
    assert "docker buildx ls" in done.stderr


@pytest.fixture
def podman() -> Iterator[str]:
    """podman's command; the images that a test leaves in its store go."""
    program = needs.podman()

    def _images() -> set[str]:
        words = [program, "images", "--all", "--quiet", "--no-trunc"]
        return set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())

    before = _images()
    yield program
    for image in _images() - before:
        words = [program, "rmi", "--force", image]  # one may have gone with another
        subprocess.run(words, check=False, capture_output=True)


def archived(path: Path) -> str:
    """The digest of the image in an archive."""
    with tarfile.open(path, encoding="utf-8") as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        (image,) = json.load(index)["manifests"]
    return str(image["digest"])


@pytest.mark.long
def test_commands_by_hand(project, podman, tmp_path):
    """What the head of a Dockerfile says, word for word, for Docker and for podman."""
    docker = needs.buildx()
    needs.tool("skopeo")
    text = (project.folder / f"images/{TARGET}/Dockerfile").read_text()
    lines = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    script = "\n".join(lines)
    every = ("imgbuild build", "docker buildx build", "docker load", "skopeo copy", "podman build")
    for words in every:
        assert words in script
    script = script.replace("imgbuild build", f"{' '.join(project.command())} build")
    saved = project.folder / "build/podman.tar"
    script += f"\n{podman} save --quiet --format oci-archive --output {saved} localhost/{TARGET}\n"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=project.folder, env=project.environment(), check=True, capture_output=True,
    )  # fmt: skip
    removed = subprocess.run(
        [docker, "image", "rm", "--force", TARGET], check=True, capture_output=True, text=True
    )
    assert f"Untagged: {TARGET}:latest" in removed.stdout, "the head brings it into Docker"
    accept = tmp_path / "accept.yaml"
    accept.write_text(
        "- {path: configuration, field: Labels io.buildah.version, only: ['" + str(saved) + "'],"
        " reason: 'imgbuild tells podman to leave it out, --identity-label=false'}\n"
    )
    by_hand = {"docker": project.folder / f"build/{TARGET}.oci.tar", "podman": saved}
    for builder, archive in by_hand.items():
        pair = [str(archive), str(built(project, builder))]
        assert " equal " in project.run("diff", "--files", *pair, "--accept", str(accept)).stdout
    digest = archived(by_hand["docker"])
    by_hand["docker"].unlink()
    subprocess.run([docker, "buildx", "bake", TARGET], cwd=project.folder, check=True)
    assert archived(by_hand["docker"]) == digest, "the bake file says the same"
