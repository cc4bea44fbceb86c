"""Reads `ci.yaml`, which defines the CI's machines, required test tiers, and size budgets."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import resources
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from imgbuild.cves.severity import Rating
from imgbuild.errors import InputError
from imgbuild.matrix.convert import convert_document
from imgbuild.matrix.fields import FormVersion
from imgbuild.matrix.model import StrictStruct
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.yaml_nodes import parse_yaml, read_content
from imgbuild.report import TierName
from imgbuild.smoke.runner import GPU_TIERS
from imgbuild.system import decoding
from imgbuild.system.files import require_readable
from imgbuild.values import Arch

FILE = "ci.yaml"
DEFAULTS = "data/ci.yaml"
TIERS: tuple[TierName, ...] = ("static", "cpu", "gpu", "multi-gpu")


class Runner(StrictStruct, frozen=True):
    """A type of CI machine."""

    labels: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="labels to select the machine in the CI"),
    ]
    arch: Annotated[Arch, Meta(description="native architecture of the machine")]
    disk: Annotated[int, Meta(ge=1, description="available disk space for a job in GB")]
    gpus: Annotated[int, Meta(ge=0, description="number of GPUs of the machine")] = 0


class CveGate(StrictStruct, frozen=True):
    """The known vulnerabilities that make a job fail."""

    severity: Annotated[Rating, Meta(description="the lowest severity to fail at")] = Rating.HIGH
    ignore_unfixed: Annotated[
        bool, Meta(description="fail only for vulnerabilities with a fixed version")
    ] = False


class CiSettings(StrictStruct, frozen=True):
    """The settings in `ci.yaml`, with all defaults."""

    version: Literal[1]
    gate: Annotated[tuple[TierName, ...], Meta(min_length=1)]
    runners: tuple[Runner, ...]
    sif: bool
    budget: dict[str, Annotated[int, Meta(ge=1)]]
    cves: CveGate | None = None

    def gpu_arches(self, gpus: int) -> tuple[Arch, ...]:
        """Return the architectures with a machine that has `gpus` GPUs, in the order of `Arch`."""
        return tuple(
            arch
            for arch in Arch
            if any(runner.gpus >= gpus and runner.arch is arch for runner in self.runners)
        )

    def with_required_tiers(self, tiers: tuple[TierName, ...], *, gpu: bool = True) -> CiSettings:
        """Return a copy that requires `tiers`, or these settings if `tiers` is empty.

        If `gpu` is False, tiers that need a GPU are excluded. Raises InputError if no tier remains.
        """
        gate = order_tiers(tiers or self.gate)
        gate = gate if gpu else tiers_without_gpu(gate)
        if not gate:
            message = "no tier of smoke tests remains for the gate"
            raise InputError(message, hint="select a tier, for example: --gate static")
        return msgspec.structs.replace(self, gate=gate)

    def limit(self, target: str) -> int | None:
        """Return the maximum download size of `target` in MB, or None if there is no budget."""
        sizes = (size for pattern, size in self.budget.items() if fnmatchcase(target, pattern))
        return next(sizes, None)


class CiFile(StrictStruct, frozen=True):
    """The content of `ci.yaml`."""

    version: FormVersion
    gate: Annotated[tuple[TierName, ...] | None, Meta(description="smoke tiers to pass")] = None
    runners: Annotated[tuple[Runner, ...] | None, Meta(description="the available machines")] = None
    sif: Annotated[bool | None, Meta(description="also publish a SIF of each image")] = None
    budget: Annotated[
        dict[str, Annotated[int, Meta(ge=1)]] | None,
        Meta(
            description="maximum download size of one architecture in MB, by shell pattern of "
            "target names; the first match applies"
        ),
    ] = None
    cves: Annotated[
        CveGate | None,
        Meta(
            description="known vulnerabilities that fail a job, checked by `imgbuild cves`; without"
            " this key, nothing is checked"
        ),
    ] = None


def read_ci_settings(project: Project) -> CiSettings:
    """Return the settings of `project`. Raises InputError with all problems in `ci.yaml`."""
    text = resources.files("imgbuild").joinpath(DEFAULTS).read_bytes()
    defaults = convert_document(parse_yaml(text, DEFAULTS), CiFile)
    settings = decoding.convert(defaults, CiSettings, from_attributes=True)
    path = project.root / FILE
    if not path.exists():
        return settings
    with require_readable(path):
        project_settings = convert_document(parse_yaml(read_content(path), str(path)), CiFile)
    overrides = {
        key: value
        for key in CiFile.__struct_fields__
        if (value := getattr(project_settings, key)) is not None
    }
    settings = msgspec.structs.replace(settings, **overrides)
    return msgspec.structs.replace(settings, gate=order_tiers(settings.gate))


def order_tiers(tiers: tuple[TierName, ...]) -> tuple[TierName, ...]:
    """Return the distinct `tiers` in execution order."""
    return tuple(tier for tier in TIERS if tier in tiers)


def tiers_without_gpu(tiers: tuple[TierName, ...]) -> tuple[TierName, ...]:
    """Return the `tiers` that need no GPU."""
    return tuple(tier for tier in tiers if tier not in GPU_TIERS)
