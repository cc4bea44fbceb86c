"""Tests that an audit with several processes gives the same facts in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.audit.packages import reading
from imgbuild.audit.packages.content import LocalContent
from imgbuild.audit.packages.reading import (
    ReaderProcesses,
    ReadRequest,
    find_modules,
    read_modules,
)
from tests.support import audited

LINE = "def f{0}(a, b={0}):\n    return g(a, key=b)\n"


def request(folder: Path, name: str, size: int) -> ReadRequest:
    """A wheel with about `size` bytes of source in its modules, one of which is invalid."""
    text = "".join(LINE.format(number) for number in range(1000))
    files = {f"{name}/m{number}.py": text for number in range(size // len(text) + 1)}
    files |= {f"{name}/__init__.py": "from .m0 import *\n", f"{name}/broken.py": "def f(:\n"}
    _, path = audited.wheel(folder, name, "1.0", files)
    content = LocalContent(path, path.name)
    sizes = {file: member.size for file, member in content.members().items()}
    return ReadRequest(content, find_modules(files), sizes)


@pytest.fixture(name="workers")
def _workers(monkeypatch: pytest.MonkeyPatch):
    """Use two worker processes even for small amounts of work."""
    for name in ("PARALLEL_MINIMUM", "RUNNING_BYTES", "SHARE"):
        monkeypatch.setattr(reading, name, getattr(reading, name) // 30)
    workers = ReaderProcesses(2)
    yield workers
    workers.close()


def test_audit_with_worker_processes_produces_the_same_report(
    tmp_path: Path, workers: ReaderProcesses
):
    worth, running = reading.PARALLEL_MINIMUM, reading.RUNNING_BYTES
    large = [request(tmp_path, "large", worth), request(tmp_path, "other", worth // 8)]
    small = request(tmp_path, "small", running)
    tiny = request(tmp_path, "tiny", running // 8)
    for batch in ([tiny], large, [small], [tiny]):
        batch_modules = workers.modules(batch)
        assert batch_modules == [read_modules(item.content, item.files) for item in batch]
        assert [list(modules) for modules in batch_modules] == [list(item.files) for item in batch]
        broken = [facts.broken for modules in batch_modules for facts in modules.values()]
        assert sum(map(bool, broken)) == len(batch)
