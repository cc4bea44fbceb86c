"""Tests computations and audits in forked processes."""

from __future__ import annotations

import ast
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from imgbuild.audit.code import check, python_code
from imgbuild.audit.code.code_files import find_files
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import open_package_set
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.system import forked
from imgbuild.system.forked import ForkedCall, copy_limit
from imgbuild.values import Arch
from tests.support import audited
from tests.support.audited_code import BASE
from tests.support.servers import FileSite, serve_site


def _fail() -> bytes:
    raise ValueError


def _wait() -> bytes:
    time.sleep(600)
    return b""


def _compute_in_copy(
    shares: Sequence[Any],
    here: Callable[[Iterable[Any]], object],
    copied: Callable[[Iterable[Any]], bytes],
    _: int,
) -> tuple[object, list[bytes | None]]:
    return here([]), [ForkedCall(lambda: copied(shares)).result()]


def test_forked_process_uses_objects_of_its_parent() -> None:
    value = [os.getpid()]
    data = ForkedCall(lambda: f"{value[0]} {os.getpid()} ".encode() + b"x" * 200_000).result()
    assert data is not None
    original, process, rest = data.split()
    assert original == str(os.getpid()).encode() != process
    assert len(rest) == 200_000


def test_forked_call_that_raises_an_exception_returns_no_result() -> None:
    assert ForkedCall(_fail).result() is None


def test_forked_process_can_be_stopped() -> None:
    copy = ForkedCall(_wait)
    process = copy._process
    copy.stop()
    copy.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_process_with_threads_is_not_forked() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    assert copy_limit() == 1
    event.set()
    thread.join()


def test_shares_become_smaller_and_contain_all_items() -> None:
    shares = forked.split_shares(range(100), lambda _: 1, 2, 5)
    assert [each for share in shares for each in share] == list(range(100))
    assert [len(share) for share in shares][:3] == [25, 18, 14]
    assert min(len(share) for share in shares[:-1]) == 5
    assert len(forked.split_shares(range(100), lambda _: 1, 1, 5)) == 1


def test_each_share_is_computed_once() -> None:
    def _numbers(shares: Iterable[int]) -> list[int]:
        return list(shares)

    own, copies = forked.compute_shares(
        range(300), _numbers, lambda shares: repr(_numbers(shares)).encode(), 3
    )
    others = [number for data in copies for number in ast.literal_eval((data or b"").decode())]
    assert sorted([*own, *others]) == list(range(300))


def test_shares_are_computed_here_if_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def _fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", _fork)
    before = sorted(Path("/proc/self/fd").iterdir())
    own, copies = forked.compute_shares(range(9), list, lambda _: b"", 3)
    assert own == [*range(9)]
    assert copies == []
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_copied_process_leaves_files_that_require_a_download_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "class Config:\n    size = 1\n"
    more = "# Config: " + " ".join(f"absent{number}" for number in range(5))
    locked, path = audited.wheel(
        tmp_path, "base", "4.0", {"base/__init__.py": config, "base/more.py": more}
    )
    (tmp_path / "code").mkdir()
    for number in range(5):
        code = f"from base import Config\nc = Config()\nc.absent{number}\n"
        (tmp_path / "code" / f"file{number}.py").write_text(code, encoding="utf-8")
    texts = find_files([tmp_path / "code"])
    monkeypatch.setattr(forked, "copy_limit", lambda: 3)
    monkeypatch.setattr(python_code, "SHARE", 1)
    monkeypatch.setattr(forked, "compute_shares", _compute_in_copy)
    with serve_site(FileSite(files={locked.file: path.read_bytes()})) as site:
        library = Library(Store.open(tmp_path / "cache"), HttpClient())
        remote = open_package_set(
            [locked],
            library,
            python="3.11",
            arch=Arch.X86_64,
            glibc="2.36",
            locate=lambda wheel: site.url(wheel.file),
        )
        remote.module("base")
        findings = check.check_code(remote, texts, library.store).findings
    assert [finding.code for finding in findings] == ["IMG104"] * 5


@pytest.mark.parametrize("fails", [False, True])
def test_code_audit_in_a_forked_process_has_the_same_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    packages = audited.package_set(tmp_path, {"base==4.0": {"base.py": BASE}})
    store = Store.open(tmp_path / "cache")
    (tmp_path / "code").mkdir()
    for number in range(5):
        path = tmp_path / "code" / f"file{number}.py"
        path.write_text(f"\n\nfrom base import missing{number}, Trainer\n", encoding="utf-8")
    texts = find_files([tmp_path / "code"])
    expected = check.check_code(packages, texts, store).findings
    checked: list[str] = []
    original = python_code._module_findings
    process = os.getpid()

    def _recording(look: Any, new: Mapping[str, CodeText], *rest: Any) -> object:
        checked.extend(new)
        if os.getpid() != process:
            (tmp_path / "copied").touch()
        while not (tmp_path / "copied").exists():  # until a copy has taken a share
            time.sleep(0.01)
        return original(look, new, *rest)

    monkeypatch.setattr(python_code, "_module_findings", _recording)
    monkeypatch.setattr(forked, "copy_limit", lambda: 3)
    monkeypatch.setattr(python_code, "SHARE", 1)
    if fails:  # as without the network
        monkeypatch.setattr(ForkedCall, "result", lambda self: self.stop())
    assert check.check_code(packages, texts, store, key="set").findings == expected
    assert len(expected) == 5
    assert (len(set(checked)) == 5) is fails
    assert check.check_code(packages, texts, store, key="set").findings == expected
