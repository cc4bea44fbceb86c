"""Tests that auditing a lock, a resolution and pins gives the same findings."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.judge import CHECKS, AuditTerms
from imgbuild.audit.packages.pinned import Pin, PinList
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, LockStale
from imgbuild.http.client import HttpClient
from imgbuild.learn import loop
from imgbuild.learn.boundaries import ReleaseCatalogue
from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix.accepted import Waiver
from imgbuild.matrix.model import DroppedFiles, Matrix, PackageIndex
from imgbuild.pipeline import audit_lock, audit_set
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import audited, release_index, samples
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite
from tests.unit.learn.test_removed_attributes import GONE, HEAD, OLD, READER

SUBJECT = "transformers.Base.extended"
WAIVER = Waiver(check="calls", package="vllm", subject=SUBJECT, reason="it is never called")
CALLS = ("calls",)


def index() -> LocalIndex:
    """An index of transformers with and without an attribute, and of a vLLM that reads it."""
    local_index = LocalIndex()
    old = {"4.0.0": {**HEAD, "transformers/base.py": OLD}}
    release_index.publish_releases(local_index, "transformers", old, year=2023)
    release_index.publish_releases(
        local_index, "transformers", {"5.0.0": {**HEAD, "transformers/base.py": GONE}}
    )
    reader = {"vllm/__init__.py": READER.format(expression="tokenizer.extended")}
    release_index.publish_releases(local_index, "vllm", {"0.8.5": reader}, year=2023)
    local_index.wheel("pip", "25.1", uploaded="2023-01-01T00:00:00Z")
    return local_index


class AuditedLock:
    """A lock of packages of `index`, with functions that audit it."""

    def __init__(
        self,
        folder: Path,
        release_catalogue: ReleaseCatalogue,
        site: FileSite,
        waivers: tuple[Waiver, ...],
    ):
        pins = {"vllm": "0.8.5", "transformers": "5.0.0"}
        matrix = samples.matrix(waive=waivers, pins=pins, as_of=datetime.date(2100, 1, 1))
        here = PackageIndex(url=site.url("simple"))
        self.matrix: Matrix = msgspec.structs.replace(matrix, indexes={"pypi": here})
        self.release_catalogue = release_catalogue
        self.site = site
        releases = {
            name: release_catalogue.package_releases(name)[-1]
            for name in ("pip", "transformers", "vllm")
        }
        wheels = tuple(release_catalogue.wheel(name, release) for name, release in releases.items())
        self.resolution = Resolution(wheels=wheels)
        self.lock: Lock = make_lock(self.matrix, "small", {Arch.X86_64: self.resolution})
        self.store = Store.open(folder / "audit")

    def download(self) -> None:
        """Download the wheels of the lock into the cache."""
        for wheel in self.resolution.wheels:
            with self.store.scratch() as folder:
                path = folder / wheel.file
                path.write_bytes(self.site.files[f"packages/{wheel.file}"])
                self.store.add_file(path, wheel.sha256)

    def inputs(self, *, offline: bool = False) -> Inputs:
        http = HttpClient(attempts=1, offline=offline)
        return Inputs(self.matrix, Context(self.store, http))

    def audit(self, *, offline: bool = False) -> tuple[Finding, ...]:
        inputs = self.inputs(offline=offline)
        return audit_lock.audit_lock(self.lock, Arch.X86_64, inputs, checks=CALLS).findings


@contextlib.contextmanager
def package_set(folder: Path, *waivers: Waiver) -> Iterator[AuditedLock]:
    with release_index.release_catalogue(folder, index()) as (release_catalogue, site):
        yield AuditedLock(folder, release_catalogue, site, waivers)


def test_audit_of_a_lock_matches_audits_of_its_resolution_and_pins(tmp_path: Path) -> None:
    with package_set(tmp_path) as audited_lock:
        (finding,) = audited_lock.audit()
        assert (finding.severity, finding.check) == (Severity.ERROR, "calls")
        assert finding.evidence is not None
        assert (finding.evidence.relation, finding.evidence.subject) == (
            ConflictRelation.ATTRIBUTE,
            SUBJECT,
        )
        settled = loop.audit_resolution(
            audited_lock.resolution, audited_lock.release_catalogue, AuditTerms(target="small")
        )
        assert [item for item in settled.findings if item.check == "calls"] == [finding]
        machine = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
        request = audit_set.SetRequest(
            machine=machine,
            index=lambda: audited_lock.site.url("simple"),
            context=Context(audited_lock.store, HttpClient(attempts=1)),
            terms=AuditTerms(),
            checks=CALLS,
        )
        versions = audited_lock.resolution.versions
        listed = PinList(pins={name: Pin(version=each) for name, each in versions.items()})
        pinned = audit_set.audit_pins(listed, request)
        assert (pinned.findings, pinned.unread) == ((finding,), ())


def test_waiver_of_a_removed_attribute_counts_as_used(tmp_path: Path) -> None:
    with package_set(tmp_path, WAIVER) as audited_lock:
        (finding,) = audited_lock.audit()
        assert finding.severity is Severity.NOTE
        assert finding.message.endswith("(accepted: it is never called)")
        terms = AuditTerms(target="small", waivers=(WAIVER,))
        settled = loop.audit_resolution(
            audited_lock.resolution, audited_lock.release_catalogue, terms
        )
        assert [item for item in settled.findings if item.check == "calls"] == [finding]


def test_offline_audit_uses_cached_facts_or_is_refused(tmp_path: Path) -> None:
    with package_set(tmp_path) as audited_lock:
        audited_lock.download()
        with pytest.raises(FetchFailed, match="simple/vllm/ is not in the cache") as caught:
            audited_lock.audit(offline=True)
        assert caught.value.message.startswith(
            "could not read older releases of packages of small: "
        )
        assert caught.value.hint == "run once without --offline"
        first = audited_lock.audit()
        request_count = len(audited_lock.site.requests)
        assert audited_lock.audit(offline=True) == first
        assert len(audited_lock.site.requests) == request_count


def audited_folder(folder: Path) -> tuple[Matrix, Lock, Resolution]:
    """A lock of two wheels in a local folder; one imports a name that the other lacks."""
    wheels = folder / "wheels"
    trainer = "from vllm import Gone\n\nclass GRPOTrainer: ...\n"
    locked_wheels = []
    for package, source in (("trl", trainer), ("vllm", "class New: ...\n")):
        wheel, _ = audited.wheel(wheels, package, "9.0", {f"{package}/__init__.py": source})
        locked_wheels.append(audited.with_changes(wheel, index="own"))
    assigned = {"trl": "own", "vllm": "own"}
    matrix = samples.matrix(pins={"trl": "9.0", "vllm": "9.0"}, indexes=assigned)
    folder_index = PackageIndex(url=f"{wheels.as_uri()}/", flat=True, upload_times="none")
    nowhere = PackageIndex(url="http://127.0.0.1:9/simple")
    matrix = msgspec.structs.replace(matrix, indexes={"pypi": nowhere, "own": folder_index})
    resolution = Resolution(wheels=tuple(locked_wheels))
    return matrix, make_lock(matrix, "small", {Arch.X86_64: resolution}), resolution


@pytest.mark.parametrize("checks", [("imports",), CHECKS])
def test_wheels_in_a_folder_are_audited_in_offline_mode(
    tmp_path: Path, checks: tuple[str, ...]
) -> None:
    matrix, lock, resolution = audited_folder(tmp_path)
    store = Store.open(tmp_path / "cache")
    inputs = Inputs(matrix, Context(store, HttpClient(attempts=1, offline=True)))
    report = audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=checks)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert audited.finding_subjects(errors) == ["vllm:Gone"]
    here = [store.file(wheel.sha256) is not None for wheel in resolution.wheels]
    assert here == [checks == CHECKS] * 2  # for code alone they are not downloaded


def test_audit_report_of_a_lock_is_cached_unless_a_new_audit_is_requested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, lock, _ = audited_folder(tmp_path)
    inputs = Inputs(
        matrix, Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1, offline=True))
    )
    first = audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=("imports",))
    for wheel in (tmp_path / "wheels").iterdir():
        wheel.unlink()
    assert "auditing imports of small" in capsys.readouterr().err
    assert audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=("imports",)) == first
    assert "auditing imports of small" not in capsys.readouterr().err
    again = audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=("imports",), again=True)
    assert again == first
    assert "auditing imports of small" in capsys.readouterr().err


def test_error_of_an_offline_audit_has_the_number_of_remote_wheels(tmp_path: Path) -> None:
    matrix, lock, resolution = audited_folder(tmp_path)
    there, _ = audited.wheel(tmp_path / "other", "pip", "25.1", {"pip/__init__.py": ""})
    wheels = (there, *resolution.wheels)
    lock = make_lock(matrix, "small", {Arch.X86_64: Resolution(wheels=wheels)})
    store = Store.open(tmp_path / "cache")
    inputs = Inputs(matrix, Context(store, HttpClient(attempts=1, offline=True)))
    with pytest.raises(FetchFailed, match="1 inputs of small are not in") as caught:
        audit_lock.audit_lock(lock, Arch.X86_64, inputs)
    assert caught.value.hint == "run once without --offline"
    with pytest.raises(FetchFailed, match=r"^pip-25\.1-py3-none-any\.whl of small is not in"):
        audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=("imports",))


def test_architecture_missing_in_the_lock_is_refused(tmp_path: Path) -> None:
    with package_set(tmp_path) as audited_lock, pytest.raises(LockStale) as caught:
        audit_lock.audit_lock(audited_lock.lock, Arch.ARM64, audited_lock.inputs())
    assert caught.value.message == "the lock of small does not include arm64, only x86_64"
    assert caught.value.hint == "run imgbuild lock small"


@pytest.mark.parametrize(("package", "subjects"), [("trl", []), ("vllm", ["vllm"])])
def test_files_dropped_from_the_image_are_not_audited(
    tmp_path: Path, package: str, subjects: list[str]
) -> None:
    matrix, lock, _ = audited_folder(tmp_path)
    places = f"lib/python{lock.base.python}/site-packages"
    left_out = DroppedFiles(
        package=package, paths=(f"{places}/{package}/*",), reason="another has them"
    )
    inputs = Inputs(
        matrix, Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1, offline=True))
    )
    before = audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=("imports",))
    assert audited.finding_subjects(before.findings) == ["vllm:Gone"]
    lock = msgspec.structs.replace(lock, drop=(left_out,))
    after = audit_lock.audit_lock(lock, Arch.X86_64, inputs, checks=("imports",))
    assert audited.finding_subjects(after.findings) == subjects
