"""Tests that calls are evaluated in a package set without running them."""

from __future__ import annotations

from imgbuild.audit.main_path.answers import answer_expression
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules

TOOLS = """
import importlib.metadata
import importlib.util
import operator as op
from functools import lru_cache
from typing import Any

from packaging import version

MIN_KERNELS = "0.17"
OPERATORS = {">=": op.ge, "<": op.lt}
DISTRIBUTIONS = importlib.metadata.packages_distributions()
try:
    import accelerate.hooks
    _has_accelerate = True
except ImportError:
    _has_accelerate = False


def _package(name: str, return_version: bool = False) -> tuple[bool, str]:
    there = importlib.util.find_spec(name) is not None
    found = "N/A"
    if there and return_version:
        for each in (name, name.replace("_", "-")):
            try:
                found = importlib.metadata.version(each)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
        logger.debug(f"{name} {found}")
    return (there, found) if return_version else (there, None)


@lru_cache
@assume_constant
def is_kernels_available(least: str = MIN_KERNELS, below: str = "0.20") -> bool:
    there, found = _package("kernels", return_version=True)
    viable = False
    if found != "N/A":
        viable = version.parse(found) >= version.parse(least) and version.parse(
            found
        ) < version.parse(below)
    return there and viable


def required_torch_version(min_version=None, max_version=None):
    assert min_version or max_version, "one of them"
    import torch
    have = version.parse(torch.__version__)
    if min_version and version.parse(str(min_version)) > have:
        return False
    if max_version and version.parse(str(max_version)) < have:
        return False
    return True


def compare(name, sign, wanted):
    return OPERATORS[sign](version.parse(importlib.metadata.version(name)), version.parse(wanted))


def is_new(package, least):
    try:
        names = DISTRIBUTIONS[package]
        found = importlib.metadata.version(package if package in names else names[0])
    except KeyError:
        return False
    return version.parse(found) >= version.parse(least)


def has_accelerate():
    return _has_accelerate


def of_environment(name="A"):
    import os
    return os.environ.get(name) == "1"


def in_a_loop():
    for line in open("x"):
        if "nvtx" in line:
            return False
    return True


def is_python_3_10():
    import sys
    return sys.version_info >= (3, 10) and sys.version_info[:2] < (3, 12)


async def suspended():
    return True


def changed_list():
    found = []
    fill(found)
    return not found


def flags():
    import sys
    return not sys.flags.optimize or sys.gettrace is None


def recursive():
    return recursive()
"""


def test_evaluation_can_use_libraries_that_a_partial_set_lacks() -> None:
    sources = {"lib 1": {"lib.py": TOOLS}, "torch 2.4": {"torch.py": "__version__ = '2.4'\n"}}
    question = "lib::required_torch_version(min_version=1.11)"
    assert answer_expression(SourceModules(sources, partial=True), question) is True
    assert answer_expression(SourceModules(sources), question) is None


def packages(**versions: str) -> SourceModules:
    sources = {"lib 1": {"lib/__init__.py": "from lib.tools import *\n", "lib/tools.py": TOOLS}}
    sources["packaging 25"] = {"packaging/__init__.py": "", "packaging/version.py": ""}
    for name, version in versions.items():
        source = f"__version__ = '{version}'\n"
        sources[f"{name} {version}"] = {f"{name}/__init__.py": source, f"{name}/hooks.py": ""}
    return SourceModules(sources)


@each_row(
    ("call", "versions", "expected"),
    [
        ("is_kernels_available()", {"kernels": "0.17.1"}, True),
        ("is_kernels_available()", {"kernels": "0.15"}, False),
        ("is_kernels_available()", {"kernels": "0.20"}, False),
        ("is_kernels_available()", {}, False),
        ("is_kernels_available('0.10')", {"kernels": "0.15"}, True),
        ("is_kernels_available(below='0.15')", {"kernels": "0.15"}, False),
        ("is_kernels_available(...)", {"kernels": "0.15"}, None),
        ("is_kernels_available(least=...)", {"kernels": "0.20"}, False),
        ("required_torch_version(min_version=1.11)", {"torch": "2.4.0"}, True),
        ("required_torch_version(min_version=2.5)", {"torch": "2.4.0"}, False),
        ("required_torch_version(max_version=2.3)", {"torch": "2.4.0"}, False),
        ("required_torch_version(min_version=...)", {"torch": "2.4.0"}, None),
        ("compare('torch', '>=', '2.4')", {"torch": "2.4.0"}, True),
        ("compare('torch', '<', '2.4')", {"torch": "2.4.0"}, False),
        ("compare('torch', ..., '2.4')", {"torch": "2.4.0"}, None),
        ("is_new('torch', '2.4')", {"torch": "2.4.0"}, True),
        ("is_new('torch', '2.5')", {"torch": "2.4.0"}, False),
        ("is_new('torch', '2.5')", {}, False),
        ("has_accelerate()", {"accelerate": "1"}, True),
        ("has_accelerate()", {}, False),
        ("of_environment()", {}, None),
        ("in_a_loop()", {}, None),
        ("is_python_3_10()", {}, True),
        ("suspended()", {}, None),
        ("changed_list()", {}, None),
        ("flags()", {}, None),
        ("recursive()", {}, None),
        ("absent()", {}, None),
    ],
)
def test_truth_value_of_a_call_is_evaluated(
    call: str, versions: dict[str, str], expected: bool | None
) -> None:
    modules = packages(**versions)
    assert answer_expression(modules, f"lib.tools::{call}") is expected
    assert answer_expression(modules, f"lib::{call}") is expected
