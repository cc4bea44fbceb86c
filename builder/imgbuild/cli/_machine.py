"""Parses options that describe another machine: `--driver`, `--gpu`, `--arch`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from imgbuild.audit.binaries import gpu_models
from imgbuild.audit.binaries.gpu_models import GpuModel
from imgbuild.doctor.host import Host, HostGpu
from imgbuild.errors import InputError
from imgbuild.values import Arch

_DRIVER = re.compile(r"\d{3}(\.\d{1,4}){0,2}", re.ASCII)


def parse_driver(text: str) -> str:
    """Parse the value of `--driver`. Raises InputError if it is not a valid version."""
    if not _DRIVER.fullmatch(text):
        message = f"--driver {text}: expected a version such as 535 or 580.65.06"
        raise InputError(message, hint="run nvidia-smi to show the driver version")
    return text


def parse_gpu(text: str) -> GpuModel:
    """Look up the value of `--gpu`.

    Raises InputError for an unknown GPU, with a similar name as hint.
    """
    model = gpu_models.find_gpu_model(text)
    if model is None:
        message = f"--gpu {text}: unknown GPU"
        near = gpu_models.most_similar_name(text)
        hint = f"did you mean {near}? " if near else "specify a name such as H100 or RTX 4090; "
        raise InputError(
            message, hint=f"{hint}a compute capability, such as 9.0 or sm_90, is also accepted"
        )
    return model


def described_host(given_driver: str | None, names: Sequence[str], arch: Arch | None) -> Host:
    """Return the machine that the options describe. Other properties are unknown.

    The architecture is `arch`, or else the architecture of machines with these GPUs, or else
    x86_64. Raises InputError if no machine with this architecture has these GPUs.
    """
    models = {name: parse_gpu(name) for name in names}
    needed = {model.arch: name for name, model in models.items() if model.arch}
    if len(needed) > 1 or (arch and needed and arch not in needed):
        arches = " and ".join(f"{name} is built with {each}" for each, name in needed.items())
        message = f"no machine matches: {arches}{f', --arch {arch}' if arch else ''}"
        raise InputError(message, hint="omit --arch, or specify GPUs of one architecture")
    return Host(
        arch=arch or next(iter(needed), Arch.X86_64),
        driver=parse_driver(given_driver) if given_driver is not None else "",
        gpus=tuple(
            HostGpu(name=name, capability=model.capability) for name, model in models.items()
        ),
        described=True,
    )
