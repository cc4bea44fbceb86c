"""What a machine must have to run an image: driver, GPU, glibc; computed from the image's files.

Input: the facts of its shared objects and its CUDA release. Output: `Floors`, a value for the
seal and the annotations, and for `doctor`. A pure function.
"""

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
        # Of drivers one of which is not known, the newest is not known either.
        driver_full=max(needed, key=gpus.numbers) if all(needed) else "",
        gpu=tuple(one for one in covered if one not in compiled),
        gpu_ptx=tuple(compiled),
        glibc=glibc,
    )
