"""Kernels that were compiled ahead: the wheel, what differs in it, and the row that uses it."""

from __future__ import annotations

import importlib
import platform
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest
import yaml

from imgbuild.cli.precompile import _gpus, _modules
from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock
from imgbuild.matrix.model import Flashinfer
from imgbuild.precompile import flashinfer, machine, pack
from imgbuild.values import Arch, sha256
from imgbuild.wheel import archive as wheels
from tests.support import samples
from tests.support.samples import elf
from tests.support.smoke_scripts import script
from tests.support.source_code import module_of


def lock(mode: str = "jit") -> Lock:
    """The lock of a target with FlashInfer 0.6.12 for CUDA 13."""
    chosen = Flashinfer(mode=mode, reason="tested")  # type: ignore[arg-type]
    source = samples.matrix(flashinfer=chosen, cuda="13.0", pins={"flashinfer-python": "0.6.12"})
    return samples.lock(samples.wheel("flashinfer-python", "0.6.12"), of=source)


def cache(folder: Path, gpus: str = "90a", **libraries: bytes) -> Path:
    """A cache of FlashInfer with libraries of these bytes, objects and its own folder of locks."""
    for name, data in {"tmp": None, **libraries}.items():
        place = folder / ".cache/flashinfer/0.6.12" / gpus / "cached_ops" / name
        place.mkdir(parents=True)
        if data is not None:
            whole = data if data.startswith(b"\x7fELF") else elf() + data
            (place / f"{name}.so").write_bytes(whole)
            (place / "x.cuda.o").write_bytes(b"object")
    return folder


def test_the_wheel_is_what_flashinfer_looks_into(tmp_path):
    one = cache(tmp_path / "one", sampling=b"S", page=b"P1")
    other = cache(tmp_path / "other", sampling=b"S", page=b"P2")
    made = flashinfer.take(lock(), Arch.X86_64, (one, other), ["9.0"], tmp_path / "out")
    result = {each.name: each.differs for each in made.kernels}
    assert result == {"page": ("outside of sections",), "sampling": ()}
    assert made.version.startswith("0.6.12+k")
    assert made.file == f"flashinfer_jit_cache-{made.version}-py3-none-manylinux_2_36_x86_64.whl"
    wheel = tmp_path / "out" / made.file
    assert (sha256(wheel.read_bytes()), wheel.stat().st_size) == (made.sha256, made.size)
    wheels.verify(wheels.read(wheel))  # as when it is locked
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    package = module_of(tmp_path / "site/flashinfer_jit_cache/__init__.py")
    assert package.__version__ == made.version
    found = Path(package.get_jit_cache_dir())
    assert (found / "page/page.so").read_bytes() == elf() + b"P1"  # the first of the two
    assert (found / "sampling/sampling.so").read_bytes() == elf() + b"S"
    [provider] = package.get_jit_cache_providers()  # what FlashInfer 0.7 asks for
    assert (provider.version, Path(provider.jit_cache_dir)) == (made.version, found)
    assert provider.distribution == flashinfer.PACKAGE
    assert (provider.cuda_architectures, provider.modules) == (("sm90a",), ("page", "sampling"))
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [made.file]


def test_the_gpu_tier_knows_which_kernels_the_image_brings(tmp_path, monkeypatch):
    """What of them is compiled all the same was missed by FlashInfer: the case fails."""
    case = script("gpu_flashinfer", monkeypatch)
    monkeypatch.setitem(sys.modules, "flashinfer_jit_cache", None)  # is not there, now or later
    assert case.carried({"sm90"}) == set()
    one, other = (cache(tmp_path / name, sampling=b"S", page=b"P") for name in ("one", "other"))
    made = flashinfer.take(lock(), Arch.X86_64, (one, other), ["9.0"], tmp_path)
    with zipfile.ZipFile(tmp_path / made.file) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    del sys.modules["flashinfer_jit_cache"]
    assert case.carried({"sm90"}) == {"sampling", "page"}
    assert case.carried({"sm80"}) == set()
    assert case.carried({"sm80", "sm90"}) == set()  # as FlashInfer takes none of them there
    monkeypatch.delattr(sys.modules["flashinfer_jit_cache"], "get_jit_cache_providers")
    assert case.carried({"sm80"}) == {"sampling", "page"}  # a wheel from before FlashInfer 0.7


@pytest.mark.parametrize(
    ("mode", "due"),
    [
        ("jit", ["/c/page.so was compiled, and lies in the image's flashinfer-jit-cache"]),
        ("prebuilt", ["/c/own.so was compiled", "/c/page.so was compiled"]),
    ],
)
def test_the_gpu_tier_tells_what_was_compiled_without_need(mode, due, monkeypatch):
    case = script("gpu_flashinfer", monkeypatch)
    made = [Path("/c/own.so"), Path("/c/page.so")]
    assert case.uncalled_for(mode, made, {"page", "sampling"}) == due


def test_one_library_is_for_several_gpus():
    folder = Path("cache/0.7.0.post1/80_90a_120f/cached_ops")
    found = flashinfer.architectures([folder / "page/page.so", folder / "sampling/sampling.so"])
    assert found == ("sm120f", "sm80", "sm90a")
    assert flashinfer.capabilities([folder / "page/page.so"]) == ("8.0", "9.0", "12.0")


def test_a_cache_of_other_gpus_or_none_is_refused(tmp_path, monkeypatch):
    folder = cache(tmp_path / "one", a=b"A")
    with pytest.raises(InputError, match=r"the cache is for 9\.0, but --gpu names 8\.0"):
        flashinfer.take(lock(), Arch.X86_64, (folder, folder), ["8.0"], tmp_path / "out")
    copied = tmp_path / "mine/cached_ops/a"
    copied.mkdir(parents=True)
    (copied / "a.so").write_bytes(elf())
    with pytest.raises(InputError, match="its folder names no GPUs, such as 90a"):
        flashinfer.take(lock(), Arch.X86_64, (copied.parents[1],) * 2, ["9.0"], tmp_path / "out")
    monkeypatch.chdir(folder / ".cache/flashinfer/0.6.12/90a")
    assert flashinfer.architectures(flashinfer.compiled(Path()).values()) == ("sm90a",)
    assert not (tmp_path / "out").exists()


def test_the_same_libraries_are_the_same_wheel(tmp_path):
    made = []
    for number, gpus in enumerate(("90a", "90a", "90a_100a")):
        pair = [cache(tmp_path / f"{name}{number}", gpus, a=b"A") for name in ("one", "other")]
        libraries = flashinfer.compiled(pair[0]).values()
        found = flashinfer.capabilities(libraries)
        out = tmp_path / f"out{number}"
        made.append(flashinfer.take(lock(), Arch.X86_64, (pair[0], pair[1]), found, out))
    assert made[0] == made[1]
    assert made[2].gpus == ("9.0", "10.0")
    assert made[2].version != made[0].version


def test_the_version_covers_all_that_the_wheel_says(tmp_path):
    """Two targets can share libraries: their wheels are not two files of one name."""
    pair = (cache(tmp_path / "one", a=b"A"), cache(tmp_path / "other", a=b"A"))
    other = msgspec.structs.replace(lock(), target="other")
    made = [
        flashinfer.take(each, Arch.X86_64, pair, ["9.0"], tmp_path / "out")
        for each in (lock(), other)
    ]
    assert made[0].version != made[1].version
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_the_row_is_one_of_the_matrix(tmp_path):
    pair = tuple(cache(tmp_path / name, "90a_100a", a=b"A") for name in ("one", "other"))
    made = flashinfer.take(lock(), Arch.X86_64, (pair[0], pair[1]), ["9.0", "10.0"], tmp_path)
    target = msgspec.structs.replace(
        samples.matrix().targets["small"], pins={"vllm": "0.24.0"}, indexes={"torch": "pytorch"}
    )
    result = yaml.safe_load(pack.row(made, target))
    assert result == {
        "small-kernels": {
            "gpu": ["9.0", "10.0"],
            "pins": {
                "vllm": "0.24.0",
                "flashinfer-python": "0.6.12",
                "flashinfer-jit-cache": made.version,
            },
            "indexes": {"torch": "pytorch", "flashinfer-jit-cache": "wheels"},
        }
    }


@pytest.mark.parametrize("mode", ["off", "prebuilt"])
def test_a_target_that_compiles_nothing_is_refused(mode, tmp_path):
    pair = (cache(tmp_path / "one", a=b"A"),) * 2
    with pytest.raises(InputError, match=f"small has FlashInfer {mode}: nothing is compiled"):
        flashinfer.take(lock(mode), Arch.X86_64, pair, ["9.0"], tmp_path / "out")
    with pytest.raises(InputError, match="the lock of small has no arm64"):
        flashinfer.take(lock(), Arch.ARM64, pair, ["9.0"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_caches_that_cannot_be_compared_are_refused(tmp_path):
    one, other = cache(tmp_path / "one", a=b"A", b=b"B"), cache(tmp_path / "other", a=b"A")
    with pytest.raises(InputError, match="one of the two compilations lacks b"):
        flashinfer.take(lock(), Arch.X86_64, (one, other), ["9.0"], tmp_path / "out")
    with pytest.raises(InputError, match=r"no cached_ops/NAME/NAME\.so was found in it"):
        flashinfer.compiled(cache(tmp_path / "none"))
    older = one / ".cache/flashinfer/0.6.11/90a/cached_ops/a"
    older.mkdir(parents=True)
    (older / "a.so").write_bytes(b"old")
    with pytest.raises(InputError, match="holds a twice"):
        flashinfer.compiled(one)


def test_libraries_say_what_machine_they_are_for(tmp_path):
    data = Path(importlib.import_module("_ctypes").__file__ or "").read_bytes()
    own = Arch.parse(platform.machine())
    [other] = set(Arch) - {own}
    folder = cache(tmp_path / "one", a=data)
    assert machine.arch_of(folder, flashinfer.compiled(folder).values()) == own
    locked = lock()
    both = msgspec.structs.replace(locked, arch=dict.fromkeys(Arch, locked.arch[Arch.X86_64]))
    with pytest.raises(InputError, match=rf"a\.so is for {own}, not for {other}"):
        flashinfer.take(both, other, (folder, folder), ["9.0"], tmp_path / "out")
    text = cache(tmp_path / "killed", a=b"")
    flashinfer.compiled(text)["a"].write_bytes(b"")  # its run was ended while it was linked
    with pytest.raises(InputError, match=r"a\.so is no library for x86_64 or arm64"):
        flashinfer.take(locked, Arch.X86_64, (text, text), ["9.0"], tmp_path / "out")
    mixed = cache(tmp_path / "text", a=data, b=b"")
    flashinfer.compiled(mixed)["b"].write_bytes(b"no library")
    libraries = flashinfer.compiled(mixed).values()
    with pytest.raises(InputError, match="no libraries that are all for x86_64 or all for arm64"):
        machine.arch_of(mixed, libraries)


def test_bytes_that_differ_are_counted_by_section():
    data = Path(importlib.import_module("_ctypes").__file__ or "").read_bytes()
    place = data.index(b".rodata")  # in the table of the sections' names
    assert flashinfer.differing(data, data) == ()
    other = data[:place] + b".rodatb" + data[place + 7 :]
    assert flashinfer.differing(data, other) == ("sections: .rodata .rodatb",)
    start = data.index(b"PyInit__ctypes")  # in the table of the names that it exports
    other = data[:start] + b"pyinit" + data[start + 6 :]
    assert flashinfer.differing(data, other) == (".dynstr: 2",)
    assert flashinfer.differing(b"abc", b"abd!") == ("the file: 2",)


def test_gpus_and_functions_have_a_form():
    assert _gpus(["9.0", "12.0"]) == ["9.0", "12.0"]
    assert _modules(None) == flashinfer.SAMPLING
    for bad in (["90"], ["9.0a"], []):
        with pytest.raises(InputError):
            _gpus(bad)
    with pytest.raises(InputError, match=r"--function os:system: not a function of FlashInfer"):
        _modules(["os:system"])
