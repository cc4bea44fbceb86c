"""Tests that a pinned engine determines torch if the project does not pin it."""

from __future__ import annotations

from imgbuild.index.pages import IndexFile
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.engine_torch import add_engine_torch, newest_build
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.rows import each_row

MARKERS = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64).markers
METADATA = {
    "vllm==0.9.2": "Requires-Dist: torch==2.7.0",
    "sglang==0.5.2": (
        "Requires-Dist: sglang[srt]; extra == 'all'\nRequires-Dist: torch==2.8.0; extra == 'srt'"
    ),
    "torchvision==0.21.0": "Requires-Dist: torch==2.6.0",
    "torchaudio==2.4.0": "Requires-Dist: torch==2.4.0",
}
NEWEST = {"vllm": "0.9.2", "torchaudio": "2.4.0"}


def demand(text: str, *extras: str) -> PackageDemand:
    name, _, spec = text.partition(" ")
    return PackageDemand(package=name, spec=spec, extras=extras)


def metadata(pinned: PackageDemand) -> bytes:
    text = METADATA[f"{pinned.package}=={pinned.pin or NEWEST[pinned.package]}"]
    return f"Metadata-Version: 2.1\nName: x\n{text}\n".encode()


@each_row(
    ("demands", "torch"),
    [
        ([demand("vllm ==0.9.2")], "==2.7.0"),
        ([demand("vllm ==0.9.2"), demand("torch >=2.6")], ">=2.6,==2.7.0"),
        ([demand("vllm ==0.9.2"), demand("torch ==2.7.1")], "==2.7.1"),
        ([demand("sglang ==0.5.2", "all")], "==2.8.0"),
        ([demand("sglang ==0.5.2")], None),
        ([demand("vllm >=0.8"), demand("torchvision ==0.21.0")], "==2.6.0"),
        ([demand("vllm >=0.8")], None),
        ([demand("vllm <=0.9.2")], "==2.7.0"),
        ([demand("vllm >=0.8,<0.10")], None),
        ([demand("vllm !=0.9.1")], None),
        ([demand("torchaudio <=2.4.0"), demand("torch")], "==2.4.0"),
        ([demand("trl ==0.17.0"), demand("torch")], ""),
    ],
)
def test_pinned_engine_determines_the_torch_version(
    demands: list[PackageDemand], torch: str | None
) -> None:
    result = {each.package: each for each in add_engine_torch(demands, MARKERS, metadata)}
    assert (result["torch"].spec if "torch" in result else None) == torch
    assert {each.package for each in demands} <= set(result)


def test_torch_version_of_an_engine_is_not_an_added_package() -> None:
    (_, torch) = add_engine_torch([demand("vllm ==0.9.2")], MARKERS, metadata)
    assert not torch.installed


def wheel(version: str) -> IndexFile:
    return IndexFile(name=f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl", url=version)


@each_row(
    ("versions", "cuda", "expected"),
    [
        (["2.4.0"], "12.4", ("2.4.0", "12.1")),
        (["2.6.0", "2.4.0"], "12.1", ("2.4.0", "12.1")),
        (["2.6.0", "2.4.0"], "13.0", ("2.6.0", "12.4")),
        (["1.0.0", "2.0.1"], "12.4", ("2.0.1", "11.7")),
        (["1.0.0"], "12.4", None),
        ([], "12.4", None),
    ],
)
def test_torch_build_of_the_cuda_release_is_preferred(
    versions: list[str], cuda: str, expected: tuple[str, str] | None
) -> None:
    requires = {
        "2.6.0": "nvidia-cuda-runtime-cu12==12.4.127",
        "2.4.0": "nvidia-cuda-runtime-cu12==12.1.105",
        "2.0.1": "nvidia-cuda-runtime-cu11==11.7.99",
        "1.0.0": "numpy",
    }

    def read(file: IndexFile) -> bytes:
        return f"Metadata-Version: 2.1\nName: torch\nRequires-Dist: {requires[file.url]}\n".encode()

    built = newest_build(map(wheel, versions), read, MARKERS, {cuda})
    assert (built and (str(built.version), built.cuda)) == expected
