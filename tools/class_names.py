#!/usr/bin/env python3
"""Writes data/diagnose/facts/classes.yaml, which lists classes that only one or two packages have.

tools/class_names.py    read all packages in PACKAGES

Reads parts of the newest wheel and of an earlier wheel of each package on uv's default index.
Models of transformers and of inference engines are omitted, because several packages have classes
with these names.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable

import yaml
from packaging.version import Version

import published_wheels
from imgbuild.http.client import HttpClient
from imgbuild.system import files

FILE = "diagnose/facts/classes.yaml"
PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "huggingface-hub",
    "tokenizers", "bitsandbytes", "deepspeed", "vllm", "sglang", "verl", "ray", "tensordict",
    "triton", "xformers", "flashinfer-python", "torchao", "torchvision", "numpy", "pandas",
    "pydantic", "fastapi", "starlette", "prometheus-client", "prometheus-fastapi-instrumentator",
    "outlines", "xgrammar", "compressed-tensors", "llmcompressor", "gptqmodel", "autoawq",
    "unsloth-zoo", "unsloth", "ms-swift", "llamafactory", "liger-kernel", "optimum",
    "sentence-transformers", "pytorch-lightning", "omegaconf", "hydra-core", "lm-eval",
    "mistral-common", "gguf", "tensorboard", "setuptools", "tyro", "megatron-core",
    "opentelemetry-sdk", "lmcache", "httpx", "aiohttp", "jinja2", "rich", "evaluate",
)  # fmt: skip
CLASS = re.compile(r"^(?:    )?class (?P<name>(?!Test|_?Base\b)\w{6,60})\b", re.MULTILINE)
OMITTED = re.compile(r"/(?:tests?|testing|models|examples?|benchmarks?|third_party|_vendor)/")
OLDEST = Version("0.0")


def classes(package: str, http: HttpClient) -> set[str]:
    """Return the classes in the newest and in an earlier wheel of a package."""
    every = published_wheels.default_indexes(http).files(package)
    wheels = [
        *published_wheels.first_wheels(every, OLDEST, published_wheels.minor_release).values()
    ]
    names: set[str] = set()
    for file in {
        each.name: each for each in (*wheels[-1:], *wheels[len(wheels) * 2 // 3 :][:1])
    }.values():
        with published_wheels.open_wheel(file, http, block=1 << 20) as wheel:
            for path in wheel.namelist():
                if path.endswith((".py", ".pyi")) and not OMITTED.search(f"/{path}"):
                    text = wheel.read(path).decode("utf-8", "replace")
                    names |= {match["name"] for match in CLASS.finditer(text)}
        print(file.name, len(names), file=sys.stderr)
    return names


def of_one(packages: Iterable[tuple[str, set[str]]]) -> dict[str, str]:
    """Return the package of each class, or both packages if two packages have the class."""
    owners: dict[str, list[str]] = defaultdict(list)
    for package, names in packages:
        for name in names:
            owners[name].append(package)
    single: dict[str, list[str]] = defaultdict(list)
    for name, found in sorted(owners.items()):
        if len(found) <= 2 or found[0] == "torch":
            single[",".join(found[:2])].append(name)
    return {package: " ".join(names) for package, names in sorted(single.items())}


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    http = HttpClient()
    document = of_one((package, classes(package, http)) for package in PACKAGES)
    path = files.data(FILE)
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=100_000), encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
