"""A world: who owns a module, what is there, what cannot be known."""

import pytest

from imgbuild.audit.packages.package_set import may_inject, wheels_of
from imgbuild.audit.source.facts import ModuleFacts, Opaque
from imgbuild.errors import IntegrityError
from imgbuild.lock.resolution import BuiltWheel, Resolution
from tests.support import audited, samples

PACKAGES: dict[str, audited.Files] = {
    "PyYAML==6.0": {"yaml/__init__.py": "X = 1\n", "_yaml/__init__.py": ""},
    "nvidia-a==1.0": {"nvidia/a/__init__.py": ""},
    "nvidia-b==2.0": {"nvidia/b/lib.so": b"\0"},
    "torch==2.6.0": {"torch/__init__.py": "X = 1\n", "torch/_C.abi3.so": b"\0"},
}


@pytest.fixture
def world(tmp_path):
    return audited.world(tmp_path, PACKAGES)


def test_packages_by_any_spelling_and_by_what_is_imported(world):
    assert world.packages == ("nvidia-a", "nvidia-b", "pyyaml", "torch")
    assert world.version("PyYAML") == "6.0"
    assert world.owner("yaml.absent") == "pyyaml"
    assert world.owner("nvidia.b.lib") == "nvidia-b"
    assert world.owner("nvidia") is None
    assert world.owner("os.path") is None


def test_modules_and_what_stands_for_them(world):
    facts = world.module("yaml")
    assert isinstance(facts, ModuleFacts)
    assert facts.file == "yaml/__init__.py"
    assert world.module("torch._C") == Opaque("torch._C", "compiled")
    assert world.module("torch._C._nn") == Opaque("torch._C._nn", "compiled")
    assert world.module("nvidia") == Opaque("nvidia", "namespace")
    assert world.module("os.path") == Opaque("os.path", "stdlib")
    assert world.module("torch.absent") is None
    assert world.module("absent") is None


def test_existence_needs_no_reading(world):
    assert world.exists("yaml") is True
    assert world.exists("nvidia") is True
    assert world.exists("torch._C._nn") is None
    assert world.exists("torch._six") is False
    assert world.exists("nvidia.absent") is False


def test_a_partial_world_does_not_know_what_it_leaves_out(tmp_path):
    world = audited.world(tmp_path, PACKAGES, partial=True)
    assert world.exists("vllm.worker") is None
    assert world.exists("nvidia.absent") is None
    assert world.exists("torch.absent") is False


def test_all_modules_of_a_package_that_is_called_like_them_are_here(tmp_path):
    packages: dict[str, audited.Files] = {
        "engine==2.0": {"engine/__init__.py": "", "engine/core.py": ""},
        "part-one==1.0": {"whole/__init__.py": "", "whole/one.py": ""},
        "open==1.0": {"open/__init__.py": "__path__ = extend_path(__path__, __name__)\n"},
    }
    world = audited.world(tmp_path, packages, partial=True)
    assert world.exists("engine.worker") is False
    assert world.exists("whole.two") is None
    assert world.exists("open.other") is None


@pytest.mark.parametrize(("python", "there"), [("3.11", True), ("3.12", False)])
def test_modules_that_left_the_standard_library(tmp_path, python, there):
    world = audited.world(tmp_path, {"demo==1": {}}, python=python)
    assert world.exists("distutils.core") is there


def test_setuptools_brings_distutils_back(tmp_path):
    world = audited.world(
        tmp_path, {"setuptools==80": {"setuptools/__init__.py": ""}}, python="3.12"
    )
    assert world.module("distutils.core") == Opaque("distutils.core", "injected")


def test_many_modules_at_once(world):
    world.prefetch(["yaml", "torch", "torch._C", "absent"])
    for book in world.books.values():
        book.content.path.unlink()
    assert world.module("torch").module == "torch"


def test_what_is_searched_is_read_ahead(tmp_path):
    files: audited.Files = {"deep/__init__.py": "", "deep/a.py": "", "deep/b/c.py": ""}
    world = audited.world(tmp_path, {"deep==1": files, "other==1": {"other.py": ""}})
    world.read_ahead("deep")
    world.read_ahead("absent")
    for path in (tmp_path / "wheels").iterdir():
        path.unlink()
    assert all(isinstance(world.module(name), ModuleFacts) for name in ("deep.a", "deep.b.c"))
    with pytest.raises(IntegrityError, match="other"):
        world.module("other")


def test_injected_modules():
    assert may_inject(b'sys.modules["a.b"] = x\n', "a", "a.b.c")
    assert not may_inject(b'sys.modules["a.b"] = x\n', "a", "a.bc")
    assert may_inject(b'sys.modules[f"{__name__}.b"] = x\n', "a", "a.b")
    assert may_inject(b'sys.modules[__name__ + ".b"] = x\n', "a", "a.b")
    assert not may_inject(b"sys.modules[__name__] = Lazy(x, b)\n", "a", "a.b")
    computed = b'for name in ("b", "c"):\n    sys.modules[name] = x\n'
    assert may_inject(computed, "a", "a.c")
    assert not may_inject(computed, "a", "a.d")
    assert may_inject(b"sys.modules.setdefault(n, m)  # c\n", "a", "a.c")
    assert may_inject(b"__path__ = find()\n", "a", "a.c")
    assert not may_inject(
        b"__path__ = __import__('pkgutil').extend_path(__path__, n)\n", "a", "a.c"
    )
    assert not may_inject(b"x = sys.modules['a.c']\n", "a", "a.c")


def test_wheels_of_a_resolution_with_those_that_were_built():
    made = samples.wheel("antlr")
    built = BuiltWheel(
        package="antlr", version="4.9", index="pypi", sdist=made, env={}, requires=(), wheel=made
    )
    found = wheels_of(Resolution(wheels=(samples.wheel("zzz"),), built=(built,)))
    assert [(one.package, one.version, one.index) for one in found] == [
        ("antlr", "4.9", "built"),
        ("zzz", "1.0", "pypi"),
    ]
