"""The driver, GPU and glibc that an image needs, computed from its shared objects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imgbuild.audit.binaries import gpus
from imgbuild.audit.source.facts import ElfFacts, GpuCode
from imgbuild.report import Floors

GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def floors(elves: Iterable[ElfFacts], cuda: str) -> Floors:
    """The floors of an image with the files `elves`, built for the release `cuda` ("12.4")."""
    known = gpus.load()
    glibc = ""
    kernels: list[tuple[GpuCode, ...]] = []
    for facts in elves:
        if known.is_kernels(facts.file) and facts.gpu:
            kernels.append(facts.gpu)
        for versions in facts.wants.values():
            for version in versions:
                found = GLIBC.fullmatch(version)
                if found is not None and gpus.numbers(found[1]) > gpus.numbers(glibc):
                    glibc = found[1]
    covered = [
        one.capability
        for one in known.gpus
        if kernels and all(gpus.covers(codes, one.capability) for codes in kernels)
    ]
    compiled = [
        one for one in covered if not all(gpus.machine_code(codes, one) for codes in kernels)
    ]
    ptx = [
        one.ptx
        for codes in kernels
        for one in codes
        if one.ptx and any(gpus.runs(one, capability) for capability in compiled)
    ]
    needed = [known.own(cuda), *(known.for_ptx(one) for one in ptx)]
    return Floors(
        cuda=cuda,
        driver=known.oldest(cuda),
        # If one of the drivers is unknown, the newest is unknown.
        driver_full=max(needed, key=gpus.numbers) if all(needed) else "",
        gpu=tuple(one for one in covered if one not in compiled),
        gpu_ptx=tuple(compiled),
        glibc=glibc,
    )
