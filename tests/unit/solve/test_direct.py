"""Tests the locked files of packages with a URL, and their lines for the resolver."""

import pytest

from imgbuild.errors import InputError
from imgbuild.index.pages import IndexFile
from imgbuild.project.model import DeclaredRequirement, FilePlace
from imgbuild.solve import direct
from imgbuild.solve.direct import DirectPackage
from imgbuild.values import Arch

COMMIT = "0" * 40
PLACE = FilePlace("requirements.txt", 1)


def test_files_locked_by_url_keep_their_urls(tmp_path):
    wheel = IndexFile(name="demo-1.0-py3-none-any.whl", url="", sha256="0" * 64, size=1)
    sdist = IndexFile(name="tree-1.0.tar.gz", url="", sha256="1" * 64, size=1)
    other = IndexFile(name="other-1.0-py3-none-any.whl", url="", sha256="2" * 64, size=1)
    sources = {"demo": f"wheels/{wheel.name}", "tree": f"git+https://git.example/tree@{COMMIT}"}
    locked = [("demo", wheel), ("tree", sdist), ("other", other)]
    files = direct.files_from_lock(sources, locked, tmp_path)
    assert {package: file.url for package, (file,) in files.items()} == {
        "demo": (tmp_path / "wheels" / wheel.name).as_uri(),
        "tree": sources["tree"],
    }
    assert set(direct.files_from_lock(sources, locked, None)) == {"tree"}


def package(source: str, tree: str = "") -> DirectPackage:
    file = IndexFile(name="demo-1.0-py3-none-any.whl", url=source)
    return DirectPackage(package="demo", version="1.0", file=file, source=source, tree=tree)


def test_requirement_for_a_url_has_extras_bounds_and_the_version():
    texts = ("demo[a,b] @ https://files.example/demo-1.0-py3-none-any.whl", "demo>=0.5", "other<2")
    declared = [DeclaredRequirement(text=text, place=PLACE) for text in texts]
    assert direct.resolver_lines(declared, {"demo": package("https://files.example/demo.whl")}) == (
        "demo[a,b]==1.0",
        "demo==1.0,>=0.5",
        "other<2",
    )


def test_package_must_have_the_same_url_on_all_architectures():
    first, second = package("https://files.example/a.whl"), package("https://files.example/b.whl")
    assert direct.locked_project(
        {Arch.X86_64: {"demo": first}, Arch.ARM64: {"demo": first}}
    ).sources == {"demo": first.source}
    with pytest.raises(InputError, match="the URL of demo differs on arm64"):
        direct.locked_project({Arch.X86_64: {"demo": first}, Arch.ARM64: {"demo": second}})


def test_published_package_keeps_its_version():
    with pytest.raises(InputError, match=r"small has demo 0\.9, which an extension cannot change"):
        direct.refuse_published(
            {"demo": package("https://files.example/a.whl")}, {"demo": "0.9"}, "small"
        )
