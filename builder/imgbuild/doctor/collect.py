"""Collects package versions, driver and environment variables for bug reports, without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from imgbuild.audit.packages.environment import open_environment
from imgbuild.doctor.host import Host, read_host

# Variables that change how training and serving run; the values of secrets are omitted.
VARIABLES = re.compile(
    r"(?:NCCL|TORCH|PYTORCH|CUDA|NVIDIA|VLLM|SGLANG|SGL|FLASHINFER|TRITON|RAY|HF|TRANSFORMERS|"
    r"OMP|MKL|"
    r"SLURM|MASTER|NODE|LOCAL|RANK|ROLE|DS|ACCELERATE|TOKENIZERS|XLA|UCX|GLOO|VERL|"
    r"UNSLOTH)_?\w*|"
    r"(?:LD_LIBRARY_PATH|LD_PRELOAD|PATH|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|CONDA_PREFIX|TMPDIR|"
    r"CC|CXX)"
)
SECRET = re.compile(r"TOKEN(?!IZERS_PARALLELISM)|KEY|SECRET|PASS|AUTH|CREDENTIAL|COOKIE|JWT")
ADDRESS_LOGIN = re.compile(r"//[^/@\s]+@")
ADDRESS_QUERY = re.compile(r"(?<=\w)[?#]\S*")
# A value with a word for a secret, a JSON object, or a long word of letters and digits, which is
# neither in a path nor the UUID of a GPU.
SECRET_VALUE = re.compile(
    r"(?i:token|secret|passw|bearer|basic |auth|credential|api_?key)|[{\"]|"
    r"(?<![\w/.-])(?!(?:GPU|MIG)-)(?=[\w-]{0,80}\d)(?=[\w-]{0,80}[A-Za-z])[\w-]{20,}(?![\w/.-])"
)


class CollectedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, its relevant environment variables, and the active Python with its packages."""

    host: Host
    python: str
    packages: Mapping[str, str]
    variables: Mapping[str, str]


def collect_machine() -> CollectedMachine:
    """Read this machine and the active environment.

    Raises InputError if the environment cannot be read.
    """
    environment = open_environment(None)
    return CollectedMachine(
        host=read_host(),
        python=environment.python,
        packages={package.wheel.package: package.wheel.version for package in environment.packages},
        variables=run_variables(os.environ),
    )


def run_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a run, with "set" as the value of secrets.

    A value that looks like a secret is omitted, whatever its name. Credentials and queries in URLs
    are removed.
    """
    return {
        name: "set" if SECRET.search(name) else _value_without_secrets(value)
        for name, value in sorted(environment.items())
        if VARIABLES.fullmatch(name)
    }


def _value_without_secrets(value: str) -> str:
    if "://" in value:
        value = ADDRESS_QUERY.sub("", ADDRESS_LOGIN.sub("//", value))
    is_path = value.startswith(("/", "~", "./", "../"))
    return "set" if not is_path and SECRET_VALUE.search(value) else value
