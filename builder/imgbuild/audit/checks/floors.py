"""Computes the minimum driver, glibc and GPU that the shared objects of an image require."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imgbuild.audit.binaries import gpus
from imgbuild.audit.source.facts import ElfFacts, GpuCode
from imgbuild.report import Floors

GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def compute_floors(elf_facts: Iterable[ElfFacts], cuda: str) -> Floors:
    """Return the minimum driver, glibc and GPU for an image with the files `elf_facts`.

    `cuda` is the CUDA release of the image ("12.4").
    """
    drivers = gpus.load_drivers()
    glibc = ""
    kernels: list[tuple[GpuCode, ...]] = []
    for facts in elf_facts:
        if drivers.is_kernels(facts.file) and facts.gpu:
            kernels.append(facts.gpu)
        for versions in facts.required_versions.values():
            for version in versions:
                match = GLIBC.fullmatch(version)
                if match is not None and gpus.version_numbers(match[1]) > gpus.version_numbers(
                    glibc
                ):
                    glibc = match[1]
    covered = [
        gpu.capability
        for gpu in drivers.gpus
        if kernels and all(gpus.covers_gpu(codes, gpu.capability) for codes in kernels)
    ]
    compiled = [
        capability
        for capability in covered
        if not all(gpus.machine_code(codes, capability) for codes in kernels)
    ]
    ptx = [
        code.ptx
        for codes in kernels
        for code in codes
        if code.ptx and any(gpus.can_run(code, capability) for capability in compiled)
    ]
    needed = [
        drivers.release_driver(cuda),
        *(drivers.driver_for_ptx(ptx_version) for ptx_version in ptx),
    ]
    return Floors(
        cuda=cuda,
        driver=drivers.oldest_driver(cuda),
        # If one of the drivers is unknown, the newest is unknown.
        driver_full=max(needed, key=gpus.version_numbers) if all(needed) else "",
        gpu=tuple(capability for capability in covered if capability not in compiled),
        gpu_ptx=tuple(compiled),
        glibc=glibc,
    )
