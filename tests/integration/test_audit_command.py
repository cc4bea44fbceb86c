"""Tests `imgbuild audit` as users run it: on wheels of a lock and on pins from an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import images, local_index, sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

WHEEL = "packages/thewheel-1.0-py3-none-any.whl"
PINS = ("--requirements", "pins.txt", "--python", "3.11", "--arch", "x86_64")
TRL = b"from vllm import Gone\n\nclass GRPOTrainer: ...\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FileSite]:
    """An index with a trl and two versions of vLLM, and a registry with a base."""
    index = sample_project.sample_index()
    index.wheel("trl", "9.0", files={"trl/__init__.py": TRL})
    source = {"PKG-INFO": b"Name: vllm\nVersion: 7.5\n", "vllm/__init__.py": b"class Old: ...\n"}
    index.add(
        "vllm",
        "vllm-7.5.tar.gz",
        local_index.sdist_bytes("vllm", "7.5", source),
        uploaded=local_index.EARLY,
        yanked=False,
    )
    index.wheel("vllm", "8.0", files={"vllm/__init__.py": b"class Gone: ...\n"})
    index.wheel("vllm", "9.0", files={"vllm/__init__.py": b"class New: ...\n"})
    images.python_base(tmp_path)
    with serve_site(FileSite(files=index.site_files())) as opened:
        yield opened


@pytest.fixture
def project(site: FileSite, tmp_path: Path) -> Project:
    """A project that is not locked, with an empty cache."""
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.write(
        sample_project.registry_base(sample_project.serve_image(site, tmp_path / "base", "base"))
    )
    return project


def cached_wheels(project: Project) -> list[str]:
    """The wheels in the project's cache."""
    assert project.cache is not None
    files = [path for path in project.cache.rglob("*") if path.is_file()]
    return [path.name for path in files if path.read_bytes().startswith(b"PK\x03\x04")]


def test_audit_with_drop_option_keeps_the_facts_of_the_deleted_wheels(
    project: Project, site: FileSite, tmp_path: Path
) -> None:
    project.run("lock", TARGET)
    project.cache = tmp_path / "another"
    first = project.run("audit", TARGET, "--drop")
    assert cached_wheels(project) == []
    site.requests.clear()
    assert project.run("audit", TARGET, "--offline").stdout == first.stdout
    # Another check uses the facts; unread code is fetched by ranges.
    project.run("audit", TARGET, "--select", "elf", "--select", "cuda", "--offline")


def test_pins_are_audited_with_the_wheels_of_the_index(project: Project, site: FileSite) -> None:
    pins = project.folder / "pins.txt"
    pins.write_text("trl==9.0\nvllm==9.0\n", encoding="utf-8")
    done = project.run("audit", *PINS, "--json", status=4)
    (report,) = json.loads(done.stdout)
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert [finding["where"] for finding in errors] == ["trl 9.0 trl/__init__.py:1"]
    assert errors[0]["evidence"]["subject"] == "vllm:Gone"
    pins.write_text("trl==9.0\nvllm==8.0\n", encoding="utf-8")
    assert "pins.txt x86_64: 0 errors" in project.run("audit", *PINS).stdout
    pins.write_text("trl==9.0\n", encoding="utf-8")
    alone = project.run("audit", *PINS, status=4)
    assert "imports vllm, which no package in this package set provides" in alone.stdout
    assert "add the missing packages to the file" in alone.stderr


def test_pins_are_read_from_arguments_or_stdin(
    project: Project,
) -> None:
    machine = ("--python", "3.11", "--arch", "x86_64")
    named = project.run("audit", "trl==9.0", "vllm==9.0+cu130", *machine, status=4)
    assert "trl 9.0 imports Gone from vllm, but vllm 9.0 does not define it" in named.stdout
    unread = "not checked: vllm==9.0+cu130: not on the index; vllm==9.0 was read instead\n"
    assert unread in named.stdout
    piped = project.run("audit", "-r", "-", *machine, status=4, stdin="trl==9.0\nvllm==9.0\n")
    assert "imports Gone from vllm" in piped.stdout


def test_audit_fails_if_a_pin_has_no_compatible_wheel(project: Project) -> None:
    (project.folder / "pins.txt").write_text("trl==9.0\nvllm==7.0\n", encoding="utf-8")
    done = project.run("audit", *PINS, status=4)
    assert "not read: vllm==7.0: the index has no compatible wheel" in done.stdout
    assert "not all packages were read: vllm==7.0" in done.stderr


def test_pin_without_a_wheel_is_audited_from_its_sdist(project: Project) -> None:
    (project.folder / "pins.txt").write_text("trl==9.0\nvllm==7.5\n", encoding="utf-8")
    done = project.run("audit", *PINS, status=4)
    assert "trl 9.0 imports Gone from vllm, but vllm 7.5 does not define it" in done.stdout
    unread = "not checked: vllm==7.5: read from the sdist, which lacks files that a build adds"
    assert unread in done.stdout


def test_files_and_pins_on_the_command_line_are_audited_together(project: Project) -> None:
    machine = ("--python", "3.11", "--arch", "x86_64")
    (project.folder / "bad.txt").write_text("trl==9.0\n", encoding="utf-8")
    (project.folder / "good.txt").write_text("vllm==9.0\n", encoding="utf-8")
    for words in (
        ("-r", "bad.txt", "-r", "good.txt"),
        ("-r", "good.txt", "-r", "bad.txt"),
        ("-r", "good.txt", "trl==9.0"),
    ):
        done = project.run("audit", *words, *machine, status=4)
        assert "trl 9.0 imports Gone from vllm, but vllm 9.0 does not define it" in done.stdout
        named = [word if word.endswith(".txt") else "pins" for word in words if word != "-r"]
        assert f"{', '.join(named)} x86_64: 1 error" in done.stdout
    both = ("-r", "bad.txt", "-r", "-")
    done = project.run("audit", *both, *machine, status=4, stdin="vllm==9.0\n")
    assert "bad.txt, stdin x86_64: 1 error" in done.stdout
    done = project.run("audit", *both, *machine, status=2, stdin="trl==8.0\n")
    assert "stdin:1: trl==8.0 contradicts trl==9.0 in bad.txt:1" in done.stderr


def test_extra_that_a_pinned_package_lacks_is_reported(project: Project, site: FileSite) -> None:
    machine = ("--python", "3.11", "--arch", "x86_64", "--select", "metadata")
    done = project.run("audit", "trl[vllm]==9.0", *machine)
    assert "trl 9.0 has no extra vllm" in done.stdout
    assert "its extras: none" in done.stdout


def test_wheel_given_by_url_replaces_the_wheel_of_the_index(
    project: Project, site: FileSite
) -> None:
    name = "vllm-9.0-py3-none-any.whl"
    files = {"vllm/__init__.py": b"class Gone: ...\n"}
    site.files[f"elsewhere/{name}"] = local_index.wheel_bytes("vllm", "9.0", files=files)
    options = (
        "--python",
        "3.11",
        "--arch",
        "x86_64",
        "--select",
        "imports",
        "--select",
        "metadata",
    )
    assert "Gone" in project.run("audit", "trl==9.0", "vllm==9.0", *options, status=4).stdout
    line = f"vllm @ {site.url(f'elsewhere/{name}')}"
    done = project.run("audit", "trl==9.0", line, *options)
    assert "0 errors" in done.stdout
    assert "could not read" not in done.stdout + done.stderr
    line = f"vllm @ {site.url(f'absent/{name}')}"
    done = project.run("audit", "trl==9.0", line, *options, status=4)
    assert f"could not read {site.url(f'absent/{name}')}" in done.stdout + done.stderr


def test_cuda_build_that_contradicts_torch_is_an_error(project: Project, site: FileSite) -> None:
    name = "attn-1.0+cu12torch2.7cxx11abiTRUE-py3-none-any.whl"
    site.files[f"elsewhere/{name}"] = local_index.wheel_bytes(
        "attn", "1.0+cu12torch2.7cxx11abiTRUE", files={"attn.py": b""}
    )
    line = f"attn @ {site.url(f'elsewhere/{name}')}"
    options = ("--python", "3.11", "--arch", "x86_64", "--select", "metadata")
    done = project.run("audit", "torch==2.6.0", line, *options, status=4)
    assert f"is compiled for torch 2.7, but torch is 2.6.0, according to its file name: {name}" in (
        done.stdout
    )
    assert "choose a wheel of attn with torch2.6 in its name" in done.stdout


def test_code_of_a_folder_without_matrix_is_audited_with_its_requirements(
    project: Project,
) -> None:
    (project.folder / "matrix.yaml").unlink()
    (project.folder / "requirements.txt").write_text("vllm==9.0\n")
    (project.folder / "train.py").write_text("from vllm import Gone\n")
    done = project.run("audit", "--python", "3.11", "--arch", "x86_64", status=4)
    assert done.stdout.startswith("train.py:1:18: IMG101 imports Gone from vllm, but vllm 9.0")
