"""Tests that `init` writes the indexes and repositories that a project declares into its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from imgbuild.cli import init as verb
from imgbuild.lock import published
from tests.integration.test_extend import PublishedSite, published_site
from tests.integration.test_project_rows import ROW, begin, versions
from tests.support import folder_index
from tests.support.git_repository import GitRepository, project_files
from tests.support.inprocess_project import Command, enter_folder
from tests.support.local_index import LocalIndex
from tests.support.sample_project import TARGET
from tests.support.servers import FileSite, serve_site

__all__ = ("published_site",)

LOGIN = ("me", "s3cret")
PACKAGES = {"tool": "1.0", "transformers": "4.51.3"}
UV = """\
[project]
name = "x"
version = "1"
dependencies = ["team-rewards>=1"]
[tool.uv.sources]
team-rewards = {{ index = "Team" }}
[[tool.uv.index]]
name = "Team"
url = "{url}"
explicit = true
"""
POETRY = """\
[tool.poetry]
name = "x"
version = "1"
[tool.poetry.dependencies]
team-rewards = {{ version = ">=1", source = "team" }}
[[tool.poetry.source]]
name = "team"
url = "{url}"
priority = "explicit"
"""
DOCKERFILE = "FROM python:3.11\nRUN pip install --index-url {url} 'team-rewards>=1'\n"
FORMS = {
    "requirements.txt": "--extra-index-url {url}\nteam-rewards>=1\n",
    "pyproject.toml": UV,
    "general/pyproject.toml": UV.replace("explicit = true\n", "").replace(
        '[tool.uv.sources]\nteam-rewards = {{ index = "Team" }}\n', ""
    ),
    "poetry/pyproject.toml": POETRY,
    "Dockerfile": DOCKERFILE,
    "setup/Dockerfile": DOCKERFILE.replace("--index-url {url} ", "").replace(
        "RUN", "ENV PIP_EXTRA_INDEX_URL={url}\nRUN"
    ),
}


@pytest.fixture
def private() -> Iterator[FileSite]:
    files = LocalIndex()
    files.wheel("team-rewards", "1.4", ["team-base>=2"])
    files.wheel("team-base", "2.0")
    with serve_site(FileSite(files=files.site_files(api=False), login=LOGIN)) as site:
        yield site


def use_default_index(
    monkeypatch: pytest.MonkeyPatch, folder: Path, packages: Mapping[str, str]
) -> None:
    """Make `init` use the catalogue and an index with `packages`."""
    index = LocalIndex()
    for name, version in packages.items():
        index.wheel(name, version)
    catalogue = folder_index.catalogue_with(index, folder)
    monkeypatch.setattr(verb, "load_matrix", lambda _: catalogue)


@pytest.fixture
def imgbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    enter_folder(tmp_path, monkeypatch)
    (tmp_path / "netrc").write_text(f"machine localhost login {LOGIN[0]} password {LOGIN[1]}\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    use_default_index(monkeypatch, tmp_path / "index", PACKAGES)
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=pytest.mark.long if number % 2 else [])
        for number, form in enumerate(FORMS)
    ],
)
def test_index_url_is_written_to_row_without_credentials(
    form: str,
    private: FileSite,
    imgbuild: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    address = private.url("simple/", "${USER}:${TOKEN}" if "req" in form else ":".join(LOGIN))
    name = form.rpartition("/")[2]
    explicit = name == "pyproject.toml" and "general" not in form
    Path(name).write_text(FORMS[form].format(url=address))
    if explicit:  # packages that the file does not assign to the index are not looked up there
        done = imgbuild("init", "--target", "cu124-vllm0.8.5", status=8)
        assert "requires team-base>=2: the index has no such package" in done.stderr
        use_default_index(monkeypatch, tmp_path / "second", {**PACKAGES, "team-base": "2.0"})
    done = imgbuild("init", "--target", "cu124-vllm0.8.5", status=0)
    text = Path("matrix.yaml").read_text()
    assert LOGIN[1] not in text + done.stderr + done.stdout
    assert "~/.netrc" in text
    matrix = yaml.safe_load(text)
    ((label, index),) = matrix["indexes"].items()
    assert label == ("team" if name == "pyproject.toml" else "localhost")
    assert index == {"url": private.url("simple/"), "upload_times": "none"}
    (row,) = matrix["targets"].values()
    assert row["indexes"] == (
        {"team-rewards": label} if explicit else {"team-base": label, "team-rewards": label}
    )


def test_declared_index_is_used_for_missing_files(imgbuild: Command) -> None:
    """The declared index may mirror the default index, so it is used only for missing files."""
    copy = LocalIndex()
    copy.wheel("tool", "1.0")
    copy.wheel("transformers", "4.51.3", files={"transformers/__init__.py": b"# of the project"})
    text = "-i {}\ntool\ntorch\ntransformers\n"
    with serve_site(FileSite(files=copy.site_files())) as site:
        Path("requirements.txt").write_text(text.format(site.url("simple")))
        assert imgbuild("init", "first").status == 0
    assert "indexes" not in yaml.safe_load(Path("matrix.yaml").read_text())
    Path("matrix.yaml").unlink()
    copy.wheel("tool", "1.0.1", files={"tool/__init__.py": b"# ours"})
    copy.wheel("transformers", "4.51.99")
    with serve_site(FileSite(files=copy.site_files())) as site:
        Path("requirements.txt").write_text(f"{text.format(site.url('simple')).strip()}==4.51.99\n")
        imgbuild("init", "second", status=0)
    matrix = yaml.safe_load(Path("matrix.yaml").read_text())
    expected = {"tool": "localhost", "transformers": "localhost"}
    assert matrix["targets"]["second"]["indexes"] == expected
    assert matrix["indexes"]["localhost"] == {"url": site.url("simple")}


def test_index_without_credentials_is_reported_with_missing_packages(
    private: FileSite, imgbuild: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    Path("requirements.txt").write_text(f"--extra-index-url {private.url('simple')}\nteam-rewards")
    done = imgbuild("init", status=8)
    assert "requirements.txt:1: the index http://localhost" in " ".join(done.stderr.split())
    assert "401" in done.stderr
    assert "netrc" in done.stderr
    assert "team-rewards: the index has no such package" in " ".join(done.stderr.split())


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.network
def test_lock_uses_index_written_by_init(
    published_site: PublishedSite, private: FileSite, imgbuild: Command, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text(
        f"--extra-index-url {private.url('simple')}\nteam-rewards\n"
    )
    assert imgbuild("init").status == 0
    matrix = yaml.safe_load(Path("matrix.yaml").read_text())
    indexes = yaml.safe_dump(
        {"indexes": next(iter(matrix["targets"].values()))["indexes"]}, default_flow_style=None
    )
    row = f"extends: {TARGET}\nrequirements: [requirements.txt]\n{indexes}"
    text = Path("requirements.txt").read_text()
    project = begin(published_site, tmp_path / "rows", row, requirements_txt=text)
    path = project.folder / "matrix.yaml"
    path.write_text(path.read_text() + yaml.safe_dump({"indexes": matrix["indexes"]}))
    project.run("lock", ROW)
    assert versions(project).items() >= {"team-rewards": "1.4", "team-base": "2.0"}.items()
    lock = project.read(f"{ROW}/lock.json")
    assert lock["indexes"]["team-base"] == "localhost"
    assert LOGIN[1] not in str(lock)


@pytest.mark.parametrize(
    "line",
    [
        *(pytest.param(line, marks=pytest.mark.long) for line in ("git+{url}", "git+{url}@v1")),
        "-e git+{url}#subdirectory=package",
    ],
)
def test_package_name_of_a_repository_is_read_from_its_files(
    line: str, imgbuild: Command, tmp_path: Path
) -> None:
    repository = GitRepository(tmp_path / "repository")
    files = project_files("Team-Tool", "1.0")
    files |= {f"package/{name}": text for name, text in project_files("inner", "1.0").items()}
    repository.commit(files, tag="v1")
    pages = {**repository.dumb_files("tool.git")}
    with serve_site(FileSite(files=pages)) as site:
        url = site.url("tool.git")
        Path("requirements.txt").write_text(f"{line.format(url=url)}\n")
        done = imgbuild("init")
    assert done.status == 0, done.stderr
    ((address, name),) = _row()["names"].items()
    package = "inner" if "package" in line else "team-tool"
    assert name == package
    assert address == f"git+{url}" + ("#subdirectory=package" if package == "inner" else "")
    overlay = published.load_matrix(Path("matrix.yaml")).overlays["project"]  # type: ignore[attr-defined]
    (requirement,) = overlay.requirements.direct
    assert requirement.package == package
    assert f"added: {package}" in done.stdout


def test_repository_without_a_package_name_is_refused(imgbuild: Command, tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "repository")
    script = "from setuptools import setup\nsetup(name=open('NAME').read())\n"
    repository.commit({"setup.py": script})
    Path("requirements.txt").write_text(f"{repository.url}\n")
    done = imgbuild("init", status=2)
    assert "requirements.txt:1" in done.stderr
    assert "contain no package name" in " ".join(done.stderr.split())
    assert not Path("matrix.yaml").exists()


def test_lock_suggests_an_entry_that_names_an_added_repository(
    imgbuild: Command, tmp_path: Path
) -> None:
    repository = GitRepository(tmp_path / "repository")
    repository.commit(project_files("team-tool", "1.0"))
    Path("requirements.txt").write_text("torch\n")
    assert imgbuild("init").status == 0
    Path("requirements.txt").write_text(f"torch\n{repository.url}\n")
    text = " ".join(imgbuild("lock", status=8).stderr.split())
    assert f'names: {{"{repository.url}": team-tool}}' in text
    assert "requirements.txt:2" in text


UNREACHABLE = "http://localhost:9"
CAUSES = f"""\
git+{UNREACHABLE}/unnamed.git
named @ git+{UNREACHABLE}/named.git@v1
pinned @ git+{UNREACHABLE}/pinned.git@{"0" * 40}
nosuch
"""


@pytest.mark.long  # unit/cli/test_init_project.py has such a list
def test_init_lists_all_causes_together(imgbuild: Command) -> None:
    Path("requirements.txt").write_text(CAUSES)
    Path("pyproject.toml").write_text(UV.format(url=f"{UNREACHABLE}/simple"))
    text = " ".join(imgbuild("init", "--system", "nosuchdeb", status=8).stderr.split())
    for cause in (
        f"requirements.txt:1: {UNREACHABLE}/unnamed.git: git cannot access the repository",
        f"requirements.txt:2: named: {UNREACHABLE}/named.git: git cannot access the repository",
        f"requirements.txt:3: pinned: {UNREACHABLE}/pinned.git: git cannot access the repository",
        "requirements.txt:4: nosuch: the index has no such package",
        f"team-rewards>=1: the index {UNREACHABLE}/simple cannot be read",
    ):
        assert cause in text
    assert not Path("matrix.yaml").exists()


@pytest.mark.long
def test_unreachable_repository_exits_with_status_7(
    imgbuild: Command,
) -> None:
    for line in CAUSES.splitlines()[:3]:
        Path("requirements.txt").write_text(f"{line}\ntorch\n")
        assert "requirements.txt:1" in imgbuild("init", status=7).stderr


def test_init_ignores_problems_of_excluded_packages(imgbuild: Command) -> None:
    Path("requirements.txt").write_text("".join(CAUSES.splitlines(keepends=True)[1:]) + "torch\n")
    words = (word for name in ("named", "pinned", "nosuch") for word in ("--exclude", name))
    imgbuild("init", *words, status=0)


@pytest.mark.long
def test_add_command_writes_a_repository_name_to_a_row_with_like(
    imgbuild: Command, tmp_path: Path
) -> None:
    repository = GitRepository(tmp_path / "repository")
    repository.commit(project_files("team-tool", "1.0"))
    Path("requirements.txt").write_text("torch\ntransformers==4.51.99\n")
    imgbuild("init", "--relax", "transformers", "--target", "cu126-vllm", status=0)
    path = Path("matrix.yaml")
    path.write_text(path.read_text().replace("extends:", "like:"))
    imgbuild("add", repository.url, status=0)
    assert _row()["add"] == [f"team-tool @ {repository.url}"]


def _row() -> dict[str, Any]:
    (row,) = yaml.safe_load(Path("matrix.yaml").read_text())["targets"].values()
    return dict(row)
