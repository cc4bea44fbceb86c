"""Prepares the two builders that lab/benchmark.py compares, so that only the builds are timed."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from imgbuild.cache.store import Store
from imgbuild.lock.lock_file import Lock, read_lock
from imgbuild.lock.resolution import LockedFile
from imgbuild.plan.image_digests import read_digests
from imgbuild.values import Arch

import measuring

ARCH = Arch.parse(platform.machine())
IMGBUILD = Path(sys.executable).with_name("imgbuild")
ANSWER = ("python", "-c", "print('answer')")
TAG = "imgbuild-benchmark"
BASE_TAG = f"{TAG}-base"
DAEMON_PIDS = (Path("/run/imgbuild-engines/docker.pid"), Path("/var/run/docker.pid"))
DOCKERFILE = """\
FROM {base} AS warm
USER 0
RUN --network=none --mount=type=bind,source=.,target=/context ls /context/wheels

FROM {base}
USER 0
RUN --network=none --mount=type=bind,source=.,target=/context \\
    /context/uv venv --clear --python {python} {prefix} && \\
    VIRTUAL_ENV={prefix} /context/uv pip install --no-cache --offline --no-index \\
        --find-links /context/wheels --require-hashes --requirement /context/requirements.txt
ENV PATH={prefix}/bin:/usr/bin:/bin
"""


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with matrix.yaml and images/, and the measured target."""

    root: Path
    target: str


class PreparedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target whose inputs and layers are in the user's cache. `layers` contains layer sizes."""

    project: Project
    lock: Lock
    layers: dict[str, int]

    def inputs(self) -> list[LockedFile]:
        """Return all input files of the image."""
        resolution = self.lock.arch[ARCH]
        return [*resolution.wheels, *(built.wheel for built in resolution.built), *resolution.debs]

    def wheels(self) -> list[LockedFile]:
        """Return all installed wheels."""
        resolution = self.lock.arch[ARCH]
        return [*resolution.wheels, *(built.wheel for built in resolution.built)]


def prepare_target(project: Project, folder: Path) -> PreparedTarget:
    """Copy the project, and download all inputs of its target into the user's cache."""
    return change_project(project, {}, folder)


def change_project(project: Project, pins: Mapping[str, str], folder: Path) -> PreparedTarget:
    """Return a copy of the project, locked again if there are `pins`, and built once."""
    copy = Project(root=folder, target=project.target)
    folder.mkdir(parents=True)
    shutil.copytree(project.root / "images", folder / "images")
    matrix = yaml.safe_load((project.root / "matrix.yaml").read_text())
    matrix["targets"][project.target]["pins"].update(pins)
    if pins:
        (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False))
        _imgbuild(copy, "lock", "--keep", "--target", project.target)
    else:
        shutil.copy(project.root / "matrix.yaml", folder)
    # --verify reads every input, so that all are in the cache afterwards.
    _imgbuild(copy, *_build_command(copy, folder / "layout"), "--verify")
    lock = read_lock(folder / "images", project.target)
    digests = read_digests(folder / "images", lock)
    layers = {layer.digest: layer.size for layer in digests.arch[ARCH].layers}
    return PreparedTarget(project=copy, lock=lock, layers=layers)


class ImgbuildContender:
    """Runs imgbuild with a separate cache that contains only the inputs of the case."""

    def __init__(self, folder: Path, through: str, jobs: int | None) -> None:
        self._folder = folder
        self._through = through
        self._jobs = [] if jobs is None else ["--jobs", str(jobs)]

    def build(self, built: PreparedTarget) -> measuring.CommandMeasure:
        """Build an OCI layout from downloaded inputs."""
        self._fill_cache(built, None)
        command: list[str | Path] = [IMGBUILD, *_build_command(built, None), *self._jobs]
        return measuring.measure_command(command, folder=built.project.root, env=self._env)

    def answer(
        self, built: PreparedTarget, *, have: PreparedTarget | None
    ) -> measuring.CommandMeasure:
        """Build with all inputs downloaded, and run a command in the image.

        The image `have` is already in the cache, in the output folder and in the engine.
        """
        self._fill_cache(built, have)
        if self._through != "root":
            _run_quietly(self._through, "rmi", "--force", built.project.target)
        if have is not None:
            subprocess.run(
                self._script(have), cwd=have.project.root, env={**os.environ, **self._env},
                stdout=sys.stderr, check=True,
            )  # fmt: skip
            if built.project.root != have.project.root:
                (have.project.root / "build").rename(built.project.root / "build")
        return measuring.measure_command(
            self._script(built),
            folder=built.project.root,
            env=self._env,
            daemons=daemon_processes(),
        )

    def _script(self, built: PreparedTarget) -> list[str | Path]:
        words = ["run", built.project.target, "--through", self._through, *self._jobs]
        return [IMGBUILD, *words, "--", *ANSWER]

    def digest(self, built: PreparedTarget) -> measuring.CommandMeasure:
        """Print the digest from the lock."""
        command: list[str | Path] = [IMGBUILD, "digest", built.project.target]
        return measuring.measure_command(command, folder=built.project.root, env=self._env)

    @property
    def _env(self) -> dict[str, str]:
        return {"IMGBUILD_CACHE": str(self._folder / "cache"), "NO_COLOR": "1"}

    def _fill_cache(self, built: PreparedTarget, have: PreparedTarget | None) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(built.project.root / "build", ignore_errors=True)
        self._folder.mkdir(parents=True)
        master, store = Store.open(), Store.open(self._folder / "cache")
        required = {
            item.sha256: item for built in (built, have) if built for item in built.inputs()
        }
        with store.scratch() as scratch:
            for sha256 in required:
                _link(master.file(sha256), scratch / sha256)
                store.add_file(scratch / sha256, sha256)
            for digest in have.layers if have else ():
                _link(master.blob(digest), scratch / "blob")
                store.add_blob(scratch / "blob", digest)


class DockerContender:
    """Runs `docker build` with uv and wheels from the build context, on a base from imgbuild."""

    def __init__(self, folder: Path) -> None:
        if "io.containerd.snapshotter" not in _output("docker", "info", "-f", "{{.DriverStatus}}"):
            sys.exit("no Docker with the containerd image store is running: run tools/engines")
        self._folder = folder
        self._context = folder / "context"
        self._layers: dict[Path, dict[str, int]] = {}
        self._base = ""

    def version(self) -> str:
        """Return the engine's version."""
        return _output("docker", "version", "--format", "{{.Server.Version}}").strip()

    def prepare(self, built: PreparedTarget) -> None:
        """Write the build context and transfer it to BuildKit before the measured runs."""
        self._load_base(built)
        shutil.rmtree(self._context, ignore_errors=True)
        wheels = self._context / "wheels"
        wheels.mkdir(parents=True)
        master = Store.open()
        for wheel in built.wheels():
            _link(master.file(wheel.sha256), wheels / wheel.file)
        _link(IMGBUILD.with_name("uv"), self._context / "uv")
        images = built.project.root / "images" / built.project.target
        shutil.copy(images / f"requirements-{ARCH}.txt", self._context / "requirements.txt")
        text = DOCKERFILE.format(
            base=BASE_TAG, python=built.lock.base.interpreter, prefix=built.lock.settings.prefix
        )
        (self._context / "Dockerfile").write_text(text)
        words = ["--quiet", "--target=warm", "--output=type=cacheonly"]
        _run_checked("docker", "buildx", "build", *words, self._context)

    def answer(self, *, cached: bool) -> measuring.CommandMeasure:
        """Run `docker build` with the prepared context, and a command in the image.

        With `cached`, the results of earlier builds are used.
        """
        words = ["--provenance=false", "--sbom=false", "--progress=plain", f"--tag={TAG}"]
        if not cached:
            self._forget_layers()
            words.append("--no-cache")
        build = shlex.join(["docker", "buildx", "build", *words, str(self._context)])
        run = shlex.join(["docker", "run", "--rm", TAG, *ANSWER])
        return measuring.measure_command(
            ["sh", "-c", f"{build} && {run}"], daemons=daemon_processes()
        )

    def ensure_image(self, built: PreparedTarget) -> None:
        """Build the image of `built`, unless Docker has it and the build cache has its steps."""
        self.prepare(built)
        _run_checked(
            "docker", "buildx", "build", "--provenance=false", f"--tag={TAG}", self._context
        )
        self._layers[built.project.root] = _saved_layers()

    def layers(self, built: PreparedTarget) -> dict[str, int]:
        """Return the compressed size of each layer of `built`. A missing image is built."""
        if built.project.root not in self._layers:
            self.ensure_image(built)
        return self._layers[built.project.root]

    def remember_layers(self, built: PreparedTarget) -> dict[str, int]:
        """Store the layers of the latest image as the layers of `built`."""
        self._layers[built.project.root] = _saved_layers()
        return self._layers[built.project.root]

    def remove_images(self) -> None:
        """Remove the images and their BuildKit cache."""
        self._forget_layers()
        _run_quietly("docker", "rmi", "--force", BASE_TAG)
        _run_quietly("docker", "builder", "prune", "--force", "--filter", "type=source.local")

    def _forget_layers(self) -> None:
        _run_quietly("docker", "rmi", "--force", TAG)
        _run_quietly("docker", "builder", "prune", "--force", "--filter", "type=regular")

    def _load_base(self, built: PreparedTarget) -> None:
        base = ",".join(deb.sha256 for deb in built.lock.arch[ARCH].debs)
        if base == self._base:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        archive = self._folder / "base.tar"
        words = [*_build_command(built, archive), "--only", "base", "--format", "docker-archive"]
        _imgbuild(built.project, *words)
        output = _output("docker", "load", "--input", archive)
        archive.unlink()
        _run_checked("docker", "tag", output.strip().rpartition(": ")[2].split()[-1], BASE_TAG)
        self._base = base


def daemon_processes() -> list[int]:
    """Return the process IDs of Docker's daemon, which builds in child processes."""
    pid_text = next((path.read_text() for path in DAEMON_PIDS if path.exists()), "")
    return [int(pid_text)] if pid_text.strip() else []


def _saved_layers() -> dict[str, int]:
    documents: dict[str, bytes] = {}
    with (
        subprocess.Popen(["docker", "image", "save", TAG], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            content = archive.extractfile(member) if member.size < 1 << 20 else None
            if content is not None:
                documents[member.name] = content.read()
    manifest = json.loads(documents["index.json"])
    while "manifests" in manifest:
        digest = manifest["manifests"][0]["digest"]
        manifest = json.loads(documents[f"blobs/sha256/{digest.removeprefix('sha256:')}"])
    return {layer["digest"]: layer["size"] for layer in manifest["layers"]}


def _build_command(what: PreparedTarget | Project, output: Path | None) -> list[str]:
    project = what if isinstance(what, Project) else what.project
    words = ["build", "--target", project.target, "--arch", ARCH.value]
    return words if output is None else [*words, "--output", str(output)]


def _imgbuild(project: Project, *words: str) -> None:
    command: list[str | Path] = [IMGBUILD, *words, "--quiet"]
    subprocess.run(command, cwd=project.root, stdout=sys.stderr, check=True)


def _link(source: Path | None, place: Path) -> None:
    if source is None:
        sys.exit(f"{place.name} is not in the cache; build the target, and run the benchmark again")
    try:
        place.hardlink_to(source)
    except OSError:  # another file system
        shutil.copyfile(source, place)
        place.chmod(source.stat().st_mode)


def _run_checked(*command: str | Path) -> None:
    subprocess.run(command, stdout=sys.stderr, check=True)


def _run_quietly(*command: str | Path) -> None:
    subprocess.run(command, capture_output=True, check=False)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
