"""Tests that the audit finds symbols of a std::string ABI that the real torch does not define.

torch 2.6.0 of the default index is compiled with the old ABI of std::string. A library that
requires `torch::jit::parseSchemaOrName` with the new ABI cannot be imported. An example is a
FlashInfer wheel that was built for a different torch.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.checks import linking
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import open_package_set
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file
from imgbuild.lock.resolution import Wheel
from imgbuild.matrix.load import load_matrix
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.values import Arch
from tests.support import needs, samples

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"
FILE = "flashinfer/flashinfer_kernels.abi3.so"
OLD = "_ZN5torch3jit17parseSchemaOrNameERKSs"
NEW = "_ZN5torch3jit17parseSchemaOrNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
SOURCE = """
#include <string>
namespace torch { namespace jit {
void parseSchemaOrName(const std::string&PARAMETER);
} }
extern "C" void *PyInit_flashinfer_kernels() {
    torch::jit::parseSchemaOrName(std::string("f() -> ()")ARGUMENT);
    return nullptr;
}
"""

pytestmark = [pytest.mark.network, pytest.mark.disk(3), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def torch() -> Iterator[tuple[Wheel, Path]]:
    """The locked wheel of torch 2.6.0 in the user's cache, which only the first run downloads.

    The open store prevents its removal when another process prunes the cache.
    """
    lock = lock_file.read_lock(ROOT / "images", TARGET)
    (wheel,) = (wheel for wheel in lock.arch[Arch.X86_64].wheels if wheel.package == "torch")
    assert wheel.version == "2.6.0"
    store = Store.open()
    if store.file(wheel.sha256) is None:
        Inputs(load_matrix(ROOT / "matrix.yaml"), Context(store, HttpClient())).fetch_missing(
            lock, {wheel.sha256}
        )
    path = store.file(wheel.sha256)
    assert path is not None
    yield wheel, path
    assert path.exists()


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The folder of cached facts, because reading torch is slow."""
    return Store.open(tmp_path_factory.mktemp("facts"))


def compiled(folder: Path, *, new_string: bool, typevars: bool) -> Path:
    """Compile a library with the old or new ABI of std::string."""
    compiler = needs.require_tool("g++")
    source = folder / "kernels.cpp"
    parameter, argument = (", bool", ", true") if typevars else ("", "")
    source.write_text(SOURCE.replace("PARAMETER", parameter).replace("ARGUMENT", argument))
    library = folder / "kernels.so"
    stub = folder / "libtorch_cpu.so"  # for its name alone, as a real one is linked against torch
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(new_string)}", "-shared", "-fPIC"]
    named = ["-Wl,-soname,libtorch_cpu.so", "-x", "c++", "/dev/null"]
    linked = ["-Wl,--no-as-needed", str(source), str(stub)]
    for output, inputs in ((stub, named), (library, linked)):
        subprocess.run([compiler, *flags, "-o", str(output), *inputs], check=True)
    return library


def audited(torch: tuple[Wheel, Path], library: Path, facts: Store) -> list[Finding]:
    """Audit a wheel with `library` in a package set with the real torch."""
    files = {FILE: library.read_bytes(), "flashinfer/__init__.py": b""}
    path = samples.write_wheel(library.parent, "flashinfer-python", "0.2.5", files)
    wheel = samples.add_to_store(facts, path, "flashinfer-python", "0.2.5")
    stored_path = facts.file(wheel.sha256)
    assert stored_path is not None
    places = {torch[0].sha256: torch[1], wheel.sha256: stored_path}
    with Library(facts, processes=1) as library_wheels:
        package_set = open_package_set(
            [torch[0], wheel],
            library_wheels,
            python="3.11",
            arch=Arch.X86_64,
            glibc="2.36",
            locate=lambda item: places[item.sha256],
            partial=True,
        )
        return [finding for finding in linking.check_linking(package_set) if FILE in finding.where]


def test_symbol_with_the_new_string_abi_is_undefined_in_torch_with_the_old_abi(
    torch: tuple[Wheel, Path], tmp_path: Path, facts: Store
) -> None:
    library = compiled(tmp_path, new_string=True, typevars=True)
    (finding,) = audited(torch, library, facts)
    assert finding.severity is Severity.ERROR
    assert finding.where == f"flashinfer-python 0.2.5 {FILE}"
    assert f"torch 2.6.0 defines it with std::string of the old ABI ({OLD}b)" in finding.message
    evidence = finding.evidence
    assert evidence is not None
    assert (evidence.relation, evidence.subject) == (ConflictRelation.SYMBOL, f"{NEW}b")
    assert (evidence.other, evidence.other_version) == ("torch", "2.6.0")


def test_symbol_of_an_older_torch_is_undefined(
    torch: tuple[Wheel, Path], tmp_path: Path, facts: Store
) -> None:
    library = compiled(tmp_path, new_string=False, typevars=False)
    (finding,) = audited(torch, library, facts)
    assert finding.severity is Severity.ERROR
    assert finding.evidence is not None
    assert finding.evidence.subject == OLD
    assert finding.evidence.file == FILE


def test_symbols_of_the_installed_torch_are_defined(
    torch: tuple[Wheel, Path], tmp_path: Path, facts: Store
) -> None:
    library = compiled(tmp_path, new_string=False, typevars=True)
    assert audited(torch, library, facts) == []
