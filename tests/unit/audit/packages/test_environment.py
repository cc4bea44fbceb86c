"""Tests reading environments in all layouts that Python supports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imgbuild.audit.packages.environment import InstalledEnvironment, open_environment
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.values import Arch


class Site:
    """A virtual environment without programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "lib" / "python3.12" / "site-packages"
        self.folder.mkdir(parents=True)
        (root / "pyvenv.cfg").write_text("home = /nowhere/bin\nversion_info = 3.12.4.final.0\n")

    def install(
        self,
        name: str,
        version: str,
        files: dict[str, str],
        *,
        metadata: str = "",
        kind: str = "dist-info",
        record: bool = True,
    ) -> Path:
        info = self.folder / (f"{name}-{version}.{kind}")
        info.mkdir()
        metadata_name = "METADATA" if kind == "dist-info" else "PKG-INFO"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
        (info / metadata_name).write_text(text)
        for path, content in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(content)
        if record:
            rows = [
                *files,
                f"{info.name}/{metadata_name}",
                f"{info.name}/RECORD",
                f"../../bin/{name}",
            ]
            (info / "RECORD").write_text("".join(f"{row},,\n" for row in rows))
        return info


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "env")


def versions(environment: InstalledEnvironment) -> dict[str, str]:
    return {package.wheel.package: package.wheel.version for package in environment.packages}


def package_set(environment: InstalledEnvironment, folder: Path) -> PackageSet:
    places = {package.wheel.sha256: package.info for package in environment.packages}
    return open_package_set(
        [package.wheel for package in environment.packages],
        Library(Store.open(folder / "cache"), processes=1),
        python=environment.python,
        arch=Arch.X86_64,
        glibc="2.36",
        locate=lambda wheel: places[wheel.sha256],
    )


def test_virtual_environment_is_read_without_running_it(site: Site, tmp_path: Path) -> None:
    site.install("Some_Name", "1.0", {"some/__init__.py": "A = 1\n", "some/x.py": "B = 2\n"})
    environment = open_environment(str(site.root))
    assert (environment.python, environment.folders, environment.unread) == (
        "3.12.4",
        (site.folder,),
        (),
    )
    assert versions(environment) == {"some-name": "1.0"}
    opened = package_set(environment, tmp_path)
    assert dict(opened.modules_of("some-name")) == {
        "some": "some/__init__.py",
        "some.x": "some/x.py",
    }
    assert opened.read("some-name", "some/x.py") == b"B = 2\n"
    assert opened.metadata_file("some-name") == "Some_Name-1.0.dist-info/METADATA"


@pytest.mark.parametrize("inner", ["bin/python", "lib/python3.12/site-packages"])
def test_environment_is_given_by_interpreter_or_folder(site: Site, inner: str) -> None:
    site.install("some", "1.0", {"some.py": ""})
    program = site.root / "bin" / "python"
    program.parent.mkdir()
    program.symlink_to("/nowhere/python")
    assert versions(open_environment(str(site.folder))) == {"some": "1.0"}
    program.unlink()
    program.write_text("")
    assert versions(open_environment(str(site.root / inner))) == {"some": "1.0"}


def test_digest_of_an_installed_package_changes_with_its_files(site: Site) -> None:
    site.install("some", "1.0", {"some.py": "A = 1\n"})

    def _digest() -> str:
        return open_environment(str(site.root)).packages[0].wheel.sha256

    first = _digest()
    assert _digest() == first
    path = site.folder / "some.py"
    path.write_text("A = 2\n")
    os.utime(path, ns=(0, 7))
    assert _digest() != first


def test_deleted_file_of_an_installed_package_is_not_listed(site: Site, tmp_path: Path) -> None:
    site.install("some", "1.0", {"some/__init__.py": "", "some/x.py": ""})
    (site.folder / "some" / "x.py").unlink()
    opened = package_set(open_environment(str(site.root)), tmp_path)
    assert opened.exists("some.x") is False


def test_editable_installation_is_read_from_its_sources(site: Site, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("pointed", "tests", "mapped"):
        (source / name).mkdir(parents=True)
        (source / name / "__init__.py").write_text(f"NAME = '{name}'\n")
    (source / "single.py").write_text("A = 1\n")
    site.install("by-path", "1.0", {"_by_path.pth": f"# a comment\n{source}\n"})
    mapping = {"mapped": str(source / "mapped"), "single": str(source / "single")}
    finder = f"MAPPING: dict[str, str] = {mapping!r}\n"
    site.install("by-finder", "2.0", {"__editable___by_finder_2_0_finder.py": finder})
    opened = package_set(open_environment(str(site.root)), tmp_path)
    assert set(opened.modules_of("by-path")) == {"pointed", "mapped"}
    assert opened.read("by-path", "pointed/__init__.py") == b"NAME = 'pointed'\n"
    assert {"mapped", "single"} <= set(opened.modules_of("by-finder"))
    assert opened.read("by-finder", "single.py") == b"A = 1\n"


def test_debian_package_without_a_record_file_is_read(site: Site, tmp_path: Path) -> None:
    files = {"yaml/__init__.py": "A = 1\n", "_yaml.py": ""}
    info = site.install("PyYAML", "6.0", files, kind="egg-info", record=False)
    (info / "top_level.txt").write_text("yaml\n_yaml\n")
    environment = open_environment(str(site.root))
    opened = package_set(environment, tmp_path)
    assert set(opened.modules_of("pyyaml")) == {"yaml", "_yaml"}
    metadata = opened.metadata("pyyaml")
    assert metadata is not None
    assert (metadata.name, metadata.version) == ("PyYAML", "6.0")


def test_package_installed_in_two_versions_is_reported_as_unread(site: Site) -> None:
    site.install("some", "1.0", {"some.py": ""})
    site.install("some", "2.0", {"some.py": ""})
    environment = open_environment(str(site.root))
    assert versions(environment) == {"some": "1.0"}
    (unread,) = environment.unread
    assert (unread.what, unread.required) == ("some-2.0.dist-info", True)
    assert "some-1.0.dist-info is also in" in unread.why


def test_package_without_metadata_is_unread_and_pip_leftovers_are_ignored(site: Site) -> None:
    site.install("some", "1.0", {"some.py": ""})
    (site.folder / "empty-1.0.dist-info").mkdir()
    (site.folder / "~ome-0.9.dist-info").mkdir()
    (unread,) = open_environment(str(site.root)).unread
    assert (unread.what, unread.why, unread.required) == (
        "empty-1.0.dist-info",
        "METADATA is missing",
        True,
    )


def test_modules_that_belong_to_no_package_are_reported(site: Site, tmp_path: Path) -> None:
    site.install("some", "1.0", {"some.py": ""})
    (site.folder / "loose").mkdir()
    (site.folder / "loose" / "__init__.py").write_text("")
    (site.folder / "data").mkdir()
    (site.folder / "mine.pth").write_text(f"import os\n{tmp_path}\n")
    (unread,) = open_environment(str(site.root)).unread
    assert (unread.what, unread.required) == (f"loose, {tmp_path}", False)


def test_active_environment_is_the_default(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("some", "1.0", {"some.py": ""})
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(site.root))
    assert versions(open_environment(None)) == {"some": "1.0"}
    monkeypatch.delenv("VIRTUAL_ENV")
    site.root.rename(tmp_path / ".venv")
    monkeypatch.chdir(tmp_path)
    assert versions(open_environment(None)) == {"some": "1.0"}


def test_folder_of_packages_requires_the_python_option(tmp_path: Path) -> None:
    site = Site(tmp_path / "env")
    site.install("some", "1.0", {"some.py": ""})
    target = site.folder.rename(tmp_path / "target")
    with pytest.raises(InputError, match="the Python version of"):
        open_environment(str(target))
    assert open_environment(str(target), python="3.11").python == "3.11"


@pytest.mark.parametrize(
    ("where", "words"),
    [("gone", "no such file or folder"), ("", "neither an environment nor a folder of packages")],
)
def test_folder_that_is_not_an_environment_is_rejected(
    tmp_path: Path, where: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        open_environment(str(tmp_path / where))


def test_empty_environment_is_rejected(site: Site) -> None:
    with pytest.raises(InputError, match="no package is installed in"):
        open_environment(str(site.root))
