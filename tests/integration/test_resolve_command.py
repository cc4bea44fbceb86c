"""Tests `imgbuild resolve` on a small project with a separate index and base."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.matrix.load import load_matrix
from imgbuild.values import Arch
from tests.support import images, sample_project
from tests.support.local_index import LocalIndex
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

HEAD = b"NAME = 'engine'\n"
NET = b"def start(port):\n    return port\n"
CLIENT = b"from engine.net import start\n\n\nclass GRPOTrainer:\n    pass\n"


def index() -> LocalIndex:
    """An index in which a newer client imports a name that only a newer engine has.

    On arm64, this torch is a CPU build, like the real torch of that time.
    """
    local_index = sample_project.sample_index()
    local_index.published = [file for file in local_index.published if file.package != "torch"]
    of_cuda = (
        "nvidia-cublas-cu12==12.4.5.8; platform_machine == 'x86_64'",
        "nvidia-cuda-runtime-cu12==12.4.127; platform_machine == 'x86_64'",
    )
    local_index.wheel("torch", "2.6.0", of_cuda)
    local_index.wheel("nvidia-cuda-runtime-cu12", "12.4.127")
    local_index.wheel("engine", "1.0", ["torch==2.6.0"], files={"engine/__init__.py": HEAD})
    local_index.wheel(
        "engine", "2.0", ["torch==2.11.0"],
        files={"engine/__init__.py": HEAD, "engine/net.py": NET},
    )  # fmt: skip
    for version, of_torch in (("1.0", "2.6.0"), ("2.0", "2.7.0"), ("2.1", "2.7.0")):
        local_index.wheel("server", version, [f"torch=={of_torch}"], files={"server.py": b""})
    local_index.wheel("trl", "0.18.0", files={"trl/__init__.py": b"class GRPOTrainer:\n    pass\n"})
    local_index.wheel("trl", "0.19.0", files={"trl/__init__.py": CLIENT})
    local_index.wheel(
        "kit", "1.0",
        ['helper<1; extra == "more"', 'part[deep]; extra == "more"',
         'missing; extra == "more" and sys_platform == "win32"'],
        files={"kit.py": b""},
    )  # fmt: skip
    local_index.wheel("part", "1.0", ['another; extra == "deep"'], files={"part.py": b""})
    # Versions of tool name the engine that they support in an extra; the first does not support it.
    local_index.wheel("tool", "0.9", files={"tool.py": b""})
    for version, spec in (("1.0", ">=0.5,<2"), ("1.1", "<2,>=0.5"), ("2.0", ">=2"), ("3.0", ">=3")):
        local_index.wheel(
            "tool", version, [f'engine{spec}; extra == "engine"'], files={"tool.py": b""}
        )
    return local_index


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FileSite]:
    images.python_base(tmp_path, tuple(Arch))
    with serve_site(FileSite(files=index().site_files())) as opened:
        yield opened


@pytest.fixture
def project(site: FileSite, tmp_path: Path) -> Project:
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.write(
        sample_project.registry_base(sample_project.serve_image(site, tmp_path / "base", "base"))
    )
    return project


def test_resolve_prints_package_set_reasons_and_row(project: Project) -> None:
    arguments = ("thewheel==1.0", "--have", "torch==2.6.0", "--arch", "x86_64")
    lines = project.run("resolve", *arguments, "--full").stdout.splitlines()
    words = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.strip()}
    assert words["thewheel"] == "1.0 you require thewheel==1.0"
    assert words["torch"] == "2.6.0 you have torch==2.6.0"
    assert words["helper"] == "0.5 for thewheel"
    assert words["nvidia-cublas-cu12"] == "12.4.5.8 torch requires ==12.4.5.8"
    assert not (project.folder / "images").exists()

    matrix = project.folder / "matrix.yaml"
    short = project.run("resolve", *arguments).stdout
    assert "helper" not in short
    row = short[short.index("  cu124-thewheel1.0:") : short.index("# CUDA 12.4")]
    matrix.write_text(matrix.read_text(encoding="utf-8") + row, encoding="utf-8")
    target = load_matrix(matrix).targets["cu124-thewheel1.0"]
    assert target.pins == {"thewheel": "1.0", "torch": "2.6.0"}
    assert (target.cuda, target.arch) == ("12.4", (Arch.X86_64,))
    assert "cu124-thewheel1.0" in project.run("list").stdout


def test_repeated_resolve_request_is_served_from_the_cache(
    site: FileSite, project: Project
) -> None:
    arguments = ("thewheel==1.0", "--have", "torch==2.6.0", "--arch", "x86_64", "--json")
    first = project.run("resolve", *arguments)
    before = len(site.requests)
    second = project.run("resolve", *arguments)
    assert second.stdout == first.stdout
    assert "solved earlier today" in second.stderr
    assert len(site.requests) == before
    assert project.run("resolve", *arguments, "--again").stdout == first.stdout
    assert len(site.requests) > before


@pytest.mark.long  # unit/resolve/test_locked.py has the list
def test_resolve_lists_a_locked_target_first(site: FileSite, project: Project) -> None:
    project.run("lock", "small")
    before = len(site.requests)
    arguments = ("thewheel==1.0", "helper", "--arch", "x86_64")
    answer = json.loads(project.run("resolve", *arguments, "--json").stdout)
    assert len(site.requests) == before
    (target,) = answer["locked"]
    assert (target["target"], answer["arch"]) == ("small", {})
    assert target["versions"] == {"thewheel": "1.0", "helper": "0.5"}
    assert "small has thewheel 1.0, helper 0.5" in project.run("resolve", *arguments).stdout
    solved = json.loads(project.run("resolve", *arguments, "torch", "--solve", "--json").stdout)
    assert (solved["locked"], list(solved["arch"])) == ([], ["x86_64"])
    done = project.run("resolve", *arguments, "--cuda", "12.6", status=8)
    assert "without --cuda 12.6, the request is satisfied by small (Python 3" in done.stderr
    project.run("resolve", "thewheel==9.0", "--arch", "x86_64", "--cuda", "12.4", status=8)


@pytest.mark.long  # test_learned.py changes them for `lock`
def test_resolve_changes_unpinned_versions_after_audit_errors(project: Project) -> None:
    arguments = ("engine==1.0", "trl", "--arch", "x86_64", "--cuda", "12.4", "--json")
    answer = json.loads(project.run("resolve", *arguments).stdout)
    assert answer["target"]["pins"] == {"engine": "1.0", "torch": "2.6.0", "trl": "0.18.0"}
    assert answer["checks"] == ["metadata", "imports", "calls", "support", "rules"]
    assert sorted(answer["unchecked"]) == ["cuda", "elf"]
    packages = {item["package"]: item for item in answer["arch"]["x86_64"]["packages"]}
    assert packages["trl"]["version"] == "0.18.0"
    assert packages["trl"]["why"] == ["you require trl"]
    assert not (project.folder / "images").exists()


@pytest.mark.long  # unit/resolve/test_preferences.py has the rules
def test_versions_in_the_range_of_an_extra_are_preferred(project: Project) -> None:
    completed = project.run("resolve", "engine==1.0", "tool", "--arch", "x86_64")
    assert (
        "tool    1.1    you require tool; supports engine<2,>=0.5 according to its extra"
        in completed.stdout
    )
    assert "warning" not in completed.stderr


def test_requirements_of_an_extra_are_in_the_package_set_and_the_printed_row(
    project: Project,
) -> None:
    words = ("resolve", "kit[more]", "torch==2.6.0", "absent; sys_platform == 'win32'")
    shown = json.loads(project.run(*words, "--arch", "x86_64", "--json").stdout)
    packages = {item["package"]: item for item in shown["arch"]["x86_64"]["packages"]}
    assert packages["kit"]["why"] == ["you require kit[more]"]
    assert packages["helper"]["why"][0] == "kit[more] requires it"
    assert packages["another"]["why"][0] == "part[deep] requires it"
    assert shown["target"]["pins"] == {"kit": "1.0", "torch": "2.6.0"}
    assert {name: item.get("spec", "") for name, item in shown["target"]["requires"].items()} == {
        "another": "",
        "helper": "<1",
        "part": "",
    }


def test_explanation_of_a_conflict_names_the_extra(project: Project) -> None:
    words = ("resolve", "tool[engine]==3.0", "engine==1.0", "--arch", "x86_64")
    done = project.run(*words, status=8)
    text = done.stdout + done.stderr
    assert "tool[engine] 3.0 requires engine>=3 (its METADATA)" in text
    assert "you require tool[engine]==3.0" in text


def test_audit_checks_requirements_of_extra(project: Project) -> None:
    words = ("audit", "kit[more]==1.0", "part==1.0", "--python", "3.11", "--select", "metadata")
    done = project.run(*words, status=4)
    assert 'kit 1.0 requires helper<1; extra == "more"' in done.stdout + done.stderr


@pytest.mark.long  # unit/resolve/test_preferences.py has the rules
@pytest.mark.parametrize(("request_of_tool", "version"), [("tool>=2", "3.0"), ("tool<1", "0.9")])
def test_audit_warning_is_printed_if_no_version_is_in_the_range_of_an_extra(
    project: Project, request_of_tool: str, version: str
) -> None:
    words = ("resolve", "engine==1.0", request_of_tool, "--arch", "x86_64")
    completed, shown = project.run(*words), json.loads(project.run(*words, "--json").stdout)
    warned = f"tool {version} supports engine>=3 according to its extra engine, but engine is 1.0"
    count = int(version == "3.0")  # 0.9 has no range
    assert f"tool    {version}" in completed.stdout
    assert completed.stderr.count(f"warning: x86_64: {warned} (tool {version} tool-") == count
    assert [warned in text for text in shown["arch"]["x86_64"]["warnings"]] == [True] * count


def test_impossible_package_set_exits_with_status_8_and_shows_the_causes(project: Project) -> None:
    arguments = ("engine==1.0", "trl==0.19.0", "--arch", "x86_64", "--cuda", "12.4")
    done = project.run("resolve", *arguments, status=8)
    assert done.stdout == ""
    assert "because trl 0.19.0 needs engine>=2.0: trl/__init__.py:1 imports" in done.stderr
    assert "suggestion: trl 0.18.0, with torch 2.6.0 for CUDA 12.4" in done.stderr


def test_ranges_without_a_solution_have_the_suggestions_of_their_newest_versions(
    project: Project,
) -> None:
    done = project.run("resolve", "server==2.*", "torch==2.6.*", "--arch", "x86_64", status=8)
    assert "because" in done.stderr
    assert "suggestion: server 1.0, with torch 2.6.0 for CUDA 12.4" in done.stderr


@pytest.mark.long
def test_each_architecture_is_resolved_separately(project: Project) -> None:
    arches = ("--arch", "x86_64,arm64", "--cuda", "12.4", "--json")
    done = project.run("resolve", "thewheel==1.0", "torch==2.6.0", *arches, status=8)
    answer = json.loads(done.stdout)
    assert answer["arch"]["x86_64"]["refused"] is None
    refused = answer["arch"]["arm64"]["refused"]
    assert refused["reasons"][:2] == [
        "torch 2.6.0 (a CPU build: requires no CUDA library) on aarch64",
        "no torch on aarch64 is built for CUDA 12.4: 2.6.0: CPU builds",
    ]
    assert answer["target"]["arch"] == ["x86_64"]
    assert answer["target"]["exclude"]["arm64"] == "; ".join(refused["reasons"])


OLD_USER = b"from transformers.tokens import Old\n\n\nclass GRPOTrainer:\n    pass\n"
USER = b"class GRPOTrainer:\n    pass\n"


def arch_dependent_index() -> LocalIndex:
    """An index on which only the arm64 wheel of trl uses a name removed from transformers."""
    local_index = index()
    local_index.published = [file for file in local_index.published if file.package != "torch"]
    local_index.wheel("torch", "2.6.0", ["nvidia-cuda-runtime-cu12==12.4.127"])
    local_index.wheel("trl", "0.20.0", ["transformers"], tag="cp311-cp311-manylinux_2_17_x86_64",
               files={"trl/__init__.py": USER})  # fmt: skip
    local_index.wheel("trl", "0.20.0", ["transformers"], tag="cp311-cp311-manylinux_2_17_aarch64",
               files={"trl/__init__.py": OLD_USER})  # fmt: skip
    for version, name in (("4.50.0", b"Old"), ("5.0.0", b"New")):
        tokens = {"transformers/__init__.py": HEAD, "transformers/tokens.py": name + b" = 1\n"}
        local_index.wheel("transformers", version, files=tokens)
    return local_index


@pytest.mark.long
def test_learned_constraint_also_applies_to_an_architecture_resolved_before(
    site: FileSite, project: Project
) -> None:
    site.files |= arch_dependent_index().site_files()
    arguments = ("trl==0.20.0", "torch==2.6.0", "--cuda", "12.4", "--json")

    def _versions(arches: str) -> dict[str, str]:
        resolutions = json.loads(project.run("resolve", *arguments, "--arch", arches).stdout)[
            "arch"
        ]
        return {
            arch: item["version"]
            for arch in resolutions
            for item in resolutions[arch]["packages"]
            if item["package"] == "transformers"
        }

    assert _versions("x86_64") == {"x86_64": "5.0.0"}
    assert _versions("x86_64,arm64") == {"x86_64": "4.50.0", "arm64": "4.50.0"}


def test_offline_resolve_reports_missing_lookups(site: FileSite, project: Project) -> None:
    done = project.run("resolve", "thewheel", "--arch", "x86_64", "--offline", status=7)
    assert "--offline is set" in " ".join(done.stderr.split())
    assert "hint: run once without --offline" in done.stderr
    assert site.requests == []


def test_package_set_without_torch_requires_cuda_option(project: Project) -> None:
    done = project.run("resolve", "helper", "--arch", "x86_64", status=2)
    assert "specify the release with --cuda" in done.stderr
