"""Provides the project of `inprocess_project` with a registry, for tests of push and pull."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.matrix.load import load_matrix
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.publish import push
from imgbuild.publish.push import PushContext, PushedTarget
from imgbuild.publish.push_plan import PushPlan, push_plan
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference, Repository
from imgbuild.values import Arch
from tests.support import inprocess_project, memory_registry
from tests.support.inprocess_project import TARGET, UNLOCKED, SampleProject
from tests.support.memory_registry import Registry
from tests.support.memory_registry_values import ReceivedRequest

DAY = datetime.date(2026, 11, 21)
NAME = "me/rl"
BOTH = UNLOCKED  # the target that is locked for two architectures
TAGS = (TARGET, f"{TARGET}-20261121")


@dataclass
class Place:
    """A project with a registry and the requests that pushes send to it."""

    sample: SampleProject
    registry: Registry

    @property
    def repository(self) -> Repository:
        """The repository for pushes."""
        return self.registry.repository(NAME)

    def work(self, *mounts: str, tag: bool = True, attach: bool = False) -> PushContext:
        """The settings of a push, with short waits."""
        session = open_session(self.sample.matrix, SessionOptions(offline=True))
        return PushContext(
            client=RegistryClient(first_wait=0.001, attempts=3, origin=True),
            repository=self.repository,
            mounts=tuple(self.registry.repository(name) for name in mounts),
            project=session.project,
            inputs=open_inputs(session),
            processes=1,
            tag=tag,
            attach=attach,
        )

    def plan(self, *, only_base: bool = False) -> PushPlan:
        """The push plan of the target with one architecture."""
        sample = self.sample
        return push_plan(
            sample.lock, sample.target_digests, (Arch.X86_64,), date=DAY, only_base=only_base
        )

    def both(self, *arches: Arch) -> PushPlan:
        """The push plan of a target locked for two architectures, for all or some of them."""
        matrix = load_matrix(self.sample.matrix)
        lock, target_digests = inprocess_project.lock_target(
            self.sample.folder, matrix, BOTH, self.sample.wheels, Arch
        )
        return push_plan(lock, target_digests, arches or tuple(Arch), date=DAY)

    def push(self) -> PushedTarget:
        """Push the target with one architecture."""
        return push.push_target(self.work(), self.plan())

    def tags(self) -> dict[str, str]:
        """The tags of the repository."""
        return {tag: digest for (_, tag), digest in self.registry.tags.items()}

    def reference(self, tag: str) -> ImageReference:
        """An image in the repository, by tag."""
        return ImageReference(self.registry.host, NAME, tag)

    def writes(self) -> list[ReceivedRequest]:
        """The requests that have changed the registry so far."""
        return [
            request for request in self.registry.requests if request.method not in ("GET", "HEAD")
        ]

    def forget(self, monkeypatch: pytest.MonkeyPatch, *packages: str) -> Store:
        """Switch to a cache with only the wheels of `packages`."""
        old, place = Store.open(), self.sample.folder.parent / "another-cache"
        monkeypatch.setenv("IMGBUILD_CACHE", str(place))
        new = Store.open()
        for package in packages:
            wheel = self.sample.wheels[package]
            path = old.file(wheel.sha256)
            assert path is not None
            with new.scratch() as scratch:
                new.add_file(Path(shutil.copy(path, scratch / "wheel")), wheel.sha256)
        return new


def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A `Place` in `tmp_path`, without this machine's settings."""
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.delenv("IMGBUILD_CACHE_SIZE", raising=False)
    folder = inprocess_project.enter_folder(tmp_path, monkeypatch)
    with memory_registry.serve(Registry()) as registry:
        yield Place(sample=inprocess_project.write_project(folder), registry=registry)
