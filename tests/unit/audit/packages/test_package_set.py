"""Tests which modules exist in a package set, and which packages own them."""

import pytest

from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import Injections
from imgbuild.audit.source.facts import ModuleFacts, OpaqueModule
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from imgbuild.lock.resolution import BuiltWheel, Resolution, installed_wheels
from tests.support import audited, samples

PACKAGES: dict[str, audited.Files] = {
    "PyYAML==6.0": {"yaml/__init__.py": "X = 1\n", "_yaml/__init__.py": ""},
    "nvidia-a==1.0": {"nvidia/a/__init__.py": ""},
    "nvidia-b==2.0": {"nvidia/b/lib.so": b"\0"},
    "torch==2.6.0": {"torch/__init__.py": "X = 1\n", "torch/_C.abi3.so": b"\0"},
}


@pytest.fixture
def package_set(tmp_path):
    return audited.package_set(tmp_path, PACKAGES)


def test_packages_of_a_set_are_found_by_name_and_by_module(package_set):
    assert package_set.packages == ("nvidia-a", "nvidia-b", "pyyaml", "torch")
    assert package_set.version("PyYAML") == "6.0"
    assert package_set.owner("yaml.absent") == "pyyaml"
    assert package_set.owner("nvidia.b.lib") == "nvidia-b"
    assert package_set.owner("nvidia") is None
    assert package_set.owner("os.path") is None


def test_modules_without_readable_source_are_opaque(package_set):
    facts = package_set.module("yaml")
    assert isinstance(facts, ModuleFacts)
    assert facts.file == "yaml/__init__.py"
    assert package_set.module("torch._C") == OpaqueModule("torch._C", "compiled")
    assert package_set.module("torch._C._nn") == OpaqueModule("torch._C._nn", "compiled")
    assert package_set.module("nvidia") == OpaqueModule("nvidia", "namespace")
    assert package_set.module("json.tool") == OpaqueModule("json.tool", "stdlib")
    assert package_set.module("torch.absent") is None
    assert package_set.module("absent") is None


def test_existence_of_a_module_is_known_without_reading_the_module(package_set):
    assert package_set.exists("yaml") is True
    assert package_set.exists("nvidia") is True
    assert package_set.exists("torch._C._nn") is None
    assert package_set.exists("torch._six") is False
    assert package_set.exists("nvidia.absent") is False


def test_module_that_a_partial_set_lacks_is_unknown(tmp_path):
    package_set = audited.package_set(tmp_path, PACKAGES, partial=True)
    assert package_set.exists("vllm.worker") is None
    assert package_set.exists("nvidia.absent") is None
    assert package_set.exists("torch.absent") is False


def test_partial_set_has_all_modules_of_a_package_named_like_the_module(tmp_path):
    packages: dict[str, audited.Files] = {
        "engine==2.0": {"engine/__init__.py": "", "engine/core.py": ""},
        "part-one==1.0": {"whole/__init__.py": "", "whole/one.py": ""},
        "open==1.0": {"open/__init__.py": "__path__ = extend_path(__path__, __name__)\n"},
    }
    package_set = audited.package_set(tmp_path, packages, partial=True)
    assert package_set.exists("engine.worker") is False
    assert package_set.exists("whole.two") is None
    assert package_set.exists("open.other") is None


@pytest.mark.parametrize(("python", "there"), [("3.11", True), ("3.12", False)])
def test_modules_removed_from_standard_library_are_missing(tmp_path, python, there):
    package_set = audited.package_set(tmp_path, {"demo==1": {}}, python=python)
    assert package_set.exists("distutils.core") is there


def test_setuptools_provides_distutils(tmp_path):
    package_set = audited.package_set(
        tmp_path, {"setuptools==80": {"setuptools/__init__.py": ""}}, python="3.12"
    )
    assert package_set.module("distutils.core") == OpaqueModule("distutils.core", "injected")


BUILDS: audited.Files = {
    "demo/__init__.py": "",
    "demo/_a.abi3.so": b"\0",
    "demo/_b.cpython-311-x86_64-linux-gnu.so": b"\0",
    "demo/_b.cpython-312-x86_64-linux-gnu.so": b"\0",
    "demo/_c.cpython-312-x86_64-linux-gnu.so": b"\0",
    "demo/_d.cpython-312-x86_64-linux-gnu.so": b"\0",
    "demo/_d.py": "X = 1\n",
}


def test_library_caches_modules_by_python_version(tmp_path):
    library = Library(Store.open(tmp_path / "cache"), processes=1)
    package_sets = {
        python: audited.package_set(tmp_path, {"demo==1": BUILDS}, python=python, library=library)
        for python in ("3.12.4", "3.11", "3.10")
    }
    assert package_sets["3.12.4"].wheels["demo"] is package_sets["3.11"].wheels["demo"]
    older, newer = package_sets["3.11"], package_sets["3.12.4"]
    for package_set, minor in ((older, 11), (newer, 12)):
        file = package_set.modules_of("demo")["demo._b"]
        assert file == f"demo/_b.cpython-3{minor}-x86_64-linux-gnu.so"
    assert set(package_sets["3.10"].modules_of("demo")) == {"demo", "demo._a", "demo._d"}
    assert (older.exists("demo._c"), newer.exists("demo._c")) == (False, True)
    assert older.module("demo._c") is None
    assert newer.module("demo._c") == OpaqueModule("demo._c", "compiled")
    newer.prefetch(["demo._d"])
    assert newer.module("demo._d") == OpaqueModule("demo._d", "compiled")
    assert isinstance(older.module("demo._d"), ModuleFacts)
    assert set(older.files("demo")) == set(newer.files("demo")) > set(BUILDS)


def test_prefetch_reads_modules_of_several_packages(package_set):
    package_set.prefetch(["yaml", "torch", "torch._C", "absent"])
    for library_wheel in package_set.wheels.values():
        library_wheel.content.path.unlink()
    assert package_set.module("torch").module == "torch"


def test_modules_that_a_search_needs_are_prefetched(tmp_path):
    files: audited.Files = {"deep/__init__.py": "", "deep/a.py": "", "deep/b/c.py": ""}
    package_set = audited.package_set(tmp_path, {"deep==1": files, "other==1": {"other.py": ""}})
    package_set.read_ahead("deep")
    package_set.read_ahead("absent")
    for path in (tmp_path / "wheels").iterdir():
        path.unlink()
    assert all(isinstance(package_set.module(name), ModuleFacts) for name in ("deep.a", "deep.b.c"))
    with pytest.raises(IntegrityError, match="other"):
        package_set.module("other")


def may_inject(source: bytes, module: str, name: str) -> bool:
    return Injections(source, module).may_create(name)


def test_modules_that_code_injects_into_sys_modules_are_opaque():
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


ALIASES = b"""
for model, module in split(folder.rglob("image_processing_*.py")):
    sys.modules[f"{__name__}.models.{model}.{module}_fast"] = Alias()
"""
FINDER = rb"""
OLD = re.compile(rf"{re.escape(__name__)}\.models\.(\w+)\.image_processing_(?!pil_)(\w+)_fast")
sys.meta_path.append(Finder(OLD))
"""


@pytest.mark.parametrize("source", [ALIASES, FINDER])
def test_injected_modules_with_computed_names_are_found(source: bytes) -> None:
    injections = Injections(source, "a")
    assert injections.has_form_of("a.models.b.image_processing_b_fast")
    assert not injections.has_form_of("a.models.b.image_processing_b")
    assert not injections.has_form_of("a.models.b.tokenization_b_fast")
    assert not injections.has_form_of("a.other.b.image_processing_b_fast")
    without = Injections(source.replace(b"sys.modules", b"x").replace(b"meta_path", b"x"), "a")
    assert not without.has_form_of("a.models.b.image_processing_b_fast")


def test_package_set_includes_wheels_built_from_sdists():
    antlr_wheel = samples.wheel("antlr")
    built = BuiltWheel(
        package="antlr",
        version="4.9",
        index="pypi",
        sdist=antlr_wheel,
        env={},
        requires=(),
        wheel=antlr_wheel,
    )
    wheels = installed_wheels(Resolution(wheels=(samples.wheel("zzz"),), built=(built,)))
    assert [(wheel.package, wheel.version, wheel.index) for wheel in wheels] == [
        ("antlr", "4.9", "built"),
        ("zzz", "1.0", "pypi"),
    ]


def test_package_that_was_not_read_has_only_a_version(tmp_path):
    opened = audited.package_set(tmp_path, PACKAGES, unread_versions={"Odd": "1.0"})
    assert opened.version("odd") == "1.0"
    assert opened.packages == ("nvidia-a", "nvidia-b", "pyyaml", "torch")
    assert opened.exists("odd") is None
    assert opened.module("odd.inner") == OpaqueModule("odd.inner", "unknown")
    assert opened.exists("torch.absent") is False
