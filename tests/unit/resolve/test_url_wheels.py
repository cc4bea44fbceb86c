"""Tests which targets are compatible with a wheel by URL, according to its file name."""

from __future__ import annotations

from imgbuild.project.model import FilePlace
from imgbuild.resolve import url_wheels
from imgbuild.resolve.choose import LockedFacts
from imgbuild.resolve.demands import PackageDemand
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.rows import each_row

FOLDER = "https://host.example/releases"


def tags(python: str) -> WheelTags:
    return WheelTags(python=python, glibc="2.36", arch=Arch.X86_64)


def wheel(local: str, python: str, machine: str = "x86_64") -> PackageDemand:
    name = f"flash_attn-2.7.4.post1{local}-{python}-linux_{machine}.whl"
    source = f"{FOLDER}/{name.replace('+', '%2B')}"
    return PackageDemand(package="flash-attn", source=source, places=(FilePlace("a.txt", 3),))


def nearest(*demands: PackageDemand) -> set[str]:
    facts = [
        LockedFacts(
            target=f"{python}-{torch}",
            arch=Arch.X86_64,
            versions={"torch": torch},
            python=python,
            cuda="12.4",
            as_of="2026-01-01",
        )
        for python in ("3.11", "3.13")
        for torch in ("2.6.0", "2.8.0")
    ]
    return {each.target for each in url_wheels.most_compatible(facts, lambda _: demands, tags)}


@each_row(
    ("demand", "targets"),
    [
        (wheel("+cu12torch2.6cxx11abiFALSE", "cp311-cp311"), {"3.11-2.6.0"}),
        (wheel("+cu12torch2.8cxx11abiTRUE", "cp313-cp313"), {"3.13-2.8.0"}),
        (wheel("+cu.12.8.torch.2.8", "cp39-abi3"), {"3.11-2.8.0", "3.13-2.8.0"}),
        (wheel("", "cp313-cp313"), {"3.13-2.6.0", "3.13-2.8.0"}),
        (wheel("+cu12torch2.6", "cp312-cp312"), {"3.11-2.6.0", "3.13-2.6.0"}),
        (
            PackageDemand(package="trl", source="git+https://host.example/trl@v1"),
            {"3.11-2.6.0", "3.11-2.8.0", "3.13-2.6.0", "3.13-2.8.0"},
        ),
    ],
)
def test_name_of_a_required_wheel_selects_targets_by_python_and_torch(
    demand: PackageDemand, targets: set[str]
) -> None:
    assert nearest(demand) == targets


def test_wheel_for_a_different_python_or_machine_is_reported_with_its_location() -> None:
    local = "+cu12torch2.6cxx11abiFALSE"
    fitting = wheel(local, "cp311-cp311")
    other, arm = wheel(local, "cp312-cp312"), wheel(local, "cp311-cp311", "aarch64")
    python, machine = url_wheels.unfit_wheels([fitting, other, arm], tags("3.11"))
    assert (python.cause, python.version) == ("python", "2.7.4.post1")
    assert str(python).startswith(f"a.txt:3: flash-attn @ {FOLDER}/")
    assert str(python).endswith("the wheel is for Linux x86_64, Python cp312")
    assert str(machine).endswith("the wheel is for Linux aarch64, Python cp311")
