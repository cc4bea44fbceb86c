"""Provides a registry in memory and a client without this machine's settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.registry.client import RegistryClient
from tests.support import memory_registry
from tests.support.memory_registry import Registry


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory_registry.isolate_logins(monkeypatch, tmp_path)


@pytest.fixture(name="registry")
def _registry() -> Iterator[Registry]:
    with memory_registry.serve(Registry()) as registry:
        yield registry


@pytest.fixture(name="client")
def _client() -> RegistryClient:
    return RegistryClient(attempts=3, first_wait=0.001, timeout=(5, 5))
