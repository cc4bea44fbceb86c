#!/usr/bin/env python3
"""Writes data/diagnose/facts/requirements.yaml, which lists requirements between packages.

tools/requirement_versions.py

Reads the metadata of wheels on uv's default index for Linux x86_64 and Python 3.12, with all
extras. For packages in `MINORS`, reads one version of each minor release, and for other packages
every version.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path

import yaml
from packaging.metadata import Metadata
from packaging.version import Version

import published_wheels
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexFile
from imgbuild.system import files
from imgbuild.values import normalize_package

OLDEST = {
    "vllm": "0.6.3", "sglang": "0.4", "trl": "0.8", "verl": "0.2", "transformers": "4.40",
    "peft": "0.8", "accelerate": "0.30", "datasets": "2.18", "torch": "2.4", "unsloth": "2025.1",
    "unsloth-zoo": "2025.1", "ms-swift": "3.0", "llamafactory": "0.8", "numba": "0.58",
    "xgrammar": "0.1.10", "torchvision": "0.19", "xformers": "0.0.27", "bitsandbytes": "0.43",
    "tensordict": "0.6", "compressed-tensors": "0.8", "outlines": "0.0.43",
}  # fmt: skip
MINORS = (
    *("transformers", "peft", "accelerate", "datasets", "unsloth", "unsloth-zoo", "ms-swift"),
    *("numba", "bitsandbytes", "outlines"),
)
# The packages whose releases break those that use them.
REQUIRED_PACKAGES = frozenset(
    (
        *("accelerate", "apache-tvm-ffi", "bitsandbytes", "compressed-tensors", "datasets"),
        *("depyf", "fastapi", "flashinfer-cubin", "flashinfer-python", "fsspec", "gguf"),
        *("huggingface-hub", "llguidance", "llvmlite", "lm-format-enforcer", "mistral-common"),
        *("multiprocess", "dill", "numba", "numpy", "openai", "outlines", "outlines-core"),
        *("pandas", "peft", "pyarrow", "pydantic", "ray", "safetensors", "setuptools"),
        *("sgl-kernel", "sglang", "sglang-kernel", "tensordict", "tokenizers", "torch", "torchao"),
        *("torchaudio", "torchvision", "transformers", "triton", "trl", "unsloth-zoo", "vllm"),
        *("xformers", "xgrammar", "protobuf", "triton", "deepspeed", "liger-kernel"),
    )
)
ENVIRONMENT = {
    "python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
    "implementation_name": "cpython", "platform_python_implementation": "CPython",
}  # fmt: skip


def required_specifiers(file: IndexFile, http: HttpClient) -> dict[str, str]:
    """Return the specifiers in a wheel's requirements on `REQUIRED_PACKAGES`, by package."""
    with published_wheels.open_wheel(file, http, block=1 << 16) as wheel:
        path = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(wheel.read(path), validate=False)
    specifiers: dict[str, str] = {}
    for extra in ("", *(metadata.provides_extra or ())):
        for each in metadata.requires_dist or ():
            name = normalize_package(each.name)
            applies = each.marker is None or each.marker.evaluate({**ENVIRONMENT, "extra": extra})
            if name in REQUIRED_PACKAGES and applies and str(each.specifier):
                specifiers.setdefault(name, str(each.specifier))
    return specifiers


def version_ranges(by_version: Mapping[Version, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the required specifiers, by required package and version range."""
    versions = list(by_version)
    rows: dict[str, dict[str, str]] = {}
    for name in sorted({name for each in by_version.values() for name in each}):
        start = 0
        for end in range(1, len(versions) + 1):
            spec = by_version[versions[start]].get(name)
            if end < len(versions) and by_version[versions[end]].get(name) == spec:
                continue
            if spec:
                above = f",<{versions[end]}" if end < len(versions) else ""
                rows.setdefault(name, {})[f">={versions[start]}{above}"] = spec
            start = end
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Write the file."""
    lines = (__doc__ or "").splitlines()
    argparse.ArgumentParser(
        description="\n".join(lines), formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(words)
    http = HttpClient()
    indexes = published_wheels.default_indexes(http)
    document = {}
    with ThreadPoolExecutor(8) as threads:
        for package, oldest in OLDEST.items():
            key = published_wheels.minor_release if package in MINORS else attrgetter("release")
            wheels = published_wheels.first_wheels(indexes.files(package), Version(oldest), key)
            values = threads.map(lambda file: required_specifiers(file, http), wheels.values())
            document[package] = version_ranges(dict(zip(wheels, values, strict=True)))
            print(package, len(wheels), file=sys.stderr)
    path = Path(files.data("diagnose/facts")) / "requirements.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=100_000), encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
