"""Tests audits of package sets without a lock: other indexes, unread packages, cached reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from imgbuild.audit.judge import CHECKS, AuditTerms
from imgbuild.audit.packages.pinned import PinList
from imgbuild.audit.packages.requirement_files import RequirementText, read_pins
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.matrix.model import PackageIndex
from imgbuild.pipeline import audit_set
from imgbuild.pipeline.audit_set import SetRequest
from imgbuild.report import Report, Severity
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import audited, samples
from tests.support.local_index import LocalIndex
from tests.support.rows import each_row
from tests.support.servers import FileSite, serve_site

MACHINE = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
USER = b"from torch import Gone\n"


class Asked:
    """A local index, with a function that audits pins of its packages."""

    def __init__(self, folder: Path, site: FileSite) -> None:
        self.site = site
        self.context = Context(Store.open(folder / "cache"), HttpClient(attempts=1))
        matrix = samples.matrix()
        tagged = PackageIndex(url=site.url("whl/{cuda_tag}"), upload_times="none")
        indexes = {**matrix.indexes, "builds": tagged}
        self.matrix = msgspec.structs.replace(matrix, indexes=indexes)

    def audit(
        self, *lines: str, partial: bool = False, again: bool = False, machine: WheelTags = MACHINE
    ) -> Report:
        request = SetRequest(
            machine=machine,
            index=lambda: self.site.url("simple"),
            context=self.context,
            terms=AuditTerms(target="pins"),
            checks=CHECKS,
            again=again,
        )
        return audit_set.audit_pins(self.pins(*lines), request, partial=partial, matrix=self.matrix)

    def pins(self, *lines: str) -> PinList:
        return read_pins([RequirementText(name="pins.txt", text="\n".join(lines))], MACHINE)


@pytest.fixture
def auditor(tmp_path: Path) -> Iterator[Asked]:
    index, builds = LocalIndex(), LocalIndex()
    index.wheel("torch", "2.10.0", files={"torch/__init__.py": b"class Gone: ...\n"})
    index.wheel("user", "1.0", ["torch>=2.8"], files={"user.py": USER})
    index.wheel("needy", "1.0", ["odd<2"], files={"needy.py": b"import odd\n"})
    index.wheel("nvidia-cuda-nvcc", "12.8.93")
    index.wheel("rays", "2.0", ['aiohttp>=3.7; extra == "default"', "click"])
    index.wheel("aiohttp", "3.0")
    index.wheel("click", "8.0")
    builds.wheel("torch", "2.10.0+cu130", files={"torch/__init__.py": b""})
    with serve_site(
        FileSite(files={**index.site_files(), **builds.pytorch_files("cu130")})
    ) as site:
        yield Asked(tmp_path, site)


def errors(report: Report) -> list[str]:
    return [finding.message for finding in report.findings if finding.severity is Severity.ERROR]


def unread(report: Report) -> Mapping[str, bool]:
    return {part.what: part.required for part in report.unread}


def test_cuda_build_of_a_pin_is_read_from_its_index(auditor: Asked) -> None:
    (error,) = errors(auditor.audit("user==1.0", "torch==2.10.0+cu130"))
    assert error.startswith("user 1.0 imports Gone from torch, but torch 2.10.0+cu130 does not")
    assert errors(auditor.audit("user==1.0", "torch==2.10.0")) == []


def test_pin_with_a_missing_local_version_is_not_compared_by_its_code(auditor: Asked) -> None:
    report = auditor.audit("user==1.0", "torch==2.10.0+cu118")
    assert (errors(report), report.ok) == ([], True)
    assert unread(report) == {"torch==2.10.0+cu118": False}


@pytest.mark.parametrize(
    ("python", "count"),
    [("3.9", 1), ("3.10", 0), ("3.11", 0), ("3.12", 0), ("3.13", 0), ("3.14", 1)],
)
def test_standard_library_behavior_of_a_python_without_a_base_is_reported_unread(
    auditor: Asked, python: str, count: int
) -> None:
    machine = WheelTags(python=python, glibc="2.36", arch=Arch.X86_64)
    report = auditor.audit("needy==1.0", "odd==1.0", partial=True, machine=machine)
    lines = [part for part in report.unread if "standard library" in part.what]
    assert [(part.what, part.required) for part in lines] == [
        (f"the behavior of the standard library of Python {python}", False)
    ] * count


def test_component_of_a_different_cuda_release_is_a_finding(auditor: Asked) -> None:
    (error,) = errors(auditor.audit("torch==2.10.0+cu126", "nvidia-cuda-nvcc==12.8.93"))
    assert error.startswith("nvidia-cuda-nvcc 12.8.93 does not belong to CUDA 12.6")


def test_package_without_a_wheel_is_compared_by_version(auditor: Asked) -> None:
    report = auditor.audit("needy==1.0", "odd==3.0")
    assert errors(report) == ["needy 1.0 requires odd<2, but odd is 3.0"]
    assert unread(report) == {"odd==3.0": True}
    fitting = auditor.audit("needy==1.0", "odd==1.0")
    assert (errors(fitting), fitting.ok) == ([], False)


def test_requirements_that_are_not_listed_as_pins_are_not_errors(auditor: Asked) -> None:
    assert errors(auditor.audit("needy==1.0", partial=True)) == []
    assert len(errors(auditor.audit("needy==1.0"))) > 0


@pytest.mark.parametrize("partial", [True, False])
def test_requirements_of_an_extra_are_audited(auditor: Asked, partial: bool) -> None:
    assert errors(auditor.audit("rays==2.0", "click==8.0", partial=partial)) == []
    extra = ("rays[default]==2.0", "click==8.0")
    (absent,) = errors(auditor.audit(*extra, partial=partial))
    assert "aiohttp is not in this package set" in absent
    (older,) = errors(auditor.audit(*extra, "aiohttp==3.0", partial=partial))
    assert older.endswith("but aiohttp is 3.0")


def test_audit_report_of_pins_is_cached_unless_a_new_audit_is_requested(auditor: Asked) -> None:
    first = auditor.audit("user==1.0", "torch==2.10.0")
    auditor.site.requests.clear()
    assert auditor.audit("user==1.0", "torch==2.10.0") == first
    assert auditor.site.requests == []
    assert auditor.audit("user==1.0", "torch==2.10.0", again=True) == first
    assert auditor.audit("user==1.0", "torch==2.10.0+cu130") != first


@each_row(
    ("version", "text", "cuda"),
    [
        ("2.10.0+cu130", "cuda = '12.8'\n", "13.0"),
        ("2.10.0", "debug = False\ncuda: Optional[str] = '12.8'\n", "12.8"),
        ("2.4.0", "cuda = '12.1'\n", "12.1"),
        ("2.0.1+cu117.with.pypi.cudnn", "", "11.7"),
        ("2.10.0+cpu", "cuda: Optional[str] = None\n", ""),
    ],
)
def test_cuda_release_is_derived_from_torch(
    tmp_path: Path, version: str, text: str, cuda: str
) -> None:
    files = {"torch/__init__.py": "", "torch/version.py": text}
    assert audit_set.torch_cuda(audited.package_set(tmp_path, {f"torch=={version}": files})) == cuda
    assert audit_set.torch_cuda(audited.package_set(tmp_path / "b", {"trl==1.0": {}})) == ""
