"""Checks that packages use one CUDA major version and have code for the GPUs: the check `cuda`.

Reports libraries of two CUDA major versions in one process, components of a different CUDA release,
a CPU build of torch, libraries without code for a GPU, and assemblers that do not support a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.audit.binaries import gpus, libraries
from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.packages import variants
from imgbuild.audit.packages.library_map import is_private
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.index.cuda_releases import METAPACKAGE
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.system.syntax import valid_requirement
from imgbuild.values import normalize_package

CHECK = "cuda"
_ARCH = "sm_"
_MAJOR_PACKAGE = re.compile(r"nvidia-.+-cu(\d\d)")
# Its versions are those of the CUDA releases since CUDA 11.
_LIKE_RELEASE = re.compile(r"nvidia-(?:cuda-[a-z]+|nvjitlink|nvtx|nvvm)(?:-cu\d\d)?")
# A newer one serves older libraries: cuSPARSE 12.1.0.106 loads with nvJitLink 12.9.86, which pip
# chooses for torch 2.3 and 2.4, since these require no version of it.
_NEWER_FITS = ("nvidia-nvjitlink-cu12",)
_CODE_MAKERS = ("nvcc", "nvrtc", "nvvm", "crt")
# Headers alone, for the compiler of the same release; nothing else uses them.
_HEADERS = ("nvidia-cuda-cccl",)
_COMPILER = "nvidia-cuda-nvcc"
# They read GPU code only: CUTLASS 4.6 requires the disassembler of CUDA 13 even for CUDA 12.
_CODE_READERS = ("nvdisasm", "cuobjdump", "nvprune")
# CUTLASS' compilers link to no CUDA library: both are installed and chosen by name.
_COEXISTING_PACKAGES = re.compile(r"nvidia-cutlass-dsl-libs-cu\d\d")


def check_cuda(package_set: PackageSet, cuda: str, gpu: Sequence[str] = ()) -> list[Finding]:
    """Return all findings of the check `cuda`.

    `cuda` is the CUDA release ("12.4"), or "" for none. `gpu` lists the compute capabilities.
    """
    elf_facts = list(package_set.elf_facts())
    findings = list(_families(package_set, elf_facts))
    if cuda:
        findings += _torch(package_set, elf_facts, cuda)
        findings += _components(package_set, cuda)
        findings += _uncovered_gpu_findings(package_set, elf_facts, gpu)
        findings += _assembler_findings(package_set, elf_facts, gpu)
    return findings


def check_assemblers(package_set: PackageSet, gpu: Sequence[str]) -> list[Finding]:
    """Return only the findings about GPU assemblers, for which whole wheels are not read."""
    return list(_assembler_findings(package_set, list(package_set.assemblers()), gpu))


def unsupported_gpus(finding: Finding) -> tuple[str, ...]:
    """Return the compute capabilities that a package does not support, according to `finding`."""
    evidence = finding.evidence
    if finding.check != CHECK or evidence is None or not evidence.subject.startswith(_ARCH):
        return ()
    archs = (name.removeprefix(_ARCH) for name in evidence.subject.split(", "))
    return tuple(f"{arch[:-1]}.{arch[-1]}" for arch in archs)


def _families(
    package_set: PackageSet, elf_facts: Sequence[tuple[str, ElfFacts]]
) -> Iterator[Finding]:
    choices = libraries.load_libraries()
    elsewhere = variants.find_skipped_variants(elf_facts)
    users: dict[str, list[tuple[str, ElfFacts]]] = {}
    for package, facts in elf_facts:
        if is_private(facts.file) or choices.is_choice(facts.file):
            continue
        if (package, facts.file) not in elsewhere:
            for runtime in variants.linked_runtimes(facts):
                users.setdefault(runtime, []).append((package, facts))
    major = variants.cuda_family(elf_facts)
    if len(users) < 2 or not major:
        return
    reference = next(facts for owner, facts in users[major] if owner == "torch")
    for other, files in sorted(users.items()):
        seen: set[str] = set()
        for package, facts in files if other != major else ():
            if package.startswith("nvidia-") or package in seen:
                continue
            seen.add(package)
            version = package_set.version(package) or ""
            torch = package_set.version("torch") or ""
            yield _finding(
                f"{package} {version}: {facts.file} is linked to libcudart.so.{other}, and torch"
                f" {torch} ({reference.file}) to libcudart.so.{major}: two CUDA families in one"
                " process",
                package=package,
                version=version,
                file=facts.file,
                other="torch",
                other_version=torch,
                subject=f"libcudart.so.{other}",
                remedy=f"choose a {package} built for CUDA {major}",
            )


def _torch(
    package_set: PackageSet, elf_facts: Sequence[tuple[str, ElfFacts]], cuda: str
) -> Iterator[Finding]:
    version = package_set.version("torch")
    files = {facts.file for package, facts in elf_facts if package == "torch"}
    # Without its other libraries, torch's files were not read.
    if version is None or "torch/lib/libtorch_cpu.so" not in files:
        return
    if "torch/lib/libtorch_cuda.so" not in files:
        yield _finding(
            f"torch {version} is a CPU build without libtorch_cuda.so, but the target"
            f" is for CUDA {cuda}",
            package="torch",
            version=version,
            file="torch/lib/libtorch_cpu.so",
            subject="libtorch_cuda.so",
            remedy=f"choose a torch built for CUDA {cuda}, or an index with such a build for"
            " this architecture",
        )


def _components(package_set: PackageSet, cuda: str) -> Iterator[Finding]:
    declared = _declared_components(package_set, cuda)
    major, _, _ = cuda.partition(".")
    for package in package_set.packages:
        if package.removeprefix("nvidia-cuda-").partition("-")[0] in _CODE_READERS:
            continue
        if _COEXISTING_PACKAGES.fullmatch(package):
            continue
        version = package_set.version(package) or ""
        of_major = _MAJOR_PACKAGE.fullmatch(package)
        spec = declared.get(package)
        if spec is not None:
            if not SpecifierSet(spec).contains(version, prereleases=True):
                finding = _component(
                    package, version, cuda, f"the release has {package}{spec}", spec
                )
                unused = package in _HEADERS and not _has_compiler(package_set)
                severity = Severity.WARNING if unused else finding.severity
                yield msgspec.structs.replace(finding, severity=severity)
        elif of_major is not None and of_major[1] != major:
            yield _component(package, version, cuda, f"it is for CUDA {of_major[1]}", "")
        elif _LIKE_RELEASE.fullmatch(package) and _is_other(package, version, cuda):
            yield _component(
                package,
                version,
                cuda,
                "its version belongs to a different release",
                f"=={gpus.minor_release(cuda)}.*",
            )


def _declared_components(package_set: PackageSet, cuda: str) -> Mapping[str, str]:
    """Map each component to the version that the CUDA metapackage declares for this release."""
    metadata = package_set.metadata(METAPACKAGE)
    if metadata is None or gpus.minor_release(metadata.version) != gpus.minor_release(cuda):
        return {}
    versions = {}
    for line in metadata.requires:
        requirement = valid_requirement(line)
        if requirement is None:
            continue
        name = normalize_package(requirement.name)
        if name.startswith("nvidia-") and requirement.specifier:
            versions[name] = str(requirement.specifier)
    return versions


def _is_other(package: str, version: str, cuda: str) -> bool:
    """Return whether a component has another major version or is newer than the release allows."""
    mine, release = gpus.version_numbers(version)[:2], gpus.version_numbers(cuda)[:2]
    return mine[:1] != release[:1] or (mine > release and package not in _NEWER_FITS)


def _has_compiler(package_set: PackageSet) -> bool:
    return any(package.startswith(_COMPILER) for package in package_set.packages)


def _component(package: str, version: str, cuda: str, why: str, spec: str) -> Finding:
    makes = any(word in package for word in _CODE_MAKERS)
    consequence = " (it generates code that older drivers reject)" if makes else ""
    return _finding(
        f"{package} {version} does not belong to CUDA {cuda}: {why}{consequence}",
        package=package,
        version=version,
        subject=f"{package} {version}",
        spec=spec,
        remedy=f"constrain {package} to CUDA {cuda}" + (f": {package}{spec}" if spec else ""),
    )


def _uncovered_gpu_findings(
    package_set: PackageSet, elf_facts: Sequence[tuple[str, ElfFacts]], gpu: Sequence[str]
) -> Iterator[Finding]:
    drivers = gpus.load_drivers()
    for package, facts in elf_facts:
        if not drivers.is_kernels(facts.file) or not facts.gpu:
            continue
        there = ", ".join(sorted({code.arch for code in gpus.general_architectures(facts.gpu)}))
        yield from _gpu_finding(
            package_set,
            package,
            facts.file,
            [capability for capability in gpu if not gpus.covers_gpu(facts.gpu, capability)],
            "has no code for",
            f", or almost none; it is built for {there} (CUDA error: no kernel image is available"
            " for execution on the device)",
            "is built for it",
        )


def _assembler_findings(
    package_set: PackageSet, elf_facts: Sequence[tuple[str, ElfFacts]], gpu: Sequence[str]
) -> Iterator[Finding]:
    """Yield findings for run-time assemblers that do not support a GPU.

    Triton has one assembler for each range of GPUs, so the assemblers of a package are considered
    together.
    """
    package_archs: dict[str, set[str]] = {}
    files: dict[str, str] = {}
    for package, facts in elf_facts:
        if facts.ptxas_architectures:
            package_archs.setdefault(package, set()).update(facts.ptxas_architectures)
            files.setdefault(package, facts.file)
    for package, archs in package_archs.items():
        plain = {arch.rstrip("af") for arch in archs}
        yield from _gpu_finding(
            package_set,
            package,
            files[package],
            [capability for capability in gpu if _arch(capability) not in plain],
            "cannot assemble code for",
            f": kernels that {package} compiles at run time fail there",
            "supports it",
        )


def _gpu_finding(
    package_set: PackageSet,
    package: str,
    file: str,
    missing: Sequence[str],
    fault: str,
    consequence: str,
    condition: str,
) -> Iterator[Finding]:
    """Yield a finding for the GPUs `missing`, if there are any.

    The message consists of `fault`, the GPUs and `consequence`. `condition` completes the hint
    "choose a PACKAGE that …".
    """
    if missing:
        version = package_set.version(package) or ""
        subject = ", ".join(map(_arch, missing))
        yield _finding(
            f"{package} {version}: {file} {fault} {subject}{consequence}",
            package=package,
            version=version,
            file=file,
            subject=subject,
            remedy=f"leave {', '.join(missing)} out of `gpu:` in matrix.yaml, or choose a {package}"
            f" that {condition}",
        )


def _arch(capability: str) -> str:
    return f"{_ARCH}{capability.replace('.', '')}"


def _finding(message: str, *, package: str, version: str, file: str = "", **more: Any) -> Finding:
    place = FindingPlace(package, version, file)
    return finding_at(place, CHECK, Severity.ERROR, message, relation=ConflictRelation.CUDA, **more)
