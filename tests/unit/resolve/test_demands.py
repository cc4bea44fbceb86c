"""Tests combining the requirements in a project's files."""

from __future__ import annotations

from imgbuild.project.model import (
    Declarations,
    DeclaredName,
    DeclaredRequirement,
    FilePlace,
    LocalPackage,
)
from imgbuild.resolve import demands
from imgbuild.resolve.demands import PackageDemand
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.rows import each_row

MARKERS = WheelTags(python="3.11.2", glibc="2.36", arch=Arch.X86_64).markers


def line(text: str, number: int = 1, **more: object) -> DeclaredRequirement:
    return DeclaredRequirement(text=text, place=FilePlace("requirements.txt", number), **more)  # type: ignore[arg-type]


def joined(*lines: DeclaredRequirement, **more: object) -> dict[str, PackageDemand]:
    declared = Declarations(requirements=lines, **more)  # type: ignore[arg-type]
    return {item.package: item for item in demands.package_demands(declared, MARKERS)}


def test_requirement_lines_of_one_package_are_combined() -> None:
    demand = joined(line("Flash_Attn>=2.5", 3), line("flash-attn[x]<3", 7))["flash-attn"]
    assert (demand.spec, demand.extras) == (">=2.5,<3", ("x",))
    assert [str(place) for place in demand.places] == ["requirements.txt:3", "requirements.txt:7"]
    assert demand.allows_version("2.7.4.post1")
    assert not demand.allows_version("3.0")
    assert demand.pin is None


def test_markers_are_evaluated_for_the_image() -> None:
    lines = (
        line("a==1 ; python_version < '3.11'"),
        line("b==1 ; sys_platform == 'win32'"),
        line("c==1 ; platform_machine == 'x86_64'"),
        line("d ; extra == 'dev'"),
    )
    assert set(joined(*lines)) == {"c"}


def test_lock_file_of_a_project_overrides_version_ranges() -> None:
    demand = joined(line("trl>=0.15"), line("trl==0.18.2", locked=True))["trl"]
    assert (demand.spec, demand.locked, demand.pin) == ("==0.18.2", True, "0.18.2")


def test_override_of_a_requirement_has_the_highest_precedence() -> None:
    lines = (
        line("transformers<5"),
        line("transformers==4.57.1", locked=True),
        line("transformers>=5.4", kind="override"),
    )
    assert joined(*lines)["transformers"].spec == ">=5.4"


def test_constraint_without_a_requirement_installs_no_package() -> None:
    demands_by_name = joined(line("numpy<2", kind="constraint"), line("torch"))
    assert not demands_by_name["numpy"].installed
    assert demands_by_name["torch"].installed


@each_row(
    ("text", "pin"),
    [
        ("torch==2.6.0+cu124", "2.6.0"),
        ("torch===2.6.0+cu124", "2.6.0"),
        (
            "flash-attn @ https://example.org/flash_attn-2.8.3%2Bcu12torch2.6-cp311-cp311-linux_x86_64.whl",
            "2.8.3",
        ),
        ("torch==2.6.*", None),
        ("torch>=2.6", None),
        ("trl @ git+https://example.org/trl.git@main", None),
    ],
)
def test_single_version_that_a_range_allows_is_found(text: str, pin: str | None) -> None:
    (demand,) = joined(line(text)).values()
    assert demand.pin == pin


def test_project_and_excluded_packages_are_not_required() -> None:
    package = LocalPackage(name="My_Project", folder=".", place=FilePlace("pyproject.toml"))
    excluded = DeclaredName(name="apex", place=FilePlace("pyproject.toml"))
    lines = (line("my-project[vllm]"), line("apex"), line("peft"))
    assert set(joined(*lines, packages=(package,), excluded=(excluded,))) == {"peft"}


def test_cuda_release_of_another_platform_is_ignored() -> None:
    arm = "platform_machine == 'aarch64'"
    names = (
        DeclaredName(name="12.8", place=FilePlace("a")),
        DeclaredName(name="13.0", place=FilePlace("a"), marker=arm),
        DeclaredName(name="12.8", place=FilePlace("b")),
    )
    assert demands.cuda_releases(Declarations(cuda=names), MARKERS) == ("12.8",)
