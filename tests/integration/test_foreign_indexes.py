"""Tests locking targets that require several indexes, with local servers.

The servers have small real wheels on pages in the format of the PyTorch and FlashInfer indexes. A
wheel of the user is in a folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from imgbuild.cache.store import Store
from imgbuild.values import Arch, sha256
from tests.support import images, sample_project
from tests.support.local_index import LocalIndex, wheel_bytes
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

TOOLKIT_126 = ('nvidia-cublas-cu12==12.6.4.1.*; extra == "all"',)
TOOLKIT_130 = ('nvidia-cublas==13.1.0.3.*; extra == "all"',)
OWN = "flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
MATRIX = """\
version: 1
indexes:
  pypi: {{}}
  pytorch: {{url: '{pytorch}/whl/{{cuda_tag}}', upload_times: none}}
  flashinfer: {{url: '{flashinfer}/whl/{{cuda_tag}}/torch{{torch}}/', upload_times: none}}
  flashinfer-cache: {{url: '{flashinfer}/whl/{{cuda_tag}}/', upload_times: none}}
  flashinfer-cubin: {{url: '{flashinfer}/whl/', upload_times: none}}
  wheels: {{url: 'file:wheels', upload_times: none, flat: true}}
default_index: pypi
bases:
  below: {base}
image:
  prefix: /opt/venv
  user: {{name: trainer, uid: 1234, gid: 1234, home: /home/trainer}}
  workdir: /workspace
  cache: /var/cache/imgbuild
  entrypoint: [/opt/imgbuild/entrypoint]
  cmd: [bash]
  env: {{PATH: {{value: '/opt/venv/bin:/usr/bin:/bin', reason: commands come first}}}}
  labels: {{}}
requires: {{}}
layers: {{own_from: 1000000, named: [torch], groups: 2, order: [torch], limit: 40}}
targets:
  near:
    {common}
    cuda: "12.4"
    arch: [x86_64]
    pins: {{torch: "2.6.0"}}
    flashinfer: {{mode: "off", reason: nothing asks for it}}
  arm:
    {common}
    cuda: "12.6"
    arch: [arm64]
    pins: {{torch: "2.9.0"}}
    indexes: {{torch: pytorch, triton: pytorch}}
    flashinfer: {{mode: "off", reason: nothing asks for it}}
  ready:
    {common}
    cuda: "12.4"
    arch: [x86_64]
    pins: {{torch: "2.6.0", flashinfer-python: "0.2.5"}}
    indexes: {{flashinfer-python: flashinfer}}
    flashinfer: {{mode: prebuilt, reason: it is compiled there}}
  cached:
    {common}
    cuda: "13.0"
    arch: [x86_64]
    pins: {{torch: "2.11.0", flashinfer-python: "0.6.12", flashinfer-jit-cache: "0.6.12"}}
    indexes: {{flashinfer-jit-cache: flashinfer-cache}}
    flashinfer: {{mode: prebuilt, reason: it is compiled there}}
  parted:
    {common}
    cuda: "13.0"
    arch: [x86_64]
    pins:
      torch: "2.11.0"
      flashinfer-python: "0.7.2"
      flashinfer-cubin: "0.7.2"
      flashinfer-jit-cache: "0.7.2"
    indexes:
      flashinfer-cubin: flashinfer-cubin
      flashinfer-jit-cache: flashinfer-cache
      flashinfer-jit-cache-sm80: flashinfer-cache
      flashinfer-jit-cache-sm90a: flashinfer-cache
    flashinfer: {{mode: prebuilt, reason: it is compiled there}}
  own:
    {common}
    cuda: "12.4"
    arch: [x86_64]
    pins: {{torch: "2.6.0"}}
    requires: {{flash-attn: {{reason: no index has a wheel of it}}}}
    indexes: {{flash-attn: wheels}}
    flashinfer: {{mode: "off", reason: nothing asks for it}}
"""
COMMON = "summary: a small image\n    base: below\n    as_of: 2026-01-01"


def public() -> LocalIndex:
    """The default index, which has torch with CUDA only for x86_64."""
    index = sample_project.sample_index()
    index.wheel("cuda-toolkit", "12.6.3", TOOLKIT_126)
    index.wheel("cuda-toolkit", "13.0.2", TOOLKIT_130)
    index.wheel("nvidia-cublas-cu12", "12.6.4.1")
    index.wheel("nvidia-cublas", "13.1.0.3")
    index.wheel("nvidia-cuda-nvcc", "13.0.88")
    index.wheel("nvidia-cuda-cccl", "13.0.85")
    index.wheel("torch", "2.9.0", ["helper"], tag="cp311-cp311-manylinux_2_28_aarch64")
    index.wheel("torch", "2.11.0", ["nvidia-cublas==13.1.0.3"])
    index.wheel("triton", "3.5.0", tag="cp311-cp311-manylinux_2_27_x86_64")
    index.wheel("flashinfer-python", "0.6.12", ["torch"])
    index.wheel("flashinfer-python", "0.7.2", ["torch"])
    index.wheel("flashinfer-python", "0.2.5", ["torch"])  # without kernels, and not to be taken
    return index


def pytorch() -> LocalIndex:
    """An index with builds for CUDA 12.6 and copies of packages that must not be used."""
    index = LocalIndex()
    requires = ["nvidia-cublas-cu12==12.6.4.1", "helper", "triton==3.5.0"]
    for arch in ("x86_64", "aarch64"):
        tag = f"cp311-cp311-manylinux_2_28_{arch}"
        index.wheel("torch", "2.9.0+cu126", requires, tag=tag)
        index.wheel("triton", "3.5.0", tag=f"cp311-cp311-manylinux_2_27_{arch}")
    index.wheel("torch", "2.9.0+cu126", requires, tag="cp311-cp311-win_amd64")
    index.wheel("helper", "99.0")
    return index


def flashinfer() -> tuple[LocalIndex, LocalIndex, LocalIndex]:
    """An index with wheels for one torch, kernel caches of a release, and cubins for any CUDA.

    Since 0.6.16, a kernel cache contains no kernels and requires a package for each generation of
    GPUs.
    """
    wheels, cache, cubins = LocalIndex(), LocalIndex(), LocalIndex()
    for local in ("cu124torch2.5", "cu124torch2.6"):
        wheels.wheel("flashinfer-python", f"0.2.5+{local}", ["torch"], tag="cp38-abi3-linux_x86_64")
    for version in ("0.6.11", "0.6.12"):
        for tag in ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64"):
            cache.wheel("flashinfer-jit-cache", f"{version}+cu130", tag=f"cp39-abi3-{tag}")
    parts = [f"flashinfer-jit-cache-{gpu}" for gpu in ("sm80", "sm90a")]
    tag = "cp39-abi3-manylinux_2_28_x86_64"
    for part in parts:
        cache.wheel(part, "0.7.2+cu130", tag=tag)
    needs = [f"{part}==0.7.2+cu130" for part in parts]
    cache.wheel("flashinfer-jit-cache", "0.7.2+cu130", needs, tag=tag)
    cubins.wheel("flashinfer-cubin", "0.7.2")
    return wheels, cache, cubins


class Net:
    """The servers of the default index and a registry, of PyTorch, FlashInfer and its releases."""

    def __init__(self) -> None:
        self.default, self.pytorch, self.flashinfer, self.releases = (FileSite() for _ in range(4))


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    with (
        serve_site(net.default),
        serve_site(net.pytorch),
        serve_site(net.flashinfer),
        serve_site(net.releases),
    ):
        net.default.files |= public().site_files()
        net.pytorch.files |= pytorch().pytorch_files("cu126")
        base = "flashinfer-ai/flashinfer/releases/download"
        wheels, cache, cubins = flashinfer()
        for index, folder in ((wheels, "cu124/torch2.6"), (cache, "cu130"), (cubins, "")):
            net.flashinfer.files |= index.flashinfer_pages(folder, net.releases.url(base))
            for item in index.published:
                path = f"{base}/{index.release(item)}"
                # A release's file is on another host, at a signed URL.
                signed = net.releases.url(f"objects/{sha256(item.data)}?sig=s3cret")
                for spelt in (path, path.replace("+", "%2B")):
                    net.releases.redirects[f"/{spelt}"] = signed
                net.releases.files[f"objects/{sha256(item.data)}"] = item.data
        yield net


@pytest.fixture
def project(net: Net, tmp_path: Path) -> Project:
    """A project without locks, whose matrix refers to these servers."""
    images.python_base(tmp_path, tuple(Arch))
    base = {
        "kind": "registry",
        "image": sample_project.serve_image(net.default, tmp_path / "base", "base"),
        "python": "3.11",
        "glibc": "2.36",
        "interpreter": "/usr/bin/python3.11",
    }
    project = Project(tmp_path / "project", net.default.url("simple"), cache=tmp_path / "cache")
    project.folder.mkdir()
    text = MATRIX.format(
        pytorch=net.pytorch.url("").rstrip("/"),
        flashinfer=net.flashinfer.url("").rstrip("/"),
        base=json.dumps(base),
        common=COMMON,
    )
    (project.folder / "matrix.yaml").write_text(text, encoding="utf-8")
    return project


def wheels(project: Project, target: str, arch: str = "x86_64") -> dict[str, Any]:
    """The locked wheels of a target, by package."""
    locked = project.read(f"{target}/lock.json")["arch"][arch]["wheels"]
    return {wheel["package"]: wheel for wheel in locked}


def requested_paths(site: FileSite) -> set[str]:
    """The requested paths, unescaped."""
    return {unquote(path) for _, path, _ in site.requests}


def test_arm64_torch_is_locked_from_pytorch_index(project: Project, net: Net) -> None:
    project.run("lock", "arm")
    locked_wheels = wheels(project, "arm", "arm64")
    torch = locked_wheels["torch"]
    assert (torch["version"], torch["index"]) == ("2.9.0+cu126", "pytorch")
    assert torch["file"] == "torch-2.9.0+cu126-cp311-cp311-manylinux_2_28_aarch64.whl"
    data = net.pytorch.files[f"whl/cu126/{torch['file'].replace('+', '%2B')}"]
    assert (torch["sha256"], torch["size"]) == (sha256(data), len(data))
    assert locked_wheels["triton"]["index"] == "pytorch"
    assert (locked_wheels["helper"]["version"], locked_wheels["helper"]["index"]) == ("0.5", "pypi")
    assert locked_wheels["nvidia-cublas-cu12"]["version"] == "12.6.4.1"
    # METADATA was read next to the wheel; no page of an unassigned package was requested.
    assert f"/whl/cu126/{torch['file']}.metadata" in requested_paths(net.pytorch)
    assert "/whl/cu126/helper/" not in requested_paths(net.pytorch)
    project.run("build", "arm")
    project.run("lock", "--check", "arm")


def test_flashinfer_wheel_for_torch_is_locked(project: Project, net: Net) -> None:
    project.run("lock", "ready")
    wheel = wheels(project, "ready")["flashinfer-python"]
    assert (wheel["version"], wheel["index"]) == ("0.2.5+cu124torch2.6", "flashinfer")
    settings = project.read("ready/lock.json")["settings"]
    assert settings["labels"]["dev.imgbuild.flashinfer"] == "prebuilt"
    assert settings["env"]["IMGBUILD_FLASHINFER"] == "prebuilt"
    assert f"/objects/{wheel['sha256']}" in requested_paths(net.releases)
    everything = b"".join(project.files().values())
    assert b"s3cret" not in everything
    assert str(net.releases.port).encode() not in everything
    project.run("build", "ready")


@pytest.mark.long
def test_compiled_kernel_cache_package_is_locked(project: Project) -> None:
    project.run("lock", "cached")
    locked_wheels = wheels(project, "cached")
    cache = locked_wheels["flashinfer-jit-cache"]
    assert (cache["version"], cache["index"]) == ("0.6.12+cu130", "flashinfer-cache")
    assert locked_wheels["flashinfer-python"]["index"] == "pypi"


@pytest.mark.long
def test_kernel_cache_package_for_each_gpu_generation_is_locked(project: Project) -> None:
    project.run("lock", "parted")
    locked_wheels = wheels(project, "parted")
    assert {
        name: wheel["index"]
        for name, wheel in locked_wheels.items()
        if name.startswith("flashinfer")
    } == {
        "flashinfer-cubin": "flashinfer-cubin",
        "flashinfer-jit-cache": "flashinfer-cache",
        "flashinfer-jit-cache-sm80": "flashinfer-cache",
        "flashinfer-jit-cache-sm90a": "flashinfer-cache",
        "flashinfer-python": "pypi",
    }
    assert locked_wheels["flashinfer-jit-cache-sm90a"]["version"] == "0.7.2+cu130"


def test_wheel_provided_by_the_user_is_locked(project: Project) -> None:
    done = project.run("lock", "own", status=8)
    assert "own needs a wheel of flash-attn in wheels/" in " ".join(done.stderr.split())
    (project.folder / "wheels").mkdir()
    version, tag = "2.8.3+cu12torch2.6cxx11abiFALSE", "cp311-cp311-linux_x86_64"
    data = wheel_bytes("flash-attn", version, ["torch"], tag=tag)
    (project.folder / "wheels" / OWN).write_bytes(data)
    project.run("lock", "own")
    wheel = wheels(project, "own")["flash-attn"]
    assert (wheel["file"], wheel["index"]) == (OWN, "wheels")
    assert wheel["sha256"] == sha256(data)
    assert str(project.folder).encode() not in b"".join(project.files().values())
    # Another file with that name does not match the lock.
    assert project.cache is not None
    Store.open(project.cache).drop_file(sha256(data))
    other = wheel_bytes("flash-attn", version, ["torch", "helper"], tag=tag)
    (project.folder / "wheels" / OWN).write_bytes(other)
    project.run("build", "own", status=9)


def test_lock_with_the_all_option_skips_targets_with_unmet_requirements(project: Project) -> None:
    done = project.run("lock", "--all")
    expected = {"near", "layers.json", "packages.json"}
    assert {path.split("/")[0] for path in project.files()} == expected
    messages = " ".join(done.stderr.split())
    for target, need in (
        ("arm", "the index pytorch for torch, triton"),
        ("ready", "the index flashinfer for flashinfer-python"),
        ("own", "a wheel of flash-attn in wheels/"),
    ):
        assert f"skipping {target}, which needs {need}" in messages
    rows = json.loads(project.run("list", "--json").stdout)
    states = {row["target"]: row["state"] for row in rows}
    assert states["near"] == "locked"
    assert states["arm"] == "needs the index pytorch for torch, triton"
    # Once locked by name, it is a regular target.
    project.run("lock", "ready")
    done = project.run("build", "--all")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"near", "ready"}


def test_index_that_refuses_requests_is_reported(project: Project, net: Net) -> None:
    net.pytorch.refusals = [(403, {})] * 20
    assert "403" in project.run("lock", "arm", status=7).stderr
    assert not (project.folder / "images" / "arm" / "lock.json").exists()


def test_cpu_build_of_torch_on_the_default_index_is_refused(project: Project) -> None:
    path = project.folder / "matrix.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("indexes: {torch: pytorch, triton: pytorch}", "indexes: {}"))
    message = " ".join(project.run("lock", "arm", status=8).stderr.split())
    assert "error: arm for arm64: " in message
    assert "CPU builds" in message
