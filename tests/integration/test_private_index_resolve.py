"""Tests complete resolutions by uv against local private, PyTorch and FlashInfer indexes."""

import ssl
from contextlib import ExitStack

import msgspec
import pytest
import trustme

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import make_lock
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix.model import PackageIndex, RequiredPackage
from imgbuild.solve import uv
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256
from tests.support import samples
from tests.support.local_index import LocalIndex
from tests.support.resolving import resolve_wheels
from tests.support.servers import FileSite, serve_site

CUDA_TOOLKIT = [
    "nvidia-cublas-cu12==12.4.5.8.*; extra == \"all\"",
    "nvidia-cuda-nvcc-cu12==12.4.131.*; extra == \"nvcc\"",
    "nvidia-cuda-runtime-cu12==12.4.127.*; extra == \"cudart\"",
]  # fmt: skip
X86 = 'platform_machine == "x86_64"'


def sample():
    """An index whose newest files are newer than the cut-off date."""
    index = LocalIndex()
    index.wheel("cuda-toolkit", "12.4.1", CUDA_TOOLKIT, uploaded="2026-01-01")  # rule data
    index.wheel("torch", "2.6.0", [f"nvidia-cublas-cu12==12.4.5.8; {X86}", "numpy"])
    index.wheel("nvidia-cublas-cu12", "12.4.5.8")
    for version in ("12.4.131", "12.9.86"):
        index.wheel("nvidia-cuda-nvcc-cu12", version)
    index.wheel("numpy", "2.2.6", uploaded="2025-06-19T23:59:59Z")
    index.wheel("numpy", "2.3.0", uploaded="2025-06-20T00:00:00Z")
    index.wheel("numpy", "2.2.9", yanked=True)
    index.wheel("pip", "25.1")
    return index


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def default(monkeypatch):
    """Set uv's default index."""

    def choose(address):
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        uv.default_index.cache_clear()

    yield choose
    uv.default_index.cache_clear()


def no_root():
    raise AssertionError("no package must be built from an sdist")


def wheels(matrix, folder, http=None, arch=Arch.X86_64):
    store = Store.open(folder / "cache")
    resolved_wheels, built = resolve_wheels(
        matrix, "small", arch, "3.11.2", no_root, Context(store, http or HttpClient(attempts=1))
    )
    assert built == ()
    return resolved_wheels


def versions(resolved_wheels):
    return {wheel.package: wheel.version for wheel in resolved_wheels}


def test_resolution_with_a_cutoff_date_and_a_cuda_release_is_deterministic(
    stack, default, tmp_path
):
    site = stack.enter_context(serve_site(FileSite(files=sample().site_files())))
    default(site.url("simple"))
    matrix = samples.matrix(
        requires={"nvidia-cuda-nvcc-cu12": RequiredPackage(reason="for the test")}
    )
    resolved_wheels = wheels(matrix, tmp_path / "a")
    assert versions(resolved_wheels) == {
        "numpy": "2.2.6",
        "nvidia-cublas-cu12": "12.4.5.8",
        "nvidia-cuda-nvcc-cu12": "12.4.131",
        "pip": "25.1",
        "torch": "2.6.0",
    }
    assert [wheel.package for wheel in resolved_wheels] == sorted(versions(resolved_wheels))
    assert {wheel.index for wheel in resolved_wheels} == {"pypi"}
    assert wheels(matrix, tmp_path / "b") == resolved_wheels


@pytest.fixture
def private(stack, tmp_path):
    """Serve an index with TLS and a password. Returns the path of the certificate."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    site = FileSite(files=sample().site_files(), login=("reader", "s3cret-word"))
    stack.enter_context(serve_site(site, context))
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return site, path


def test_package_is_read_from_a_private_index_with_tls_and_password(
    private, default, tmp_path, monkeypatch, capfd
):
    site, authority = private
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    default(site.url("simple", login="reader:s3cret-word"))
    console.configure(verbosity=1, json=False)
    try:
        resolved_wheels = wheels(samples.matrix(), tmp_path)
    finally:
        console.configure(verbosity=0, json=False)
    assert versions(resolved_wheels)["torch"] == "2.6.0"
    lock = make_lock(samples.matrix(), "small", {Arch.X86_64: Resolution(wheels=resolved_wheels)})
    store = Store.open(tmp_path / "cache")
    required_hashes = {wheel.sha256 for wheel in resolved_wheels}
    Inputs(samples.matrix(), Context(store, HttpClient(attempts=1))).fetch_missing(
        lock, required_hashes
    )
    assert all(store.file(wheel.sha256) for wheel in resolved_wheels)
    output = capfd.readouterr()
    everything = output.out + output.err + msgspec.json.encode(lock).decode()
    assert "s3cret-word" not in everything
    assert str(site.port) not in msgspec.json.encode(lock).decode()


def test_error_about_a_wrong_password_does_not_contain_the_password(
    private, default, tmp_path, monkeypatch, capfd
):
    site, authority = private
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    default(site.url("simple", login="reader:wr0ng-word"))
    with pytest.raises(FetchFailed, match="401") as caught:
        wheels(samples.matrix(), tmp_path)
    output = capfd.readouterr()
    assert "wr0ng-word" not in f"{caught.value.message}{caught.value.hint}{output.out}{output.err}"


def assigned(url, *, flat=False, **indexes):
    matrix = samples.matrix(indexes=indexes)
    package_index = PackageIndex(url=url, upload_times="none", flat=flat)
    return msgspec.structs.replace(matrix, indexes={**matrix.indexes, "own": package_index})


def test_flat_index_page_is_read(stack, default, tmp_path):
    local_index = LocalIndex()
    local_index.wheel("trl", "0.18.2", ["torch"])
    links = "".join(
        f'<a href="packages/{item.file}">x</a>' for item in local_index.published
    ).encode()
    files = local_index.site_files() | {"links.html": links}
    first = stack.enter_context(serve_site(FileSite(files=files)))
    default(stack.enter_context(serve_site(FileSite(files=sample().site_files()))).url("simple"))
    matrix = assigned(first.url("links.html"), flat=True, trl="own")
    matrix.targets["small"] = msgspec.structs.replace(
        matrix.targets["small"], pins={"torch": "2.6.0", "trl": "0.18.2"}
    )
    assert versions(wheels(matrix, tmp_path))["trl"] == "0.18.2"


def test_package_assigned_to_an_index_is_not_taken_from_the_default_index(stack, default, tmp_path):
    local_index, public = LocalIndex(), sample()
    local_index.wheel("company-kernels", "1.0", ["torch"])
    public.wheel("company-kernels", "99.0", ["torch"])
    first = stack.enter_context(serve_site(FileSite(files=local_index.site_files(api=False))))
    hostile = stack.enter_context(serve_site(FileSite(files=public.site_files())))
    default(hostile.url("simple"))
    matrix = assigned(first.url("simple"), **{"company-kernels": "own"})
    requirements = {"company-kernels": RequiredPackage(reason="for the test")}
    matrix.targets["small"] = msgspec.structs.replace(
        matrix.targets["small"], requires=requirements
    )
    resolved_wheels = wheels(matrix, tmp_path)
    kernels = next(wheel for wheel in resolved_wheels if wheel.package == "company-kernels")
    assert (kernels.version, kernels.index) == ("1.0", "own")
    assert kernels.sha256 == sha256(local_index.published[0].data)
    assert not hostile.received_requests("simple/company-kernels/")


def test_removed_package_is_not_taken_from_another_index(stack, default, tmp_path):
    public = sample()
    public.wheel("company-kernels", "1.0")
    first = stack.enter_context(serve_site(FileSite()))
    default(stack.enter_context(serve_site(FileSite(files=public.site_files()))).url("simple"))
    matrix = assigned(first.url("simple"), **{"company-kernels": "own"})
    matrix.targets["small"] = msgspec.structs.replace(
        matrix.targets["small"], pins={"torch": "2.6.0", "company-kernels": "1.0"}
    )
    with pytest.raises(NoSolution) as caught:
        wheels(matrix, tmp_path)
    assert caught.value.reasons == ("company-kernels: the index own has no such package",)


def test_mixed_cuda_package_set_is_refused(stack, default, tmp_path):
    index = sample()
    index.wheel("kernels", "1.0", ["nvidia-cublas-cu11"])
    index.wheel("nvidia-cublas-cu11", "11.11.3.6")
    default(stack.enter_context(serve_site(FileSite(files=index.site_files()))).url("simple"))
    matrix = samples.matrix(pins={"torch": "2.6.0", "kernels": "1.0"})
    with pytest.raises(NoSolution, match="would mix CUDA releases") as caught:
        wheels(matrix, tmp_path)
    assert caught.value.reasons == (
        "nvidia-cublas-cu11 11.11.3.6 is for CUDA 11, but the target has CUDA 12",
    )


def test_torch_for_a_different_cuda_release_is_refused(stack, default, tmp_path):
    index = sample()
    index.wheel("torch", "2.7.0", [f"nvidia-cublas-cu12==12.6.4.1; {X86}"])
    default(stack.enter_context(serve_site(FileSite(files=index.site_files()))).url("simple"))
    matrix = samples.matrix(pins={"torch": "2.7.0"})
    with pytest.raises(NoSolution, match=r"no release of CUDA 12\.4 is compatible") as caught:
        wheels(matrix, tmp_path)
    assert "12.6.4.1" in caught.value.reasons[0]


def test_index_of_pip_is_used_if_uv_has_no_index(default, tmp_path, monkeypatch):
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    uv.default_index.cache_clear()
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert uv.default_index() == "https://mirror.example/simple"
    default("https://own.example/simple")
    assert uv.default_index() == "https://own.example/simple"
