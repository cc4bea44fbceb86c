"""Tests that conflicts explained by uv, pip and poetry are reduced to two requirements."""

from __future__ import annotations

import io

import pytest

from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding

UV = "  \u00d7 No solution found when resolving dependencies:\n  ╰─▶ "


def first(text: str) -> LogFinding:
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


def test_two_packages_that_require_disjoint_ranges_are_explained() -> None:
    finding = first(
        f"{UV}Because acme-rl==2.1 depends on slots>=4.55.0 and you require acme-rl==2.1, we can\n"
        "      conclude that you require slots>=4.55.0.\n"
        "      And because you require slots<4.50, we can conclude that your requirements are\n"
        "      unsatisfiable.\n"
    )
    assert (finding.code, finding.confidence) == ("IMG910", "high")
    assert "acme-rl==2.1 needs slots>=4.55.0, and you require slots<4.50" in finding.cause
    assert finding.cure.startswith("change the requirement slots<4.50, or use another version")


def test_version_that_no_index_has_is_explained() -> None:
    finding = first(
        f"{UV}Because there is no version of slots{{sys_platform == 'linux'}}==0.3+a1.d20 and\n"
        "      acme-rl==0.11.dev1 depends on slots{sys_platform == 'linux'}==0.3+a1.d20, we can\n"
        "      conclude that acme-rl==0.11.dev1 cannot be used.\n"
        "      And because only acme-rl==0.11.dev1 is available and you require acme-rl, we can\n"
        "      conclude that your requirements are unsatisfiable.\n"
    )
    assert "acme-rl==0.11.dev1 needs slots==0.3+a1.d20, and no index has" in finding.cause
    assert "add the index with these builds" in finding.cure


def test_cause_names_the_environment_of_a_forked_resolution() -> None:
    finding = first(
        "  x No solution found when resolving dependencies for split (sys_platform == 'darwin'):\n"
        "  ╰─▶ Because there is no version of slots==2.6.0+cpu and your project depends on\n"
        "      slots==2.6.0+cpu, we can conclude that your requirements are unsatisfiable.\n"
    )
    assert "you require slots==2.6.0+cpu" in finding.cause
    assert "sys_platform == 'darwin'" in finding.cause
    assert "environments in [tool.uv]" in finding.cure


def test_cause_of_a_conflict_names_a_prerelease() -> None:
    finding = first(
        f"{UV}Because there is no version of slots==0.2.9rc2 and acme-rl==4 depends on"
        " slots==0.2.9rc2, we can conclude that acme-rl==4 cannot be used.\n"
    )
    assert "it is a pre-release" in finding.cause
    assert "--prerelease=allow" in finding.cure


def test_conflict_explained_by_pip_is_read() -> None:
    finding = first(
        "ERROR: Cannot install acme-rl==2.1 and fans==3 because these package versions have"
        " conflicting dependencies.\n\nThe conflict is caused by:\n"
        "    acme-rl 2.1 depends on slots>=4.5\n    fans 3 depends on slots<4\n\n"
        "To fix this you could try to:\n"
    )
    assert finding.code == "IMG910"
    assert "acme-rl 2.1 needs slots>=4.5, and fans 3 needs slots<4" in finding.cause


@pytest.mark.parametrize("count", [1, 3000])
def test_explanation_of_a_conflict_has_a_length_limit(count: int) -> None:
    text = UV + "".join(
        f"Because acme-{n} depends on slots=={n}, we can\n      conclude that\n"
        for n in range(count)
    )
    text += "error: the command ended with exit code 1\n"
    assert len(first(text).cause) < 600


def test_wheels_for_another_platform_are_reported_in_lines_with_timestamps() -> None:
    finding = first(
        "0.759   \u00d7 No solution found when resolving dependencies:\n"
        "0.759   ╰─▶ Because only slots==0.3.dev7 is available and slots==0.3.dev7 has no wheels\n"
        "0.759       with a matching platform tag (e.g., `manylinux_2_39_aarch64`), we can\n"
        "0.759       conclude that your requirements are unsatisfiable.\n"
    )
    assert finding.code == "IMG605"
    assert finding.cause.startswith("slots==0.3.dev7 has no wheel for Linux on arm64")


def test_hint_about_the_only_version_on_an_index_is_not_the_cause() -> None:
    finding = first(
        f"{UV}Because there is no version of valves==0.3+a1 and slots==0.3.dev7 depends on\n"
        "      valves==0.3+a1, we can conclude that slots==0.3.dev7 cannot be used.\n"
        "      And because only slots==0.3.dev7 is available and you require slots, we can\n"
        "      conclude that your requirements are unsatisfiable.\n\n"
        "      hint: `slots` was found on https://wheels.example/nightly, but not at the\n"
        "      requested version (all of:\n"
    )
    assert "slots==0.3.dev7 needs valves==0.3+a1" in finding.cause


def test_conflict_explained_by_poetry_is_read() -> None:
    finding = first(
        "Because no versions of acme-rl match >2.1,<3.0\n"
        " and acme-rl (2.1) depends on slots (>=4.55), acme-rl (>=2.1,<3.0) requires slots\n"
        "And because fans (3.0) depends on slots (<4.50)\n"
        " and no versions of fans match >3.0, acme-rl (>=2.1,<3.0) is incompatible with fans\n"
        "So, because pumps depends on fans (^3.0) and acme-rl (^2.1), version solving failed.\n"
    )
    assert "acme-rl==2.1 needs slots>=4.55, and fans==3.0 needs slots<4.50" in finding.cause


def test_conflicts_reported_by_pip_are_cured_with_one_command() -> None:
    text = "".join(
        f"{by} requires {need}, but you have {have} which is incompatible.\n"
        for by, need, have in (
            ("slots 0.5.0", "torch>=2.4", "torch 2.2.0"),
            ("acme-rl 2.1", "torch==2.4.0", "torch 2.2.0"),
            ("acme-rl 2.1", "pumps>=4.45", "pumps 4.40.1"),
        )
    )
    (finding,) = diagnose_log(io.BytesIO(f"{text}error: exit code 1\n".encode()), "log").findings
    assert finding.code == "IMG615"
    assert finding.cause.startswith("acme-rl 2.1 needs torch==2.4.0, pumps>=4.45, and pip has")
    assert "pip install 'acme-rl==2.1' 'torch==2.4.0' 'pumps>=4.45'" in finding.cure
    goes_on = text + "".join(f"step {number} of 90: loss 0.{number}\n" for number in range(90))
    assert not diagnose_log(io.BytesIO(goes_on.encode()), "log").findings


@pytest.mark.parametrize(
    ("wanted", "listed", "system"),
    [
        ("torch==2.9.0", "2.4.0, 2.4.1", "Python 3.8"),
        ("torch==2.4.0", "2.5.0, 2.9.0", "Python 3.13"),
        ("acme==2", "0.9, 1.0", "an older Python"),
    ],
)
def test_python_version_is_derived_from_versions_listed_by_pip(
    wanted: str, listed: str, system: str
) -> None:
    finding = first(
        f"ERROR: Could not find a version that satisfies the requirement {wanted} (from versions:"
        f" {listed})\nERROR: No matching distribution found for {wanted}\n"
    )
    assert finding.code == "IMG617"
    assert f"this is {system}" in finding.cause


def test_cure_for_a_missing_torch_build_names_its_index() -> None:
    finding = first(
        f"{UV}Because there is no version of torch==2.6.0+cu124 and you require\n"
        "      torch==2.6.0+cu124, we can conclude that your requirements are unsatisfiable.\n"
    )
    assert "--torch-backend=cu124" in finding.cure


def test_version_that_pip_does_not_find_is_explained() -> None:
    text = "ERROR: Could not find a version that satisfies the requirement slots==0.12.0\n"
    assert first(text).code == "IMG617"
    assert first(f"uname -m: aarch64\n{text.replace('slots', 'vllm')}").code == "IMG602"


def test_wheels_for_a_different_architecture_are_not_called_too_new_for_the_glibc() -> None:
    finding = first(
        "error: No solution found when resolving dependencies\n"
        "  cause: Because slots==2.1 has no wheels with a matching platform tag (e.g.,"
        " `manylinux_2_35_aarch64`) and you require slots==2.1, we can conclude that your"
        " requirements are unsatisfiable.\n\n"
        "hint: Wheels are available for `slots` (v2.1) on the following platform:"
        " `manylinux_2_17_x86_64`\n"
    )
    assert "slots 2.1 has no wheel for Linux on aarch64" in finding.cause
    assert "glibc" not in finding.cause + finding.cure


def test_wheels_that_need_a_newer_glibc_are_named() -> None:
    finding = first(
        "error: No solution found when resolving dependencies\n"
        "  cause: Because slots==2.1 has no wheels with a matching platform tag (e.g.,"
        " `manylinux_2_17_x86_64`) and you require slots==2.1, we can conclude that your"
        " requirements are unsatisfiable.\n\n"
        "hint: Wheels are available for `slots` (v2.1) on the following platforms:"
        " `manylinux_2_31_aarch64`, `manylinux_2_31_x86_64`\n"
    )
    assert "(manylinux_2_17_x86_64; its wheels: manylinux_2_31_x86_64)" in finding.cause


@pytest.mark.parametrize(
    ("hint", "cause"),
    [
        ("", "for this system and Python"),
        (
            "\nhint: You're on Windows (`win_amd64`), but `slots` only has wheels for x; see uv\n",
            "Python: You're on Windows (`win_amd64`), but `slots` only has wheels for x",
        ),
    ],
)
def test_platforms_of_a_hint_are_named(hint: str, cause: str) -> None:
    finding = first(
        "error: Distribution `slots==2.1 @ registry+https://index.example/simple` can't be"
        f" installed because it doesn't have a source distribution or wheel for the current"
        f" platform\n{hint}"
    )
    assert finding.cause.endswith(cause)


def test_platform_of_the_command_is_named() -> None:
    finding = first(
        "$ uv pip compile r.in --python-platform aarch64-manylinux_2_35 --only-binary :all:\n"
        "error: No solution found when resolving dependencies\n"
        "  cause: Because slots==2.1 has no usable wheels and you require slots==2.1, we can"
        " conclude that your requirements are unsatisfiable.\n"
    )
    assert "slots==2.1 has no wheels for aarch64-manylinux_2_35" in finding.cause


def test_last_version_that_pip_lists_tells_of_an_old_glibc() -> None:
    finding = first(
        "ERROR: Could not find a version that satisfies the requirement vllm==0.14.0"
        " (from versions: 0.5.2, 0.10.2, 0.11.1, 0.11.2)\n"
        "ERROR: No matching distribution found for vllm==0.14.0\n"
    )
    assert "this is a glibc older than 2.31" in finding.cause
    assert finding.cure.startswith("use an image with a newer glibc")


def test_pair_that_excludes_each_other_is_the_conflict() -> None:
    finding = first(
        "ERROR: Cannot install -r requirements.txt (line 2) and pydantic==1.10.12 because these"
        " package versions have conflicting dependencies.\n\nThe conflict is caused by:\n"
        "    The user requested pydantic==1.10.12\n    fastapi 0.110.0 depends on pydantic>=1.7\n"
        "    vllm 0.3.2 depends on pydantic>=2.0\n\nTo fix this you could try to:\n"
    )
    assert "you require pydantic==1.10.12, and vllm 0.3.2 needs pydantic>=2.0" in finding.cause


def test_index_of_the_command_may_hide_a_version() -> None:
    text = (
        "$ uv pip install acme-rl==4 --index https://pumps.example/simple\n"
        f"{UV}Because there is no version of slots==0.2.9 and acme-rl==4 depends on\n"
        "      slots==0.2.9, we can conclude that acme-rl==4 cannot be used.\n"
    )
    assert "only from the first index that has it" in first(text).cause
    assert "omit https://pumps.example/simple" in first(text).cure
    assert "first index" not in first(text.partition("\n")[2]).cause


@pytest.mark.parametrize("prefix", ["", "98.99 ", "#18 212.0 "])
def test_requirement_on_a_repository_conflicts_with_a_release(prefix: str) -> None:
    rows = (
        "The conflict is caused by:",
        "    acme-rl 0.6.6+cpu depends on slots 1.27.0.dev0 (from git+https://example.org/slots)",
        "    acme-ops 1.25 depends on slots==1.26.*",
    )
    finding = first("\n".join(prefix + row for row in rows))
    assert "acme-rl 0.6.6+cpu needs slots==1.27.0.dev0, and acme-ops 1.25 needs" in finding.cause


def test_package_that_all_releases_of_another_need_is_not_on_an_index() -> None:
    finding = first(
        "The conflict is caused by:\n"
        "    acme-rl 0.46 depends on slots\n"
        "    acme-rl 0.45 depends on slots\n"
    )
    assert "all releases of acme-rl in the required range need slots" in finding.cause
