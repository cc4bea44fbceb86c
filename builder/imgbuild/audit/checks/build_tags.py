"""Compares the build tags in file names of wheels with the package set (part of `metadata`).

`flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-….whl` requires torch 2.6 for CUDA 12 with the
pre-C++11 ABI, which its METADATA does not declare. The check `elf` detects the same conflict from
the symbols of the wheel.
"""

from __future__ import annotations

from collections.abc import Iterator

from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.values import Arch
from imgbuild.wheel.local_version import local_version_label, torch_cxx11

CHECK = "metadata"
TORCH = "torch"
ABIS = {True: "the C++11 ABI (cxx11abiTRUE)", False: "the pre-C++11 ABI (cxx11abiFALSE)"}


def check_build_tags(package_set: PackageSet, cuda: str) -> list[Finding]:
    """Return an error for each build tag that contradicts the package set.

    `cuda` is the CUDA release of the package set, or "" if unknown.
    """
    torch = package_set.version(TORCH)
    cuda = local_version_label(torch or "").cuda or cuda
    return [
        finding
        for package in package_set.packages
        if package != TORCH
        for finding in _package_findings(package_set, package, torch, cuda)
    ]


def _package_findings(
    package_set: PackageSet, package: str, torch: str | None, cuda: str
) -> Iterator[Finding]:
    tag = local_version_label(package_set.version(package) or "")
    if tag.cuda and cuda and tag.cuda.partition(".")[0] != cuda.partition(".")[0]:
        yield _finding(
            package_set, package, ConflictRelation.CUDA, f"cu{tag.cuda.replace('.', '')}",
            f"is compiled for CUDA {tag.cuda}, but this package set is for CUDA {cuda}",
            f"cu{cuda.partition('.')[0]}",
        )  # fmt: skip
    if torch is None or not tag.torch:
        return
    if not torch.startswith((f"{tag.torch}.", f"{tag.torch}+")) and torch != tag.torch:
        minor = ".".join(torch.split(".")[:2])
        yield _finding(
            package_set, package, ConflictRelation.ABI, f"torch{tag.torch}",
            f"is compiled for torch {tag.torch}, but torch is {torch}",
            f"torch{minor}", spec=f"=={tag.torch}.*",
        )  # fmt: skip
        return
    abi = torch_cxx11(torch) if package_set.arch == Arch.X86_64 else None
    if tag.cxx11 is not None and abi is not None and tag.cxx11 != abi:
        yield _finding(
            package_set, package, ConflictRelation.ABI, f"cxx11abi{str(tag.cxx11).upper()}",
            f"uses {ABIS[tag.cxx11]}, but torch {torch} uses {ABIS[abi]}",
            f"cxx11abi{str(abi).upper()}",
        )  # fmt: skip


def _finding(
    package_set: PackageSet,
    package: str,
    relation: ConflictRelation,
    subject: str,
    what: str,
    fitting: str,
    spec: str = "",
) -> Finding:
    version = package_set.version(package) or ""
    file = package_set.wheels[package].wheel.file
    torch = package_set.version(TORCH) or ""
    return finding_at(
        FindingPlace(package, version, file),
        CHECK,
        Severity.ERROR,
        f"{package} {version} {what}, according to its file name: {file}",
        relation=relation,
        remedy=f"choose a wheel of {package} with {fitting} in its name",
        subject=subject,
        other=TORCH if spec else "",
        other_version=torch if spec else "",
        spec=spec,
    )
