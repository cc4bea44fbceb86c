from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from imgbuild.container import buildkit, podman
from imgbuild.container.buildkit import Buildx, Order
from imgbuild.container.buildkit_progress import Progress, short
from imgbuild.errors import ImgbuildError, InputError, ToolMissing, WorkFailed
from imgbuild.system import process as processes
from imgbuild.system.process import Result
from imgbuild.system.progress import Steps

DIGEST = "sha256:" + "a" * 64
ORDER = Order(
    title="docker builds small",
    context=Path("/images/small"),
    base=Path("/base"),
    digest=DIGEST,
    contexts={"wheels": "/wheels"},
    platforms=("linux/amd64",),
    arguments={"SOURCE_DATE_EPOCH": "1"},
    annotations={"linux/amd64": {"dev.x": "a b"}},
    secrets={"ca": Path("/ca.pem")},
)
NEW = Buildx(command=("docker", "buildx"), version=(0, 29))
STEP = "[venv 2/3] RUN --mount=type=bind,from=wheels,target=/w   pip \\\n install x"


def order(**changes: object) -> Order:
    return Order(**{**{name: getattr(ORDER, name) for name in Order.__struct_fields__}, **changes})


def words(**changes: object) -> list[str]:
    return buildkit.command(order(**changes), Path("/out"), NEW)


def test_a_build_has_no_network_and_no_notes_of_who_built_it():
    said = words()
    assert said[:3] == ["docker", "buildx", "build"]
    assert said[-1] == "/images/small"
    assert {
        "--network=none", "--provenance=false", "--sbom=false", "--platform=linux/amd64",
        f"--build-context=base=oci-layout:///base@{DIGEST}", "--build-context=wheels=/wheels",
        "--build-arg=SOURCE_DATE_EPOCH=1", "--secret=id=ca,src=/ca.pem", "--progress=rawjson",
        "--annotation=manifest:dev.x=a b",
    } <= set(said)  # fmt: skip
    (output,) = [word for word in said if word.startswith("--output=")]
    assert "rewrite-timestamp=true" in output
    assert not any(word.startswith(("--builder", "--cache")) for word in said)


def test_builders_and_caches_are_passed_on():
    cache = "type=registry,ref=host/name"
    said = words(builder="farm", cache_from=(cache,), cache_to=(cache,))
    assert {"--builder=farm", f"--cache-from={cache}", f"--cache-to={cache}"} <= set(said)


def test_annotations_of_several_platforms_are_kept_apart():
    both = ("linux/amd64", "linux/arm64")
    said = words(platforms=both, annotations={name: {"k": name} for name in both})
    assert "--platform=linux/amd64,linux/arm64" in said
    assert "--annotation=manifest[linux/arm64]:k=linux/arm64" in said


def test_paths_with_commas_are_quoted_as_csv():
    odd = Path("/a,b c/x")
    said = buildkit.command(order(secrets={"ca": odd}), odd / "out", NEW)
    assert '--secret=id=ca,"src=/a,b c/x"' in said
    (output,) = [word for word in said if word.startswith("--output=")]
    assert output.startswith('--output=type=oci,"dest=/a,b c/x/out",tar=false,')


def test_a_base_below_a_folder_with_a_colon_is_named_from_here(tmp_path, monkeypatch):
    here = tmp_path / "a:b"
    here.mkdir()
    monkeypatch.chdir(here)
    said = words(base=here / "build/base/small")
    assert f"--build-context=base=oci-layout://build/base/small@{DIGEST}" in said
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="no colon and no @") as caught:
        words(base=here / "build/base/small")
    assert "in the folder of the matrix" in str(caught.value.hint)


def test_what_is_only_compared_keeps_its_times():
    (output,) = [word for word in words(dated=False) if word.startswith("--output=")]
    assert "rewrite-timestamp" not in output


def test_an_older_buildx_tells_its_progress_in_words():
    old = Buildx(command=("docker-buildx",), version=(0, 12))
    assert "--progress=plain" in buildkit.command(ORDER, Path("/out"), old)


# -- progress


class Lines:
    """A progress that is fed, and the lines that people see."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.steps = Steps("title", self.seen.append, None)
        self.progress = Progress(self.steps)

    def vertex(self, digest: str, name: str, **more: object) -> None:
        self.progress.line(json.dumps({"vertexes": [{"digest": digest, "name": name, **more}]}))

    def log(self, digest: str, text: str) -> None:
        data = base64.b64encode(text.encode()).decode()
        self.progress.line(json.dumps({"logs": [{"vertex": digest, "data": data}]}))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    clock = iter(range(1000))
    monkeypatch.setattr("imgbuild.system.progress.time.monotonic", lambda: next(clock))
    return Lines()


def test_steps_are_told_as_they_end(lines):
    lines.vertex("a", STEP, started="1")
    lines.vertex("b", "[internal] load .dockerignore", started="1")
    lines.progress.line(
        json.dumps({"statuses": [{"vertex": "a", "id": "x", "current": 5, "total": 9}]})
    )
    lines.vertex("b", "[internal] load .dockerignore", started="1", completed="2")
    lines.vertex("c", "kept", started="1", completed="1", cached=True)
    lines.vertex("a", STEP, started="1", completed="2")
    assert len(lines.seen) == 1
    assert lines.seen[0].startswith("  [venv 2/3] RUN pip \\ install x: ")


def test_the_step_that_failed_is_told_with_its_last_lines(lines):
    for number, name in enumerate(("one", "two")):
        lines.vertex(str(number), name, started="1")
    for number in range(50):
        lines.log("0", f"line {number}\n")
    lines.log("1", "of another\n")
    lines.vertex("1", "two", started="1", error="context canceled: context canceled")
    lines.vertex("0", "one", started="1", error="exit code: 3")
    lines.vertex("1", "two", started="1", error="context canceled")
    lines.progress.line("Dockerfile:3")
    failure = lines.progress.failure()
    assert (failure.step, failure.error) == ("one", "exit code: 3")
    assert failure.lines == tuple(f"line {number}" for number in range(30, 50))
    assert failure.words == ("Dockerfile:3",)


@pytest.mark.parametrize(
    "text", ["{", '{"vertexes": 3}', '{"logs": [{"vertex": "a", "data": "%"}]}']
)
def test_lines_that_are_no_json_of_ours_do_not_stop_a_build(lines, text):
    lines.progress.line(text)
    assert lines.progress.failure().step == ""


def test_names_of_steps_are_one_line():
    assert short(STEP) == "[venv 2/3] RUN pip \\ install x"
    assert len(short("x" * 1000)) < 120


# -- versions

ENGINES_OWN = """\
Name:          default
Driver:        docker
Last Activity: 2026-11-21 18:07:47 +0000 UTC

Nodes:
Name:             default
Endpoint:         default
Status:           running
BuildKit version: {}
Platforms:        linux/amd64, linux/arm64
"""
FARM = """\
Name:   farm
Driver: kubernetes

Nodes:
Name:             farm0
Endpoint:         kubernetes:///farm
Status:           running
BuildKit version: v0.26.2
Platforms:        linux/amd64

Name:             farm1
Endpoint:         kubernetes:///farm
Status:           running
BuildKit version: v0.25.1
Platforms:        linux/arm64
"""
# What buildx says where no engine answers; its exit status is 0.
NOBODY = """\
Name:          default
Driver:
Error:         Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?

Nodes:
"""
# A builder that was never started, as `inspect` alone shows it.
IDLE = """\
Name:   farm
Driver: kubernetes

Nodes:
Name:     farm0
Endpoint: kubernetes:///farm
Status:   inactive
"""


class Shell:
    """`docker` and `buildx` on PATH, and what they answer. Without `engine` there is no docker."""

    def __init__(self, patch: pytest.MonkeyPatch, said: str, engine: str | None) -> None:
        self.said, self.engine = said, engine
        self.asked: list[list[str]] = []
        for module in ("buildkit", "engine"):
            patch.setattr(f"imgbuild.container.{module}.shutil.which", self._which)
        patch.setattr(processes, "run", self._run)

    def _which(self, name: str) -> str | None:
        own = {"buildx": "/usr/bin/buildx"} if self.engine is None else {"docker": "docker"}
        return own.get(name)

    def _run(self, words: list[str], **_: object) -> Result:
        if "inspect" in words:
            self.asked.append(words)
            # A builder is started only if that is asked for.
            return Result(0, self.said if "--bootstrap" in words else IDLE, "")
        if words[-1] == "version":
            return Result(0, "github.com/docker/buildx v0.29.1 abc", "")
        return Result(0 if self.engine else 1, self.engine or "", "")


@pytest.mark.parametrize(
    ("builder", "said", "engine", "expected"),
    [
        (None, ENGINES_OWN.format("v0.0.0+unknown"), "28.5.2", "docker 28.5.2"),
        (None, ENGINES_OWN.format("v0.25.0"), "28.5.2", "docker 28.5.2"),
        ("default", ENGINES_OWN.format("v0.0.0+unknown"), "28.5.2", "docker 28.5.2"),
        # Buildx is installed alone: nothing asks the engine.
        (None, ENGINES_OWN.format("v0.25.0"), None, "buildkit v0.25.0"),
        # The builder in use is not the engine's own.
        (None, FARM, "28.5.2", "buildkit v0.25.1 v0.26.2"),
        (None, FARM, None, "buildkit v0.25.1 v0.26.2"),
        ("farm", FARM, "28.5.2", "buildkit v0.25.1 v0.26.2"),
    ],
)
def test_who_builds_is_told_with_versions(monkeypatch, builder, said, engine, expected):
    shell = Shell(monkeypatch, said, engine)
    assert buildkit.version(builder) == f"{expected}, buildx v0.29.1"
    (words,) = shell.asked
    assert words[-1] == (builder or "--bootstrap")


def test_where_no_engine_answers_that_is_said(monkeypatch):
    Shell(monkeypatch, NOBODY, "")
    with pytest.raises(ToolMissing, match="docker does not answer"):
        buildkit.version(None)


def test_a_builder_that_cannot_be_started_is_named(monkeypatch):
    shell = Shell(monkeypatch, "", "28.5.2")
    run = shell._run

    def _run(words: list[str], **more: object) -> Result:
        failed = Result(1, "", "#1 booting\nERROR: context deadline exceeded\n")
        return failed if "inspect" in words else run(words, **more)

    monkeypatch.setattr(processes, "run", _run)
    with pytest.raises(InputError, match=r"no builder 'farm' that answers: ERROR: context dead"):
        buildkit.version("farm")


# -- errors


def failing(monkeypatch: pytest.MonkeyPatch, *said: str, version: str = "0.29.1") -> None:
    monkeypatch.setattr("imgbuild.container.buildkit.shutil.which", lambda name: f"/usr/bin/{name}")
    answer = Result(0, f"github.com/docker/buildx v{version} abc", "")
    monkeypatch.setattr(processes, "run", lambda *_, **__: answer)

    def _follow(_: object, line, **__: object) -> int:
        for text in said:
            line(text)
        return 1

    monkeypatch.setattr(processes, "follow", _follow)


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("ERROR: Cannot connect to the Docker daemon at x", ToolMissing, "DOCKER_HOST"),
        ('ERROR: no builder "farm" found', InputError, "docker buildx ls"),
        ("ERROR: OCI exporter is not supported for the docker driver", ToolMissing, "containerd"),
        ("ERROR: write /x: no space left on device", WorkFailed, "prune"),
        ("ERROR: something new", WorkFailed, "to repeat: docker buildx build"),
    ],
)
def test_causes_have_their_class_and_a_remedy(monkeypatch, said, kind, hint):
    failing(monkeypatch, said)
    with pytest.raises(ImgbuildError) as caught:
        buildkit.build(ORDER, Path("/out"))
    assert type(caught.value) is kind
    assert said in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_step_that_fails_is_named_without_its_whole_command(monkeypatch):
    error = 'process "/bin/sh -c a very long command" did not complete successfully: exit code: 3'
    vertex = {"digest": "a", "name": STEP, "started": "1", "error": error}
    failing(monkeypatch, json.dumps({"vertexes": [vertex]}))
    with pytest.raises(WorkFailed) as caught:
        buildkit.build(ORDER, Path("/out"))
    assert caught.value.message == (
        "docker builds small: step [venv 2/3] RUN pip \\ install x failed:"
        " it did not complete successfully: exit code: 3"
    )


def test_a_buildx_that_is_too_old_is_refused(monkeypatch):
    failing(monkeypatch, version="0.9.1")
    with pytest.raises(ToolMissing, match=r"too old: 0\.12"):
        buildkit.build(ORDER, Path("/out"))


def test_without_buildx_another_builder_is_named(monkeypatch):
    monkeypatch.setattr("imgbuild.container.buildkit.shutil.which", lambda _: None)
    with pytest.raises(ToolMissing) as caught:
        buildkit.find()
    assert "--builder podman" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"platforms": ("linux/amd64", "linux/arm64")}, "one architecture at a time"),
        ({"builder": "farm"}, "are Docker's"),
        ({"cache_to": ("x",)}, "are Docker's"),
    ],
)
def test_what_podman_cannot_do_is_refused(monkeypatch, change, told):
    monkeypatch.setattr(processes, "find", lambda name, remedy: name)
    with pytest.raises(InputError, match=told):
        podman.build(order(**change), Path("/out"), "podman")
