"""Creates a project for a CI, with three targets in a git repository, one of which can be broken.

The images are based on a Debian without a compiler, and pass the static tier of the smoke tests.
They have no pip, whose 450 modules would be most of what the tier imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference, parse_repository
from tests.support import sample_project, smoke_environment
from tests.support.docker_registry import OwnRegistry
from tests.support.local_index import LocalIndex
from tests.support.sample_project import TARGET, Project

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github/workflows"
OTHER, BROKEN = "other", "broken"
TARGETS = (TARGET, OTHER, BROKEN)
DEBIAN = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
# No machine of the tests has a GPU, and a GRPO step needs gigabytes.
SETTINGS = """\
version: 1
gate: [static]
runners:
  - {labels: [a-machine], arch: x86_64, disk: 20}
  - {labels: [another-machine], arch: arm64, disk: 20}
"""
TORCH = {
    f"torch/{name}.py": b"NAME = __name__\n"
    for name in (
        "__init__", "_inductor/__init__", "_inductor/compile_fx", "distributed/__init__",
        "distributed/fsdp",
    )
}  # fmt: skip
CAUSE = "no driver of the third kind"


def index() -> LocalIndex:
    """The sample project's index with pip, a stub of torch, and a wheel whose import fails."""
    index = sample_project.sample_index()
    index.published = [item for item in index.published if item.package != "torch"]
    index.wheel("torch", "2.6.0", ["nvidia-cublas-cu12==12.4.5.8"], files=TORCH)
    pip = smoke_environment.pip_wheel()
    index.add("pip", pip.name, pip.read_bytes())
    code = f"import helper\nVALUE = helper.VALUE\nraise OSError({CAUSE!r})\n".encode()
    index.wheel("thewheel", "3.0", ["helper"], files={"thewheel/__init__.py": code})
    return index


def create_project(folder: Path, index_url: str) -> Project:
    """Create the project, lock it and commit it."""
    project = Project(folder, index_url, cache=None)
    project.write(DEBIAN, user="imgbuild", uid=1000)
    text = (folder / "matrix.yaml").read_text()
    row = text.partition("targets:\n")[2]
    rows = (
        row.replace(f"  {TARGET}:", f"  {name}:").replace('thewheel: "1.0"', f'thewheel: "{pin}"')
        for name, pin in ((OTHER, "1.0"), (BROKEN, "3.0"))
    )
    (folder / "matrix.yaml").write_text(text + "".join(rows))
    (folder / "ci.yaml").write_text(SETTINGS)
    (folder / ".gitignore").write_text("/build/\n/.venv\n")
    (folder / ".venv").symlink_to(sys.prefix)
    project.run("lock", "--all", "--keep")
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit_all(folder, "three targets")
    return project


def change_pin(project: Project, target: str, version: str) -> None:
    """Change the version of `thewheel` in one target, lock it, and commit the result."""
    path = project.folder / "matrix.yaml"
    before, row, after = path.read_text().partition(f"  {target}:\n")
    target_text, comma, rest = after.partition("flashinfer")
    head, _, tail = target_text.partition('thewheel: "')
    path.write_text(f'{before}{row}{head}thewheel: "{version}{tail[3:]}{comma}{rest}')
    project.run("lock", target, "--keep")
    commit_all(project.folder, f"{target}: thewheel {version}")


def git(folder: Path, *words: str) -> str:
    """The output of a git command."""
    person = ["-c", "user.name=A Tester", "-c", "user.email=tester@example.invalid"]
    done = subprocess.run(
        ["git", *person, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit_all(folder: Path, words: str) -> str:
    """Commit all files, and return the hash of the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", words)
    return git(folder, "rev-parse", "HEAD")


@dataclass
class JobOutput:
    """The exit status of the scripts of a job, with the outputs of its steps and its summary."""

    status: int
    said: str
    outputs: dict[str, Any]
    summary: str


def run_job(
    project: Project, workflow: str, job: str, env: dict[str, str], folder: Path
) -> JobOutput:
    """Run the scripts of a job in this repository's workflows, as a CI runs them.

    `env` contains a value for each `${{ }}` in a step's environment. Steps that use an action are
    omitted. As in a CI, a script that fails ends the job, except for steps with `if: always()`.
    """
    steps = yaml.safe_load((WORKFLOWS / f"{workflow}.yml").read_text())["jobs"][job]["steps"]
    folder.mkdir(parents=True, exist_ok=True)
    outputs, summary = folder / "outputs", folder / "summary"
    outputs.write_text("")
    summary.write_text("")
    status, messages = 0, []
    for step in steps:
        if "run" not in step or (status and step.get("if") != "always()"):
            continue
        assert "${{" not in step["run"], step["run"]
        named = {name: value for name, value in step.get("env", {}).items() if "${{" not in value}
        missing = step.get("env", {}).keys() - named.keys() - env.keys()
        assert not missing, missing
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=project.folder,
            env={
                **project.environment(), **named, **env,
                "GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary),
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        messages.append(f"{step['name']}:\n{done.stdout}{done.stderr}")
        status = status or done.returncode
    pairs = (line.partition("=") for line in outputs.read_text().splitlines())
    job_outputs = {name: json.loads(value) for name, _, value in pairs}
    return JobOutput(
        status=status, said="\n".join(messages), outputs=job_outputs, summary=summary.read_text()
    )


def path_with_programs(folder: Path) -> str:
    """The PATH with `folder` as the first entry."""
    return f"{folder}:{os.environ['PATH']}"


@dataclass
class Sample:
    """The project, the registry, and the output folder of scripts."""

    project: Project
    registry: OwnRegistry
    base: str
    folder: Path

    def place(self, name: str) -> str:
        """A repository of the registry."""
        return f"{self.registry.host}/{name}"

    def tags(self, name: str) -> dict[str, str]:
        """The digests of the tags that belong to a target in a repository."""
        repository = parse_repository(self.place(name))
        client = RegistryClient(origin=True)
        tags = [tag for tag in client.tags(repository) if not tag.startswith("sha256-")]
        done = {}
        for tag in tags:
            named = client.resolve(ImageReference(repository.host, repository.name, tag=tag))
            assert named is not None
            done[tag] = named.digest
        return done

    def digest(self, target: str) -> str:
        """The digest in digests.json."""
        text: str = self.project.read(f"{target}/digests.json")["digest"]
        return text

    def job(self, workflow: str, job: str, **env: str) -> JobOutput:
        """Run the scripts of a workflow's job."""
        return run_job(self.project, workflow, job, env, self.folder / workflow / job)


def ci_script(sample: Sample, *words: str) -> Path:
    """Write the script of `ci script` with the given arguments."""
    text = sample.project.run("ci", "script", "--through", "root", *words).stdout
    sample.folder.mkdir(exist_ok=True)
    path = sample.folder / "job.sh"
    path.write_text(text)
    return path


def run_script(sample: Sample, path: Path, status: int = 0) -> str:
    """Run a script that must end with exit status `status`, and return its messages."""
    done = subprocess.run(
        ["bash", str(path)], cwd="/", env=sample.project.environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    return done.stderr


def step_states(sample: Sample) -> dict[str, tuple[int, int]]:
    """The exit code of each ended step, and the time when its file was written."""
    ends = {}
    for path in sorted((sample.project.folder / "build/ci").glob("*/*.json")):
        document = json.loads(path.read_bytes())  # no file is incomplete
        if isinstance(document, dict) and "key" in document:
            end = document["exit_code"], path.stat().st_mtime_ns
            ends[f"{path.parent.name} {path.stem}"] = end
    return ends
