"""Provides environments in which the commands of the docs run unchanged.

The mark of a block (doc_blocks.py) names the environment. imgbuild, the engines and the registry
are real. The targets have the documented names and are small (tests/data/docs/matrix.yaml). Their
packages come from an index on this machine and from Debian.

- `small`: a locked checkout of the project with these targets
- `home`: the folder above `small`, which is the home of the user
- `project`: a home folder, with the project as the catalogue, and with servers of a private index,
  of git repositories and of files as `index.example`, `git.example` and `files.example`
- `checkout`: a clone of this repository, with the index configured on this machine
- `empty`: a new folder, with the index configured on this machine
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import yaml

import imgbuild
from imgbuild.system.files import remove_tree
from tests.support import (
    ci_repository,
    docker_registry,
    dockerfile_project,
    needs,
    smoke_environment,
)
from tests.support.doc_blocks import HIDDEN, ROOT, CodeBlock, Command, output_matches
from tests.support.git_repository import GitRepository
from tests.support.local_index import LocalIndex, sdist_bytes, wheel_bytes
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

# The others use the index that this machine is configured for.
OWN_INDEX = ("small", "home", "project")
ENGINE = needs.require_docker20  # no images with the documented names exist there
DATA = ROOT / "tests/data/docs"
TEAM = ("index.example", "git.example", "files.example")
# A package in a git repository, with its own build backend.
BACKEND_FILES = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
    '[project]\nname = "team-tool"\nversion = "1.0"\n',
}
BACKEND = """\
import os, zipfile
def build_wheel(folder, settings=None, metadata=None):
    name, info = "{name}-{version}-py3-none-any.whl", "{name}-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("{name}.py", "")
        archive.writestr(f"{{info}}/METADATA",
                         "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(f"{{info}}/WHEEL",
                         "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{{info}}/RECORD", "")
    return name
"""
SECONDS = 300  # a command that takes longer hangs
COMPILER = ", gcc, libc6-dev, libpython3.11-dev"  # most of the time in which a base is made
# Files of a project in addition to its matrix, for make and engines.
LINKED_FILES = ("Makefile", "pyproject.toml", "tools/constraints.txt")
# Each torch with the runtime of its CUDA, by which that is known.
TORCHES = (
    ("2.6.0", "nvidia-cuda-runtime-cu12", "12.4.127"),
    ("2.7.0", "nvidia-cuda-runtime-cu12", "12.6.77"),
    ("2.11.0", "nvidia-cuda-runtime", "13.0.48"),
)
TOOLKITS = (
    ("12.4.1", ['nvidia-cuda-runtime-cu12==12.4.127; extra == "cudart"']),
    ("12.6.3", ['nvidia-cuda-runtime-cu12==12.6.77; extra == "cudart"']),
    ("13.0.0", ['nvidia-cuda-runtime==13.0.48; extra == "cudart"']),
)
# Packages with the names from which users start (smoke_tests/entry_points.json).
PACKAGES = {
    ("vllm", "0.8.5"): ("LLM", "SamplingParams"),
    ("vllm", "0.9.2"): ("LLM", "SamplingParams"),
    ("vllm", "0.26.0"): ("LLM", "SamplingParams"),
    ("trl", "0.18.2"): ("GRPOTrainer", "SFTTrainer", "DPOTrainer"),
    ("trl", "1.0.0"): ("GRPOTrainer", "SFTTrainer", "DPOTrainer"),
    ("tensordict", "0.9.1"): ("TensorDict",),
    ("tensordict", "0.12.0"): ("TensorDict",),
    ("wandb", "0.20.1"): (),
    ("einops", "0.8.1"): (),
}
MODULES = {
    "vllm": {
        "vllm/engine/__init__.py": b"",
        "vllm/engine/arg_utils.py": b"class AsyncEngineArgs: ...\n",
        "vllm/entrypoints/__init__.py": b"",
        "vllm/entrypoints/openai/__init__.py": b"",
        "vllm/entrypoints/openai/api_server.py": b"",
    },
    "trl": {"trl/scripts/__init__.py": b"", "trl/scripts/vllm_serve.py": b""},
    "tensordict": {"tensordict/nn.py": b"class TensorDictModule: ...\n"},
}


def docs_index() -> LocalIndex:
    """The packages in the docs, with only the modules that smoke tests import."""
    index = LocalIndex()
    for number, requires in TOOLKITS:
        index.wheel("cuda-toolkit", number, requires, uploaded="2026-01-01")
    for number, runtime, release in TORCHES:
        files = {**ci_repository.TORCH, **_package("torch", number, ())}
        index.wheel("torch", number, [f"{runtime}=={release}"], files=files)
        index.wheel(runtime, release)
    for (name, number), classes in PACKAGES.items():
        files = _package(name, number, classes) | MODULES.get(name, {})
        index.wheel(name, number, files=files)
    for number, bounds in (("2.7.0", "<2.8.0,>=2.7.0"), ("2.8.0", "<2.9.0,>=2.8.0")):
        index.wheel("torch-tensorrt", number, [f"torch{bounds}"])
    cuda = {"setup.py": b"from torch.utils.cpp_extension import CUDAExtension\n"}
    index.add("flash-attn", "flash_attn-2.7.4.tar.gz", sdist_bytes("flash_attn", "2.7.4", cuda))
    pip = smoke_environment.pip_wheel()
    index.add("pip", pip.name, pip.read_bytes())
    uv = version("uv")
    index.wheel(
        "uv", uv, tag="py3-none-manylinux_2_17_x86_64", files=dockerfile_project.uv_wheel_files()
    )
    index.wheel("uv", uv, tag="py3-none-manylinux_2_17_aarch64", files={"uv/__init__.py": b""})
    return index


def _package(name: str, number: str, classes: tuple[str, ...]) -> dict[str, bytes]:
    lines = [f"__version__ = {number!r}", *(f"class {each}: ..." for each in classes)]
    return {f"{name}/__init__.py": "\n".join([*lines, ""]).encode()}


@dataclass
class DocsShell:
    """A bash process that keeps the current folder and variables between commands."""

    folder: Path
    env: Mapping[str, str]
    spool: Path
    names: dict[str, str]  # text in the docs, its replacement in tests
    _bash: subprocess.Popen[str] = field(init=False)
    _status: Path = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self.spool.mkdir(parents=True)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.folder, env=dict(self.env), stdin=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.type("set -o pipefail")

    def type(self, words: str) -> tuple[int, str, str]:
        """Run `words`. Returns the exit status, stdout and stderr, with the names of the docs."""
        assert self._bash.stdin is not None
        self._count += 1
        out, err, end = (self.spool / f"{self._count}.{kind}" for kind in ("out", "err", "end"))
        line = f"eval {shlex.quote(self.with_local_names(words))} >{out} 2>{err} </dev/null"
        self._bash.stdin.write(f"{line}\necho $? >{end}.new; mv {end}.new {end}\n")
        self._bash.stdin.flush()
        limit = time.monotonic() + SECONDS
        while not end.exists():
            assert self._bash.poll() is None, f"the shell has ended: {words}"
            assert time.monotonic() < limit, f"not finished after {SECONDS} s: {words}"
            time.sleep(0.05)
        texts = (path.read_text(errors="replace") for path in (out, err))
        return (int(end.read_text()), *map(self.with_docs_names, texts))  # type: ignore[return-value]

    def cwd(self) -> Path:
        """The shell's current folder."""
        return Path(self.with_local_names(self.type("pwd")[1].strip()))

    def with_local_names(self, text: str) -> str:
        """`text` with names of the docs replaced by those of this environment."""
        for name, local_name in self.names.items():
            text = text.replace(name, local_name)
        return text

    def with_docs_names(self, text: str) -> str:
        """`text` with names of this environment replaced by those of the docs."""
        for name, local_name in reversed(self.names.items()):
            text = text.replace(local_name, name)
        return text

    def run(self, command: Command, block: CodeBlock) -> None:
        """Run a command of the docs and compare its status and output with the docs."""
        status, out, err = self.type(command.words)
        place = f"{block.path.name}:{command.line}: $ {command.words}\n"
        transcript = f"{place}status {status}\n{out}{err}"
        assert (status != 0) == command.fails, transcript
        if command.expected:
            printed = err if command.fails else out
            result = "\n".join(command.expected)
            shown = output_matches(command.expected, printed, whole=not command.fails)
            assert shown, f"{transcript}\nbut the docs show:\n{result}"

    def write(self, block: CodeBlock) -> None:
        """Write or merge a block into the file in its mark."""
        assert block.mark is not None
        path = self.cwd() / self.with_local_names(block.mark.file.replace("~/", "/home/me/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.with_local_names(block.text).replace(f"sha256:{HIDDEN}", f"sha256:{'0' * 64}")
        if block.mark.verb == "adds to":
            whole = _merge_values(yaml.safe_load(path.read_text()), yaml.safe_load(text))
            text = yaml.safe_dump(whole, sort_keys=False)
        path.write_text(text)

    def end(self) -> None:
        """Kill the shell and all its child processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        assert self._bash.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()
        self._bash.wait()


def _merge_values(whole: object, part: object) -> object:
    """`whole` with the values of `part`. Maps are merged by key."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return whole | {name: _merge_values(whole.get(name), value) for name, value in part.items()}
    return part


@dataclass
class Environments:
    """A locked project to copy, a running index and a running registry."""

    folder: Path
    project: Project
    registry: str
    team: FileSite
    count: int = 0

    @contextlib.contextmanager
    def shell(self, name: str) -> Iterator[DocsShell]:
        """A shell in a new environment with the given name."""
        self.count += 1
        place = self.folder / f"{name}{self.count}"
        home = place / "home/me"
        home.mkdir(parents=True)
        shutil.copytree(self.project.folder, home / "imgbuild", symlinks=True)
        begin = home / {"small": "imgbuild", "home": ".", "project": "."}.get(name, name)
        if name == "checkout":
            ci_repository.git(home, "clone", "--quiet", "--shared", str(ROOT), begin.name)
        begin.mkdir(exist_ok=True)
        given = dict(os.environ)
        if name in OWN_INDEX:
            given = {**self.project.environment(), "PIP_INDEX_URL": self.project.index_url}
        else:
            _configure(home)
        env = {**given, **ENGINE(), **_user_environment(home), "TMPDIR": str(place)}
        if name == "project":
            env["PYTHONPATH"] = str(with_catalogue(place / "site", self.project.folder))
        team = self.team.url("").rstrip("/")
        names = {
            **{f"https://{host}": f"{team}/{host}" for host in TEAM},
            "registry.inside.example": self.registry, "registry.example": self.registry,
            "/home/me": str(home),
        }  # fmt: skip
        shell = DocsShell(begin, env, place / "spool", names)
        try:
            yield shell
        finally:
            shell.end()
            remove_tree(place)


def with_catalogue(site: Path, project: Path) -> Path:
    """`site` with this imgbuild and `project` as its catalogue."""
    package = Path(imgbuild.__file__).parent
    for folder, absent in ((package, "data"), (package / "data", "catalogue")):
        target = site / "imgbuild" / folder.relative_to(package)
        target.mkdir(parents=True)
        for path in folder.iterdir():
            if path.name not in (absent, "__pycache__"):
                (target / path.name).symlink_to(path)
    (site / "imgbuild/data/catalogue").mkdir()
    for name in ("matrix.yaml", "images", "ci.yaml"):
        (site / "imgbuild/data/catalogue" / name).symlink_to(project / name)
    return site


def team_files(folder: Path) -> dict[str, bytes]:
    """The files on the servers of a team: an index, a git repository and a wheel."""
    rewards = LocalIndex()
    rewards.wheel("team-rewards", "1.4")
    repository = GitRepository(folder)
    backend = BACKEND.format(name="team_tool", version="1.0")
    repository.commit({**BACKEND_FILES, "own.py": backend, "team_tool.py": ""}, tag="v1.0")
    pages = {f"index.example/{path}": data for path, data in rewards.site_files(api=False).items()}
    git = {f"git.example/{p}": d for p, d in repository.dumb_files("team-tool.git").items()}
    file = "files.example/team_kernels-1.5-py3-none-any.whl"
    return {**pages, **git, file: wheel_bytes("team-kernels", "1.5")}


def _user_environment(home: Path) -> dict[str, str]:
    """The variables of a user whose home is `home`, with the cache of the current user."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{needs.SBIN}",
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "IMGBUILD_CACHE": os.environ.get("IMGBUILD_CACHE") or f"{cache}/imgbuild",
        "GIT_CONFIG_GLOBAL": str(DATA / "gitconfig"),
        "COSIGN_PASSWORD": "",
        "APPTAINER_NOHTTPS": "1",
        "NO_COLOR": "1",
    }


def _configure(home: Path) -> None:
    """Copy this machine's settings of pip and uv to `home`."""
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for name in ("pip", "uv"):
        if (settings / name).is_dir():
            shutil.copytree(settings / name, home / ".config" / name)


@contextlib.contextmanager
def serve_environments(folder: Path) -> Iterator[Environments]:
    """Lock the project, and serve its index and a registry."""
    needs.user_namespaces()
    with (
        serve_site(FileSite(files=docs_index().site_files())) as site,
        serve_site(FileSite(files=team_files(folder / "team"))) as team,
        docker_registry.serve_registry(folder / "registry") as registry,
    ):
        project = Project(folder / "project", site.url("simple"), cache=None)
        project.folder.mkdir()
        text = (DATA / "matrix.yaml").read_text(encoding="utf-8")
        if not needs.is_long_run():  # only pages that are long tests compile something
            text = text.replace(COMPILER, "")
        (project.folder / "matrix.yaml").write_text(text, encoding="utf-8")
        shutil.copy(DATA / "ci.yaml", project.folder)
        for name in LINKED_FILES:
            (project.folder / name).parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, project.folder / name)
        _environment(project.folder / ".venv")
        (project.folder / ".gitignore").write_text("/build/\n/.venv/\n")
        project.run("lock", "--all", "--keep")
        project.run("render", "--all")
        ci_repository.git(project.folder, "init", "--quiet", "--initial-branch=main")
        ci_repository.commit_all(project.folder, "three targets")
        ci_repository.git(project.folder, "branch", "release")
        try:
            yield Environments(folder, project, registry.host, team)
        finally:
            _drop_images()


def _drop_images() -> None:
    """Remove the images that the commands loaded into the engine."""
    docker, env = needs.require_tool("docker"), {**os.environ, **ENGINE()}
    listing = [docker, "image", "ls", "--quiet", "--filter", "label=dev.imgbuild.target"]
    listed = subprocess.run(listing, env=env, capture_output=True, text=True, check=True)
    images = sorted(set(listed.stdout.split()))
    if images:
        removing = [docker, "image", "rm", "--force", *images]
        subprocess.run(removing, env=env, capture_output=True, check=True)


def _environment(folder: Path) -> None:
    """Link this environment to the path at which `make` would create one."""
    folder.mkdir()
    (folder / "bin").symlink_to(Path(sys.executable).parent)
    for name in ("made", "ready", "ready-test"):
        (folder / name).touch()
