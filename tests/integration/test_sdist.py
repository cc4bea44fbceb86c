"""Tests building sdists with the Python of an image, reproducibly, and rejecting invalid sdists."""

import os
import shutil
import zipfile

import msgspec
import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.judge import CHECKS
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.deb import debian_root
from imgbuild.errors import FetchFailed, IntegrityError, NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import make_lock
from imgbuild.lock.resolution import BuiltWheel, Resolution, Wheel
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import PackageIndex, RequiredPackage, Sdist
from imgbuild.pipeline.audit_lock import audit_lock
from imgbuild.report import Severity
from imgbuild.solve.build_root import host_root
from imgbuild.solve.sdists import host_arch, make_wheel
from imgbuild.values import sha256
from tests.support import needs, samples, small_elf
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.resolving import resolve_wheels
from tests.support.servers import FileSite, serve_site
from tests.support.source_code import ROOT

pytestmark = [pytest.mark.network, pytest.mark.engine]
REASON = "because the test says so"

SETUP = b"""
import os
from setuptools import setup
os.makedirs("demo", exist_ok=True)
with open("demo/made.py", "w") as file:
    # Typical sources of nondeterminism in builds.
    print(f"{hash('x')} {os.environ['DEMO']} {set('abcdefgh')}", file=file)
    print(f"{os.environ.get('USER')} {os.environ['TZ']} {os.getcwd()}", file=file)
setup(name="demo", version="1.0", packages=["demo"], install_requires=["pip"])
"""

PYPROJECT = b"""
[build-system]
requires = ["packaging"]
build-backend = "own"
backend-path = ["tools"]
"""
BACKEND = b"""
import packaging.version

def get_requires_for_build_wheel(settings=None):
    return ["packaging>=20", "setuptools", "wheel"]

def build_wheel(folder, settings=None, metadata=None):
    from setuptools.build_meta import build_wheel
    return build_wheel(folder, settings, metadata)
"""


def base():
    """A part of Debian 12 without a compiler."""
    whole = load_matrix(ROOT / "matrix.yaml").bases["debian-12"]
    return msgspec.structs.replace(whole, packages=("python3", "usr-is-merged"))


def debian(store):
    """The root folder of the base in `store`, created when a build requires it."""
    user = load_matrix(ROOT / "matrix.yaml").image.user
    return host_root(base(), user, host_arch(), Context(store, HttpClient()))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A cache with only the root folder of the user's cache."""
    if os.geteuid() != 0:
        needs.user_namespaces()
    shared, store = Store.open(), Store.open(tmp_path_factory.mktemp("cache"))
    folder = debian(shared)().parent
    copy = store.root / folder.relative_to(shared.root)
    shutil.copytree(folder, copy, symlinks=True, copy_function=os.link)
    return store


@pytest.fixture(scope="module")
def root(store):
    return debian(store)


def sample(site, **changes):
    """A matrix that allows building `demo` from an sdist on `site`."""
    sdist = Sdist(reason=REASON, env={"DEMO": "word"}, **changes)
    matrix = samples.matrix(
        pins={"demo": "1.0"},
        indexes={"demo": "own"},
        requires={"pip": RequiredPackage(reason=REASON)},
    )
    package_index = PackageIndex(url=site.url("simple"), upload_times="none")
    return msgspec.structs.replace(
        matrix,
        indexes={**matrix.indexes, "own": package_index},
        sdists={"demo": sdist},
        requires={},
        bases={"debian-12": base()},
    )


@pytest.fixture
def site():
    with serve_site(FileSite()) as site:
        yield site


def publish(site, files, name="demo-1.0.tar.gz"):
    index = LocalIndex()
    index.add("demo", name, sdist_bytes("demo", "1.0", files))
    site.files.update(index.site_files(api=False))


def build(matrix, root, store) -> BuiltWheel:
    wheels, built = resolve_wheels(
        matrix, "small", host_arch(), "3.11.2", root, Context(store, HttpClient())
    )
    (built_wheel,) = built
    assert [wheel.package for wheel in wheels] == ["pip"]  # what the built wheel requires
    return built_wheel


def forget(store, built_wheel):
    path = store.file(built_wheel.wheel.sha256)
    assert path is not None
    path.unlink()


def test_sdist_build_is_isolated_from_the_environment(site, root, store, monkeypatch):
    publish(site, {"setup.py": SETUP})
    first = build(sample(site), root, store)
    path = store.file(first.wheel.sha256)
    assert path is not None
    with zipfile.ZipFile(path) as wheel:
        text = wheel.read("demo/made.py").decode()
        assert {info.compress_type for info in wheel.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert "word" in text
    assert "None UTC /build/source" in text
    forget(store, first)
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before = os.umask(0o077)
    try:
        assert build(sample(site), root, store) == first
    finally:
        os.umask(before)
    assert store.file(first.wheel.sha256) is not None  # it was built again
    assert {wheel.package for wheel in first.requires} >= {"setuptools", "wheel"}


@pytest.mark.long
def test_missing_built_wheel_is_rebuilt_from_the_lock(site, root, store, monkeypatch):
    publish(site, {"setup.py": SETUP})
    matrix = sample(site)
    built_wheel = build(matrix, root, store)
    resolution = Resolution(wheels=(), built=(built_wheel,))
    lock = make_lock(matrix, "small", {host_arch(): resolution})
    forget(store, built_wheel)
    Inputs(matrix, Context(store, HttpClient())).fetch_missing(lock, {built_wheel.wheel.sha256})
    assert store.file(built_wheel.wheel.sha256) is not None
    forget(store, built_wheel)
    other = msgspec.structs.replace(built_wheel, env={"DEMO": "other"})
    lock = make_lock(matrix, "small", {host_arch(): Resolution(wheels=(), built=(other,))})
    with pytest.raises(IntegrityError, match="the lock has"):
        Inputs(matrix, Context(store, HttpClient())).fetch_missing(lock, {built_wheel.wheel.sha256})


TRAINER = b"import demo.made\nfrom demo import Gone\n\nclass GRPOTrainer: ...\n"


def audited(site, root, store):
    """A lock in which trl imports a missing name from a built wheel, and its inputs."""
    index = LocalIndex()
    files = {"setup.py": SETUP, "demo/__init__.py": b"class New: ...\n"}
    index.add("demo", "demo-1.0.tar.gz", sdist_bytes("demo", "1.0", files))
    trl = index.wheel("trl", "9.0", files={"trl/__init__.py": TRAINER})
    site.files.update(index.site_files(api=False))
    matrix = sample(site)
    built = build(matrix, root, store)
    assigned = {"demo": "own", "trl": "own"}
    target = msgspec.structs.replace(matrix.targets["small"], indexes=assigned)
    matrix = msgspec.structs.replace(matrix, targets={"small": target})
    wheel = Wheel(
        package="trl",
        version="9.0",
        index="own",
        file=trl.file,
        size=len(trl.data),
        sha256=sha256(trl.data),
    )
    resolution = Resolution(wheels=(wheel,), built=(built,))
    return make_lock(matrix, "small", {host_arch(): resolution}), matrix, built


def drop(store, built_wheel):
    for item in (built_wheel.wheel, built_wheel.sdist, *built_wheel.requires):
        store.drop_file(item.sha256)


@pytest.mark.long
@pytest.mark.parametrize("checks", [("imports",), CHECKS])
def test_code_of_a_built_wheel_that_is_not_cached_is_audited(site, root, store, checks):
    lock, matrix, built = audited(site, root, store)
    drop(store, built)
    site.requests.clear()
    offline = Inputs(matrix, Context(store, HttpClient(offline=True)))
    with pytest.raises(FetchFailed, match="not in") as caught:
        audit_lock(lock, host_arch(), offline, checks=checks)
    assert caught.value.hint == "run once without --offline"
    inputs = Inputs(matrix, Context(store, HttpClient()))
    report = audit_lock(lock, host_arch(), inputs, checks=checks, drop=True)
    import_findings = [finding for finding in report.findings if finding.check == "imports"]
    assert [(finding.severity, finding.where) for finding in import_findings] == [
        (Severity.ERROR, "trl 9.0 trl/__init__.py:2")
    ]
    assert site.received_requests("packages/demo-1.0.tar.gz")
    # Built wheels are kept; files fetched for the build are dropped.
    assert store.file(built.wheel.sha256) is not None
    assert store.file(built.sdist.sha256) is None
    assert [store.file(wheel.sha256) for wheel in built.requires] == [None] * len(built.requires)
    site.requests.clear()
    assert audit_lock(lock, host_arch(), offline, checks=checks) == report
    assert site.requests == []


def test_build_backend_can_request_additional_requirements(site, root, store):
    publish(site, {"pyproject.toml": PYPROJECT, "tools/own.py": BACKEND, "setup.py": SETUP})
    built_wheel = build(sample(site), root, store)
    assert {"packaging", "setuptools", "wheel"} <= {wheel.package for wheel in built_wheel.requires}


def refused(site, root, store, files, **changes):
    publish(site, files)
    with pytest.raises(NoSolution) as caught:
        build(sample(site, **changes), root, store)
    return caught.value


def test_root_folder_for_builds_is_created_once_and_not_changed(site, root, store, monkeypatch):
    publish(site, {"setup.py": SETUP + b"# once\n"})
    before = {path: path.lstat().st_mtime_ns for path in (root() / "usr").rglob("*")}
    monkeypatch.delattr(debian_root, "base_members")  # which unpacks the packages of another one
    assert debian(store)() == root()
    build(sample(site), debian(store), store)
    assert {path: path.lstat().st_mtime_ns for path in (root() / "usr").rglob("*")} == before


# The base has no compiler.
COPIES = b"""
import os
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class CopyExtension(build_ext):
    def build_extension(self, extension):
        path = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.copy_file("fast.bin", path)

setup(name="demo", version="1.0", ext_modules=[Extension("fast", [])],
      cmdclass={"build_ext": CopyExtension})
"""


def test_sdist_whose_wheel_has_machine_code_is_refused(site, root, store):
    files = {"setup.py": COPIES, "fast.bin": small_elf.elf_file(small_elf.SONAME, "fast.so")}
    error = refused(site, root, store, files)
    assert error.message == "demo 1.0 cannot be built as a pure wheel"
    assert "which is platform-specific" in error.reasons[0]
    assert any("machine code" in reason for reason in error.reasons)


def test_sdist_build_has_no_network(site, root, store):
    call = f"import urllib.request\nurllib.request.urlopen('{site.url('simple/demo/')}')\n"
    error = refused(site, root, store, {"setup.py": call.encode()})
    assert error.message == "demo 1.0 cannot be built from its sdist"
    assert any("Error" in reason for reason in error.reasons)


@pytest.mark.long
def test_source_code_for_an_older_python_is_reported(site, root, store):
    setup = b"import inspect\nSPECIFICATION = inspect.getargspec\n"
    error = refused(site, root, store, {"setup.py": setup})
    assert "it uses inspect.getargspec, which was removed from Python" in error.reasons[0]
    assert "imgbuild init --exclude demo" in (error.hint or "")


@pytest.mark.long
def test_built_wheel_with_an_unexpected_version_is_refused(site, root, store):
    setup = SETUP.replace(b'version="1.0"', b'version="1.0+local"')
    error = refused(site, root, store, {"setup.py": setup})
    assert error.reasons == ("it builds version 1.0+local, not 1.0",)


def test_build_requirements_must_be_pinned(site, root, store):
    error = refused(site, root, store, {"setup.py": SETUP}, requires=("torch",))
    assert "requires an exact version of torch, which is not pinned" in error.message
    assert (error.hint or "").startswith("request torch==VERSION, or pin it in the target; ")


@pytest.mark.long  # reads the public index; other tests build small sdists
def test_antlr_wheel_built_from_the_sdist_is_reproducible(root, store, tmp_path):
    matrix = load_matrix(ROOT / "matrix.yaml")
    target = msgspec.structs.replace(
        matrix.targets["cu124-vllm"], pins={"antlr4-python3-runtime": "4.9.3"}, requires={}
    )
    matrix = msgspec.structs.replace(matrix, targets={"small": target}, requires={})
    built_wheels: list[BuiltWheel] = []
    for cache in (store, Store.open(tmp_path / "other")):
        wheels, built = resolve_wheels(
            matrix, "small", host_arch(), "3.11.2", root, Context(cache, HttpClient())
        )
        assert wheels == ()
        built_wheels += built
    assert built_wheels[0] == built_wheels[1]
    again = make_wheel(built_wheels[0], root(), "3.11.2", Context(store, HttpClient()))
    assert again == built_wheels[0].wheel
