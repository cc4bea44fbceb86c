from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.container import buildkit, podman
from imgbuild.container.buildkit import Buildx, Order
from imgbuild.errors import ImgbuildError, InputError, ToolMissing, WorkFailed
from imgbuild.system import process as processes
from imgbuild.system.process import Result

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
        "--build-arg=SOURCE_DATE_EPOCH=1", "--secret=id=ca,src=/ca.pem", "--progress=auto",
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
    with pytest.raises(InputError, match="does not accept : or @") as caught:
        words(base=here / "build/base/small")
    assert "in the folder of the matrix" in str(caught.value.hint)


def test_what_is_only_compared_keeps_its_times():
    (output,) = [word for word in words(dated=False) if word.startswith("--output=")]
    assert "rewrite-timestamp" not in output


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
        for module in ("buildkit.shutil", "engine.programs"):
            patch.setattr(f"imgbuild.container.{module}.which", self._which)
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
    failing(monkeypatch, "#1 a step", said)
    with pytest.raises(ImgbuildError) as caught:
        buildkit.build(ORDER, Path("/out"))
    assert type(caught.value) is kind
    assert said in caught.value.message
    assert hint in str(caught.value.hint)


def test_an_error_has_the_end_of_the_output(monkeypatch):
    failing(monkeypatch, *(f"line {number}" for number in range(50)))
    with pytest.raises(WorkFailed) as caught:
        buildkit.build(ORDER, Path("/out"))
    lines = caught.value.message.splitlines()
    assert lines == ["docker builds small failed:", *(f"line {number}" for number in range(10, 50))]


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
    ("change", "result"),
    [
        ({"platforms": ("linux/amd64", "linux/arm64")}, "one architecture at a time"),
        ({"builder": "farm"}, "does not support --buildx-builder"),
        ({"cache_to": ("x",)}, "does not support --buildx-builder"),
    ],
)
def test_options_that_podman_does_not_support_are_an_error(monkeypatch, change, result):
    monkeypatch.setattr(processes, "find", lambda name, remedy: name)
    with pytest.raises(InputError, match=result):
        podman.build(order(**change), Path("/out"), "podman")
