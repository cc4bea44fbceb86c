"""Triton's kernels of two runs: the wheel of those that both compiled, and the row that uses it."""

from __future__ import annotations

import importlib
import json
import platform
import zipfile
from pathlib import Path

import msgspec
import pytest
import yaml

from imgbuild.cli.precompile import _two
from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock
from imgbuild.matrix.model import Target
from imgbuild.precompile import machine, pack, triton
from imgbuild.values import Arch, sha256
from imgbuild.wheel import archive as wheels
from tests.support import samples

ONE, OTHER, THIRD = ("A" * 52, "B" * 52, "c_-" * 14 + "c")  # as 3.6 and 3.2 name them


def lock() -> Lock:
    return samples.lock(samples.wheel("triton", "3.6.0"))


def kernel(
    folder: Path,
    key: str,
    *,
    cubin: bytes = b"GPU code",
    at: str = "/tmp/one",
    release: str = "3.6.0",
) -> Path:
    """A kernel in a cache of Triton's, as it lies there."""
    place = folder / "triton" / key
    place.mkdir(parents=True)
    said = {"target": {"backend": "cuda", "arch": 90}, "triton_version": release}
    files = {
        "add.cubin": cubin,
        "add.json": json.dumps(said).encode(),
        "add.source": at.encode(),
    }
    for name, data in files.items():
        (place / name).write_bytes(data)
    group = {"child_paths": {name: f"{place}/{name}" for name in files}}
    (place / "__grp__add.json").write_text(json.dumps(group))
    (place / "lock").touch()
    (place / "tmp.pid_7_x").mkdir()
    return folder


def test_what_both_runs_compiled_is_the_wheel(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        kernel(folder, ONE)
        kernel(folder, OTHER, at=str(folder))
    kernel(one, THIRD)
    made = triton.take(lock(), Arch.X86_64, (one, other), tmp_path / "out")
    result = [(each.key, each.name, each.differs) for each in made.kernels]
    assert result == [(ONE, "add", ()), (OTHER, "add", ("add.source",))]
    assert (made.apart, made.triton, made.gpus) == (1, "3.6.0", ("9.0",))
    assert made.file == f"imgbuild_triton-{made.version}-py3-none-manylinux_2_36_x86_64.whl"
    wheel = tmp_path / "out" / made.file
    assert (sha256(wheel.read_bytes()), wheel.stat().st_size) == (made.sha256, made.size)
    wheels.verify(wheels.read(wheel))  # as when it is locked
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        place = f"imgbuild_triton/kernels/{OTHER}"
        group = json.loads(archive.read(f"{place}/__grp__add.json"))
        source = archive.read(f"{place}/add.source")
        about = archive.read(f"imgbuild_triton-{made.version}.dist-info/METADATA").decode()
    assert group == ["add.cubin", "add.json", "add.source"]  # no path of the run
    assert source == str(one).encode()  # the first of the two
    assert "Requires-Dist: triton==3.6.0\n" in about  # another Triton would never find them
    assert "imgbuild_triton/__init__.py" in names
    assert not [name for name in names if THIRD in name or "lock" in name or "tmp.pid" in name]


def test_the_same_kernels_are_the_same_wheel(tmp_path):
    places = [kernel(tmp_path / name, ONE) for name in ("one", "other", "moved")]
    made = [
        triton.take(lock(), Arch.X86_64, (place, places[1]), tmp_path / place.name / "out")
        for place in (places[0], places[2])
    ]
    assert made[0] == made[1]
    changed = kernel(tmp_path / "changed", ONE, cubin=b"other code")
    third = triton.take(lock(), Arch.X86_64, (changed, places[1]), tmp_path / "out")
    assert third.version != made[0].version
    assert third.kernels[0].differs == ("add.cubin",)


def test_a_kernel_that_was_not_finished_is_none(tmp_path):
    folder = kernel(kernel(kernel(tmp_path, ONE), OTHER), THIRD)
    (folder / "triton" / OTHER / "add.cubin").unlink()
    (folder / "triton" / THIRD / "__grp__add.json").unlink()  # what Triton writes last
    assert list(triton.compiled(folder)) == [ONE]
    (folder / "triton" / ONE / "__grp__add.json").write_text("{")
    with pytest.raises(InputError, match="no Triton kernel was found in it"):
        triton.compiled(folder)


def test_kernels_that_vllm_keeps_by_itself_are_left_there(tmp_path):
    kernel(tmp_path, ONE)
    kernel(tmp_path / "vllm/torch_compile_cache/1", ONE)
    assert list(triton.compiled(tmp_path)) == [ONE]
    with pytest.raises(InputError, match=f"holds {ONE} twice"):
        triton.compiled(kernel(tmp_path / "triton", ONE).parent)


def test_caches_of_another_triton_or_of_nothing_in_common_are_refused(tmp_path):
    one, other = kernel(tmp_path / "one", ONE), kernel(tmp_path / "other", OTHER)
    with pytest.raises(InputError, match=f"no kernel is in both {one} and {other}"):
        triton.take(lock(), Arch.X86_64, (one, other), tmp_path / "out")
    older = kernel(tmp_path / "older", ONE, release="3.4.0")
    with pytest.raises(InputError, match=r"add \(A+…\) was compiled by Triton 3\.4\.0"):
        triton.take(lock(), Arch.X86_64, (one, older), tmp_path / "out")
    with pytest.raises(InputError, match="small has no Triton"):
        triton.take(samples.lock(), Arch.X86_64, (one, one), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_machine_is_that_of_tritons_own_libraries(tmp_path):
    folder = kernel(tmp_path / "one", ONE)
    with pytest.raises(InputError, match="no libraries that are all for x86_64 or all for arm64"):
        machine.arch_of(folder, triton.libraries(folder))
    library = Path(importlib.import_module("_ctypes").__file__ or "").read_bytes()
    place = folder / "triton" / OTHER
    place.mkdir()
    (place / "cuda_utils.so").write_bytes(library)
    own = Arch.parse(platform.machine())
    [another] = set(Arch) - {own}
    assert machine.arch_of(folder, triton.libraries(folder)) == own
    locked = lock()
    both = msgspec.structs.replace(locked, arch=dict.fromkeys(Arch, locked.arch[Arch.X86_64]))
    with pytest.raises(InputError, match=rf"cuda_utils\.so is for {own}, not for {another}"):
        triton.take(both, another, (folder, folder), tmp_path / "out")


def test_the_row_is_one_of_the_matrix(tmp_path):
    folder = kernel(tmp_path / "one", ONE)
    made = triton.take(lock(), Arch.X86_64, (folder, folder), tmp_path / "out")
    target = samples.matrix().targets["small"]
    found = yaml.safe_load(pack.row(made, target))["small-kernels"]
    assert found["pins"] == {**target.pins, "imgbuild-triton": made.version}
    assert found["indexes"]["imgbuild-triton"] == "wheels"
    assert found["env"]["TRITON_CACHE_MANAGER"]["value"] == "imgbuild_triton:Cache"
    whole = {**msgspec.to_builtins(target), **found}
    assert msgspec.convert(whole, Target).env["TRITON_CACHE_MANAGER"].source


def test_two_runs_are_compared(tmp_path):
    with pytest.raises(InputError, match="both caches are the same folder"):
        _two([tmp_path, tmp_path / "."])
    for named in (None, [Path("one")], [Path("one")] * 3):
        with pytest.raises(InputError, match=f"expected two folders, got {len(named or ())}"):
            _two(named)
