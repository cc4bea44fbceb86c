"""Tests that verbs run no programs and read no settings of an untrusted folder."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from imgbuild.cli._app import app
from imgbuild.system import git as repositories
from imgbuild.system import process
from tests.support import images, memory_registry, prepared_program, sample_project, traps
from tests.support.memory_registry import Registry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site
from tests.support.traps import Traps

pytestmark = pytest.mark.timeout(900)  # one fixture runs all verbs
IMAGE, MIRROR = "{registry}/me/image", "{registry}/me/mirror"
IMGBUILD = Path(sys.executable).with_name("imgbuild")
LOCKED = ("--lock={folder}/images/small", "--image=oci:{folder}/build/small")
PLAIN = ("--plain-http", "{registry}")
# Arguments of the verbs, and their exit statuses: 6 if a program is missing. `NOWHERE` replaces the
# engines and the cluster of this machine, so that these verbs fail everywhere. Without a
# configuration Slurm queries DNS for one for a minute; an empty one is refused immediately.
CASES: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("list", (), (0,)),
    ("show", (TARGET,), (0,)),
    ("build", (TARGET, "--jobs=2", "--output={out}"), (0,)),
    ("build", (TARGET, "--format=sif", "--output={out}.sif"), (0, 6)),
    ("build", (TARGET, "--on=slurm", "--no-wait"), (1, 6)),
    ("diagnose", ("matrix.yaml",), (0,)),
    ("site", ("--output={out}",), (0,)),
    ("explain", ("IMG102",), (0,)),
    ("run", (TARGET, "--through=root", "--", "/usr/bin/nothing"), (127,)),
    ("shell", (TARGET, "--through=root", "--dry-run"), (2,)),
    ("add", ("helper",), (2,)),
    ("remove", ("helper",), (2,)),
    ("init", ("new", "--extends=small", *LOCKED), (0,)),
    ("lock", (TARGET,), (0,)),
    ("outdated", (TARGET,), (0,)),
    ("update", ("--to=other",), (2,)),
    ("resolve", ("torch==2.6.0", "--cuda=12.4", "--solve"), (8,)),
    ("audit", (TARGET,), (0,)),
    ("audit", ("--environment",), (2,)),
    ("doctor", (TARGET,), (0,)),
    ("cves", (TARGET, "--osv={site}"), (7,)),
    ("why", ("helper", TARGET), (0,)),
    ("tree", (TARGET,), (0,)),
    ("load", (TARGET,), (6,)),
    ("render", (TARGET, "--format=pylock"), (0,)),
    ("smoke", (TARGET, "--through=here", "--tier=static"), (1,)),
    ("diff", (f"{TARGET}@HEAD~1", TARGET), (0,)),
    ("digest", (TARGET,), (0,)),
    ("push", (TARGET, IMAGE, *PLAIN), (0,)),
    ("pull", (f"{IMAGE}:{TARGET}", "--output={out}", *PLAIN), (0,)),
    ("sign", (f"{IMAGE}:{TARGET}", "--keyless", "--target", TARGET, *PLAIN), (1, 6)),
    ("verify", (f"{IMAGE}:{TARGET}", "--rebuild", *PLAIN), (0,)),
    ("registry ls", (IMAGE, *PLAIN), (0,)),
    ("registry tag", (f"{IMAGE}:{TARGET}", "another", *PLAIN), (0,)),
    ("registry gc", (IMAGE, *PLAIN), (0,)),
    ("registry mirror push", (TARGET, MIRROR, *PLAIN), (0,)),
    ("registry mirror use", (MIRROR, "--matrix={copy}"), (0,)),
    ("registry mirror status", (TARGET, MIRROR, *PLAIN), (0,)),
    ("slurm", (TARGET, "--submit", "--", "true"), (1, 6)),
    ("ci jobs", ("--all", "--changed-since=HEAD~1"), (0, 3)),
    ("ci script", ("--all", "--no-push"), (0,)),
    ("ci report", (), (2,)),
    ("cache info", (), (0,)),
    ("cache list", (), (0,)),
    ("cache prune", ("--max-size=1G",), (0,)),
    ("cache clear", (), (0,)),
    ("cache verify", (), (0,)),
    ("help", ("build",), (0,)),
)
NEW_CACHE = ("build", "cache prune", "cache clear")  # so that layers are made, and none is removed
# In a new interpreter; the other verbs differ only after it has started.
STARTED = ("list", "lock", "build", "run", "audit")
NOWHERE = {"DOCKER_HOST": "unix:///nowhere", "CONTAINER_HOST": "unix:///nowhere",
           "SLURM_CONF": "/dev/null"}  # fmt: skip


def verbs(command: Any = None, name: str = "") -> Iterator[str]:
    """The names of all verbs."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield name
        return
    for word, inner in command.commands.items():
        yield from verbs(inner, f"{name} {word}".strip())


@dataclass(frozen=True)
class Outcome:
    """The result of a verb with the traps that were triggered."""

    done: subprocess.CompletedProcess[str]
    triggered: dict[str, str]


@dataclass
class Foreign:
    """A locked, built and pushed project with traps in its folder and its parent."""

    folder: Path
    project: Project
    registry: Registry
    traps: Traps
    site: FileSite

    def run(self, number: int) -> Outcome:
        """Run a case in the project's folder."""
        name, words, _ = CASES[number]
        place = self.folder / f"case-{number}"
        (place / "flags").mkdir(parents=True)
        shutil.copy(self.project.folder / "matrix.yaml", place)
        values = {
            "registry": self.registry.host,
            "folder": str(self.project.folder),
            "site": self.site.url("none"),
            "out": str(place / "out"),
            "copy": str(place / "matrix.yaml"),
        }
        env = self.environment(place)
        if name in NEW_CACHE:
            env["IMGBUILD_CACHE"] = str(place / "cache")
        arguments = [*name.split(), *(word.format(**values) for word in words)]
        # The parent folder has traps, too, and no matrix yet.
        folder = self.project.folder.parent if name == "init" else self.project.folder
        if name in STARTED:
            done = subprocess.run(
                [IMGBUILD, *arguments],
                cwd=folder, env=env, capture_output=True, text=True, check=False,
            )  # fmt: skip
        else:
            done = prepared_program.run_prepared(arguments, cwd=folder, env=env)
        return Outcome(done, self.traps.triggered(place / "flags"))

    def environment(self, place: Path) -> dict[str, str]:
        """Environment variables of a user whose PATH begins with the current folder."""
        env = {**self.project.environment(), **NOWHERE, "TRAP_FLAGS": str(place / "flags")}
        env |= {"PATH": f":.:{env['PATH']}", "HOME": str(place), "XDG_CONFIG_HOME": str(place)}
        env["PIP_INDEX_URL"] = self.project.index_url
        for word in ("UV_DEFAULT_INDEX", "VIRTUAL_ENV", "CONDA_PREFIX", "XDG_STATE_HOME"):
            env.pop(word, None)
        return env


@pytest.fixture(scope="module", name="prepared")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    folder = tmp_path_factory.mktemp("foreign")
    images.python_base(folder)
    index = sample_project.sample_index()
    above = folder / "above"
    with (
        serve_site(FileSite(files=index.site_files())) as site,
        memory_registry.serve(Registry()) as there,
    ):
        project = Project(above / "project", site.url("simple"), cache=folder / "cache")
        project.write(
            sample_project.registry_base(sample_project.serve_image(site, folder / "base", "base"))
        )
        foreign = Foreign(folder, project, there, Traps(folder / "flags"), site)
        image = f"{there.host}/me/image"
        for words in (["lock"], ["build"], ["push", image, "--plain-http", there.host]):
            project.run(words[0], TARGET, *words[1:])
        (project.folder / "build/small.sif").touch()  # for jobs of Slurm
        foreign.traps.plant(project.folder)
        foreign.traps.plant(above)
        files = [
            "matrix.yaml",
            *(f"images/{TARGET}/{each}" for each in ("lock.json", "digests.json")),
        ]
        foreign.traps.repository(project.folder, files)
        yield foreign


@pytest.fixture(scope="module", name="outcomes")
def _outcomes(prepared: Foreign) -> list[Outcome]:
    # Two at once, because some wait for an interpreter to start. The cases of a verb group run in
    # their order: `registry mirror status` expects the files of `registry mirror push`.
    groups = itertools.groupby(range(len(CASES)), lambda number: CASES[number][0].split()[0])
    with ThreadPoolExecutor(2) as threads:
        ran = threads.map(
            lambda numbers: [prepared.run(number) for number in numbers],
            [list(numbers) for _, numbers in groups],
        )
        return [outcome for outcomes in ran for outcome in outcomes]


def test_all_commands_are_tested_in_a_foreign_folder() -> None:
    assert set(verbs()) == {name for name, _, _ in CASES}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, _, _ in CASES])
def test_command_runs_no_code_from_the_current_folder(outcomes: list[Outcome], number: int) -> None:
    outcome = outcomes[number]
    assert outcome.triggered == {}, outcome.done.stderr
    assert outcome.done.returncode in CASES[number][2], outcome.done.stdout + outcome.done.stderr
    # The output of a failed smoke test is indented.
    assert "\nTraceback" not in f"\n{outcome.done.stderr}"


def test_array_task_runs_no_code_from_the_current_folder(
    prepared: Foreign, outcomes: list[Outcome], tmp_path: Path
) -> None:
    assert outcomes
    [script] = prepared.project.folder.glob("build/slurm/build/*/array.sh")
    (tmp_path / "flags").mkdir()
    env = {**prepared.environment(tmp_path), "PATH": os.environ["PATH"]}  # that of a node
    env |= {"SLURM_ARRAY_TASK_ID": "0", "SLURM_CPUS_ON_NODE": "1", "SLURMD_NODENAME": "node"}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=False)
    assert prepared.traps.triggered(tmp_path / "flags") == {}
    assert done.returncode == 0, done.stderr


def test_imgbuild_run_as_python_module_imports_no_code_from_the_current_folder(
    prepared: Foreign, tmp_path: Path
) -> None:
    planted, flags = Traps(tmp_path / "traps"), tmp_path / "flags"
    flags.mkdir()
    for name in ("pickle", "json", "msgspec", "yaml", "typer", "rich"):
        planted.module(tmp_path / f"{name}.py")
    env = {**prepared.environment(tmp_path), "IMGBUILD_CACHE": str(tmp_path / "cache")}
    words = ["build", TARGET, "--jobs=2", f"--matrix={prepared.project.folder}/matrix.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", *words, "--output=out"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert planted.triggered(flags) == {}
    assert done.returncode == 0, done.stderr


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> tuple[Path, Traps]:
    folder, planted = tmp_path / "checkout", Traps(tmp_path / "flags")
    folder.mkdir()
    (folder / "file").write_text("text\n")
    planted.repository(folder, ["file"])
    return folder, planted


@pytest.mark.parametrize("words", [
    ["log", "--patch"], ["cat-file", "blob", "HEAD:./file"], ["rev-parse", "HEAD:./file"],
    ["grep", "text", "HEAD"], ["ls-tree", "HEAD"], ["rev-list", "HEAD"],
    ["remote", "get-url", "origin"],
], ids=lambda words: words[0])  # fmt: skip
def test_reading_a_repository_runs_none_of_its_code(checkout, words) -> None:
    folder, planted = checkout
    assert repositories.run_git(folder, *words).status == 0
    assert planted.triggered() == {}


@pytest.mark.parametrize("words", [["status"], ["log"], ["update-index", "--refresh"]])
def test_git_runs_no_hooks_or_monitors(checkout, words) -> None:
    folder, planted = checkout
    for name in (".gitattributes", ".git/info/attributes"):
        (folder / name).write_text("")  # without filters: their names are any that one chooses
    process.run_command(["git", *words], cwd=folder, check=False)
    assert planted.triggered() == {}


def test_missing_git_object_is_not_fetched(checkout) -> None:
    folder, planted = checkout
    blob = repositories.run_git(folder, "rev-parse", "HEAD:./file").stdout.strip()
    traps.git(folder, "config", "extensions.partialClone", "origin")
    (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    assert repositories.run_git(folder, "cat-file", "blob", blob).status != 0
    assert planted.triggered() == {}


def test_bare_repository_is_not_read(tmp_path: Path) -> None:
    planted, folder = Traps(tmp_path / "flags"), tmp_path / "folder"
    folder.mkdir()
    traps.git(tmp_path, "init", "--quiet", "--bare", "bare")
    planted.bare(folder)
    done = repositories.run_git(folder, "rev-parse", "--git-dir")
    assert done.status != 0
    assert "safe.bareRepository" in done.stderr
    assert planted.triggered() == {}
