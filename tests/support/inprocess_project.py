"""Creates a project whose verbs run in this process: a matrix, a lock, digests and a filled cache.

The cache has a small layer of the base with a matching record. Wheels are real, and the verbs build
their layers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from imgbuild.assemble import layer_contents
from imgbuild.cache.store import Store
from imgbuild.cli import main
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Resolution, Wheel
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import find_project
from imgbuild.oci.layer import LayerRecord, write_layer
from imgbuild.oci.tar import LayerMember
from imgbuild.plan import current, image_digests
from imgbuild.plan import plan as plans
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.system.console import Console, console
from imgbuild.values import Arch
from tests.support import samples
from tests.support.matrix_text import VALID_MATRIX

TARGET = "cu124-vllm"
UNLOCKED = "cu130-vllm"
PACKAGES = {
    "pip": "25.0",
    "setuptools": "80.0",
    "torch": "2.6.0",
    "trl": "0.18.2",
    "vllm": "0.8.5.post1",
}
SECOND = f"""
  {UNLOCKED}:
    summary: a new image
    base: debian-12
    cuda: "13.0"
    arch: [x86_64, arm64]
    as_of: 2026-09-27
    gpu: ["9.0"]
    pins: {{torch: "2.11.0"}}
    flashinfer: {{mode: "off", reason: there is no wheel}}
"""


@dataclass(frozen=True)
class Answer:
    """The exit status and output of a command."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class SampleProject:
    """The project in the folder where the test runs."""

    folder: Path
    lock: Lock
    target_digests: TargetDigests
    wheels: dict[str, Wheel]

    @property
    def matrix(self) -> Path:
        """The path of the matrix."""
        return self.folder / "matrix.yaml"

    def edit(self, old: str, new: str) -> None:
        """Replace a text that occurs once in the matrix."""
        text = self.matrix.read_text()
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        self.matrix.write_text(text.replace(old, new))


def enter_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create and enter a folder for a project below `folder`, next to a cache folder."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(folder / "cache"))
    project = folder / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def write_project(folder: Path) -> SampleProject:
    """Write a matrix, lock and digests into `folder`, and the inputs into the cache."""
    (folder / "matrix.yaml").write_text(VALID_MATRIX + SECOND.lstrip("\n"))
    store = Store.open()
    spool = folder / "spool"
    spool.mkdir()
    wheels = {
        package: samples.add_to_store(
            store, samples.write_wheel(spool, package, version), package, version
        )
        for package, version in PACKAGES.items()
    }
    spool.rmdir()
    matrix = load_matrix(folder / "matrix.yaml")
    lock, target_digests = lock_target(folder, matrix, TARGET, wheels, (Arch.X86_64,))
    store.release()
    return SampleProject(folder=folder, lock=lock, target_digests=target_digests, wheels=wheels)


def lock_target(
    folder: Path, matrix: Matrix, target: str, wheels: Mapping[str, Wheel], arches: Iterable[Arch]
) -> tuple[Lock, TargetDigests]:
    """Write lock and digests of `target` with `wheels`, which are cached, on each of `arches`."""
    store = Store.open()
    resolution = Resolution(
        wheels=tuple(wheels[package] for package in sorted(wheels)),
        debs=(samples.deb("g++"), samples.deb("python3")),
    )
    lock = lock_file.make_lock(matrix, target, dict.fromkeys(arches, resolution))
    records = {}
    for layer in (layer for arch in lock.arch for layer in plans.create_plan(lock, arch).layers):
        if isinstance(layer.recipe, plans.DebianRecipe):
            records[layer.id] = _base(store)
        else:
            job = layer_contents.LayerJob(layer=layer, record=None, keep=False)
            records[layer.id] = layer_contents.make_layer(job, store, lambda _: None).record
    target_digests = image_digests.compute_digests(lock, records)
    current.write_locked(find_project(folder), lock, target_digests)
    return lock, target_digests


def _base(store: Store) -> LayerRecord:
    text = b"root:x:0:0::/root:/bin/sh\n"
    with store.scratch() as scratch:
        with (scratch / "blob").open("wb") as sink:
            members = [LayerMember(path="etc/passwd", size=len(text), content=text)]
            record = write_layer(members, sink, advance=lambda _: None)
        store.add_blob(scratch / "blob", record.digest)
    return record


def read_json(answer: Answer) -> Any:
    """The JSON output of a command, which must have succeeded."""
    assert answer.status == 0, answer.stderr
    return json.loads(answer.stdout)


def damage_wheel(sample: SampleProject, package: str) -> Wheel:
    """Replace the bytes of the cached wheel of `package`."""
    wheel = sample.wheels[package]
    path = Store.open().file(wheel.sha256)
    assert path is not None
    path.chmod(0o644)
    other = samples.write_wheel(sample.folder, package, wheel.version, {"other.py": b"VALUE = 2\n"})
    path.write_bytes(other.read_bytes())
    other.unlink()
    return wheel


def write_other_digests(sample: SampleProject, digest: str) -> None:
    """Write digests in which the layer `trl` has the digest `digest`."""
    records = image_digests.layer_records(sample.target_digests)
    (layer,) = [
        each for each in sample.target_digests.arch[Arch.X86_64].layers if each.name == "trl"
    ]
    records[layer.id] = msgspec.structs.replace(records[layer.id], digest=digest)
    current.write_locked(
        find_project(sample.folder),
        sample.lock,
        image_digests.compute_digests(sample.lock, records),
    )


def unwrap_text(text: str) -> str:
    """`text` without line breaks and indents."""
    return " ".join(text.split())


class Command:
    """Runs imgbuild's `main` in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, *arguments: str, status: int | None = None) -> Answer:
        """Run `imgbuild ARGUMENTS`, and return the output. It must exit with `status`, if given."""
        self._patch.setattr(sys, "argv", ["imgbuild", *arguments])
        # Its state of the terminal is only for this command.
        with contextlib.suppress(AttributeError):
            del console._terminal
        Console.configure(console, verbosity=0, json=False)
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(ends=False)
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        code = ended.value.code
        answer = Answer(status=code if isinstance(code, int) else 0, stdout=out, stderr=err)
        assert status in (None, answer.status), f"status {answer.status}: {err}"
        return answer
