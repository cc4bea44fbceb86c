"""Tests packages, CUDA release, reasons and row of a resolve request."""

import datetime

import msgspec
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import HttpClient
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.load import load_matrix, parse_matrix
from imgbuild.matrix.model import (
    Flashinfer,
    PackageIndex,
    RequiredPackage,
    StandalonePython,
    Target,
)
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve import answers, reasons, resolve_request
from imgbuild.resolve.first_matrix import target_lines
from imgbuild.resolve.resolve_request import RequestedPackage, ResolveRequest
from imgbuild.solve import torch
from imgbuild.solve.torch import TorchBuild
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import samples, standalone_matrix
from tests.support.local_index import LocalIndex
from tests.support.matrix_text import VALID_MATRIX
from tests.support.rows import each_row
from tests.support.servers import FileSite, serve_site
from tests.support.source_code import ROOT

MARKERS = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64).markers


def test_commas_outside_brackets_separate_requested_packages():
    requests, cuda = resolve_request.parse_requests(
        ["vllm>=0.9,<0.10, TRL", "torch==2.8.0"], [], {}
    )
    assert requests == (
        RequestedPackage(package="vllm", spec=">=0.9,<0.10"),
        RequestedPackage(package="trl"),
        RequestedPackage(package="torch", spec="==2.8.0"),
    )
    assert [requested.pin for requested in requests] == [None, None, "2.8.0"]
    assert cuda is None


def test_installed_torch_build_sets_the_cuda_release_and_keeps_its_index():
    requests, cuda = resolve_request.parse_requests(["vllm"], ["torch==2.8.0+cu128"], {})
    assert (requests[0].spec, requests[0].have, cuda) == ("==2.8.0", True, "12.8")
    requests, cuda = resolve_request.parse_requests(
        [], ["torch==2.8.0+cu126"], {"torch": "pytorch"}
    )
    assert (requests[0].spec, cuda) == ("==2.8.0+cu126", "12.6")


def test_installed_version_is_kept_if_the_request_allows_this_version():
    requests, _ = resolve_request.parse_requests(["torch>=2.7"], ["torch==2.8.0"], {})
    assert requests == (RequestedPackage(package="torch", spec="==2.8.0", have=True),)


def test_extras_and_markers_of_a_requested_package_are_parsed():
    words = ["ray[default, cgraph]==2.48.0,torch[opt_einsum]", 'vllm; sys_platform == "linux"']
    requests, _ = resolve_request.parse_requests(words, ["torch==2.8.0"], {})
    assert requests == (
        RequestedPackage(package="torch", spec="==2.8.0", have=True, extras=("opt-einsum",)),
        RequestedPackage(package="ray", spec="==2.48.0", extras=("cgraph", "default")),
        RequestedPackage(package="vllm", marker='sys_platform == "linux"'),
    )
    assert str(requests[1]) == "you require ray[cgraph,default]==2.48.0"
    assert not requests[2].applies_to({"sys_platform": "win32"})


def test_requested_package_excluded_by_its_marker_is_refused():
    requests, _ = resolve_request.parse_requests(["trl; sys_platform == 'win32'", "vllm"], [], {})
    request = resolve_request.ResolveRequest(requests=requests, arches=(Arch.X86_64,))
    assert resolve_request.applicable_request(request, samples.matrix()).packages == ("vllm",)
    request = resolve_request.ResolveRequest(requests=requests[:1], arches=(Arch.X86_64,))
    with pytest.raises(InputError, match=r"requested for Python 3\.11 on x86_64"):
        resolve_request.applicable_request(request, samples.matrix())


@each_row(
    ("wants", "have", "words"),
    [
        ([], [], "no package is requested"),
        (["vllm="], [], "invalid requirement: 'vllm='"),
        (["ray @ https://example.org/ray-1-py3-none-any.whl"], [], "has a URL"),
        (["ray[cgraph"], [], "invalid requirement"),
        (["vllm==0.9", "vllm==0.8"], [], "twice"),
        (["torch>=2.9"], ["torch==2.8.0"], "you have torch==2.8.0, but you require torch>=2.9"),
        ([], ["torch>=2.8.0"], "expected an exact version"),
        (["vllm===0.9.2"], [], "'vllm===0.9.2' uses ==="),
        ([], ["torch===2.8.0"], "uses ==="),
        ([], ["torch==2.6.0+cpu"], r"no build \+cpu of torch"),
        ([], ["torch==2.6.0+cu1300"], r"no build \+cu1300 of torch"),
        (
            [],
            ["torch==2.6.0+cu124", "torchvision==0.21.0+cu118"],
            r"torch==2\.6\.0\+cu124 for 12\.4 and torchvision==0\.21\.0\+cu118 for 11\.8",
        ),
    ],
)
def test_unsupported_package_requests_are_refused(wants, have, words):
    with pytest.raises(InputError, match=words):
        resolve_request.parse_requests(wants, have, {})


@pytest.mark.parametrize(("text", "cuda"), [("12.6", "12.6"), ("cu126", "12.6"), ("130", "13.0")])
def test_several_spellings_of_cuda_releases_are_accepted(text, cuda):
    assert resolve_request.requested_cuda(text, None) == cuda


def test_cuda_release_that_contradicts_installed_packages_is_refused():
    assert resolve_request.requested_cuda(None, "12.8") == "12.8"
    with pytest.raises(InputError, match=r"a build for CUDA 12\.8"):
        resolve_request.requested_cuda("12.6", "12.8")
    for text in ("12", "cu1300", "130.0"):
        with pytest.raises(InputError, match="two numbers"):
            resolve_request.requested_cuda(text, None)


def test_installed_cpu_build_of_torch_keeps_its_index():
    requests, cuda = resolve_request.parse_requests([], ["torch==2.6.0+cpu"], {"torch": "pytorch"})
    assert (requests[0].spec, cuda) == ("==2.6.0+cpu", None)


@each_row("text", ["3", "abc", "", "3.x"])
def test_invalid_python_release_is_refused(text):
    assert resolve_request.parse_python("3.11") == "3.11"
    with pytest.raises(InputError, match=f"--python {text}: ") as caught:
        resolve_request.parse_python(text)
    assert caught.value.hint == "--python 3.11"


def test_architectures_are_accepted_with_commas_and_in_other_spellings():
    assert resolve_request.requested_arches(["amd64,aarch64", "x86_64"]) == (
        Arch.X86_64,
        Arch.ARM64,
    )
    assert len(resolve_request.requested_arches([])) == 1
    with pytest.raises(InputError, match="no such architecture"):
        resolve_request.requested_arches(["sparc"])


def test_indexes_of_the_matrix_are_used():
    matrix = samples.matrix()
    assert resolve_request.parse_index_words(["Torch=pypi"], matrix) == {"torch": "pypi"}
    with pytest.raises(InputError, match="no index pytorch"):
        resolve_request.parse_index_words(["torch=pytorch"], matrix)


def test_requirements_of_a_target_are_attributed_to_the_target():
    matrix = samples.matrix(requires={"trl": RequiredPackage(spec=">=0.18", reason=samples.REASON)})
    request = resolve_request.request_of_target("small", matrix.targets["small"], Arch.X86_64)
    assert request.row == "small"
    assert [str(requested) for requested in request.requests] == [
        "the target small requires trl>=0.18",
        "the target small requires torch==2.6.0",
    ]


def test_name_of_a_new_row_is_unused_and_starts_with_the_first_package():
    matrix = samples.matrix()
    request = ResolveRequest(
        requests=(
            RequestedPackage(package="torch", spec="==2.8.0", have=True),
            RequestedPackage(package="vllm"),
        ),
        arches=(Arch.X86_64,),
    )
    versions = {"vllm": "0.10.2", "torch": "2.8.0"}
    assert resolve_request.row_name(request, matrix, "12.8", versions) == "cu128-vllm0.10.2"
    taken = msgspec.structs.replace(matrix, targets={"cu128-vllm0.10.2": matrix.targets["small"]})
    assert resolve_request.row_name(request, taken, "12.8", versions) == "cu128-vllm0.10.2-2"
    with pytest.raises(InputError, match="already has a target small"):
        resolve_request.check_request(msgspec.structs.replace(request, name="small"), matrix)


@each_row(
    ("version", "requires", "cuda"),
    [
        ("2.6.0", ["nvidia-cuda-runtime-cu12 (==12.4.127)", "sympy"], "12.4"),
        ("2.11.0", ["cuda-toolkit[cublas]==13.0.2"], "13.0"),
        ("2.6.0+cu126", [], "12.6"),
        ("2.6.0+cu118", [], "11.8"),
        ("2.6.0", ["sympy"], None),
        ("2.6.0+cpu", [], None),
    ],
)
def test_cuda_release_is_derived_from_torch(version, requires, cuda):
    torch_build = torch.torch_build(Version(version), [Requirement(line) for line in requires])
    assert torch_build.cuda == cuda


def build(version, cuda):
    return TorchBuild(version=Version(version), cuda=cuda, evidence="said so")


def test_torch_versions_are_written_as_text_and_as_specifier():
    builds = [build("2.11.0", "13.0"), build("2.10.0", None), build("2.9.0", None)]
    assert torch.cuda_summary(builds) == "2.11.0: CUDA 13.0, 2.9.0 to 2.10.0: CPU builds"
    versions = [Version(text) for text in ("2.6.0", "2.7.0", "2.7.1", "2.8.0")]
    selected = [Version("2.6.0"), Version("2.7.1")]
    assert torch.matching_specifier(selected, versions) == ">=2.6.0,<=2.7.1,!=2.7.0"


def test_version_specifier_for_local_versions_is_valid():
    names = ("2.5.1+cu124", "2.6.0+cu124", "2.6.0+cu126", "2.7.0+cu124", "2.8.0+cu124")
    versions = [Version(name) for name in names]
    selected = [versions[0], versions[1], versions[3]]
    accepted = SpecifierSet(torch.matching_specifier(selected, versions))
    assert [version for version in versions if version in accepted] == selected


@each_row(
    ("version", "cuda"),
    [
        ("2.0.1+cu117.with.pypi.cudnn", "11.7"),
        ("2.6.0+cu", None),
        ("2.9.0+cu130", "13.0"),
        ("2.11.0+cu.13.0.post1", "13.0"),
    ],
)
def test_cuda_release_is_read_from_local_version(version, cuda):
    assert torch.torch_build(Version(version), []).cuda == cuda


METADATA = {
    "vllm": b"Requires-Dist: torch==2.6.0\nRequires-Dist: ray[cgraph]!=2.44.*\n"
    b"Requires-Dist: xformers==0.0.29; platform_machine == 'aarch64'\n",
    "ray": b"Requires-Dist: cupy-cuda12x; extra == 'cgraph'\n"
    b"Requires-Dist: numpy; extra == 'all'\n",
    "torch": b"",
    "cupy-cuda12x": b"Requires-Dist: numpy>=2.0\n",
    "numpy": b"",
    "xformers": b"",
}


def test_dependencies_of_a_package_include_extras_and_markers():
    specs = {
        (link.dependent, link.package): link.spec
        for link in reasons.requirement_links(METADATA, MARKERS)
    }
    assert specs == {
        ("vllm", "torch"): "==2.6.0",
        ("vllm", "ray"): "!=2.44.*",
        ("ray", "cupy-cuda12x"): "",
        ("cupy-cuda12x", "numpy"): ">=2.0",
    }


def test_the_reasons_for_a_version_include_learned_constraints():
    learned = Constraint(
        package="vllm", versions="==0.8.5.post1", needs="ray<2.50", check="imports",
        file="vllm/x.py", line=3, name="ray.old",
    )  # fmt: skip
    other = msgspec.structs.replace(learned, versions="==0.9.0")
    versions = dict.fromkeys(METADATA, "1.0") | {"vllm": "0.8.5.post1"}
    explanations = reasons.version_reasons(
        versions,
        {"vllm": "you require vllm"},
        reasons.requirement_links(METADATA, MARKERS),
        [learned, other],
    )
    assert explanations["vllm"] == ("you require vllm",)
    assert explanations["torch"] == ("vllm requires ==2.6.0",)
    assert explanations["ray"][0].startswith("learned: vllm==0.8.5.post1 needs ray<2.50")
    assert "vllm/x.py:3" in explanations["ray"][0]
    assert explanations["ray"][1:] == ("for vllm !=2.44.*",)
    assert explanations["xformers"] == ()


TARGET = Target(
    summary='vllm, "trl" & more: for CUDA 12.4',
    base="debian-12",
    cuda="12.4",
    arch=(Arch.X86_64,),
    as_of=datetime.date(2025, 6, 20),
    pins={"torch": "2.6.0", "vllm": "0.8.5.post1"},
    requires={"trl": RequiredPackage(spec=">=0.18,<0.19", reason="asked for: yes")},
    indexes={"torch": "torch"},
    flashinfer=Flashinfer(mode="off", reason="nothing asks for it"),
    gpu=("9.0",),
    exclude={Arch.ARM64: 'torch 2.6.0: "CPU" build; no wheel'},
)


def test_printed_row_defines_the_same_target():
    text = VALID_MATRIX + "\n".join(target_lines("pasted", TARGET)) + "\n"
    assert parse_matrix(text.encode(), "matrix.yaml").targets["pasted"] == TARGET


def test_printed_rows_of_all_project_targets_define_the_same_targets():
    targets = load_matrix(ROOT / "matrix.yaml").targets
    lines = [line for name, target in targets.items() for line in target_lines(name, target)]
    assert msgspec.convert(yaml.safe_load("\n".join(lines)), dict[str, Target]) == targets


def test_printed_row_is_read_the_same_by_other_yaml_readers():
    read = yaml.safe_load("\n".join(target_lines("pasted", TARGET)))["pasted"]
    assert read["pins"] == TARGET.pins
    assert (read["cuda"], read["as_of"]) == ("12.4", TARGET.as_of)
    assert (read["flashinfer"]["mode"], read["gpu"]) == ("off", ["9.0"])
    assert read["exclude"] == {"arm64": TARGET.exclude[Arch.ARM64]}


def test_impossible_package_set_is_not_audited(tmp_path):
    index = LocalIndex()
    index.wheel("demo", "1.0")
    request = ResolveRequest(
        requests=(RequestedPackage(package="demo", spec="==9.9"),),
        arches=(Arch.X86_64,),
        cuda="12.4",
    )
    with serve_site(FileSite(files=index.site_files())) as site:
        here = {"pypi": PackageIndex(url=site.url("simple"))}
        matrix = msgspec.structs.replace(samples.matrix(), indexes=here)
        store = Store.open(tmp_path / "cache")
        project = Project(matrix=tmp_path / "matrix.yaml")
        outcome = answers.answer_request(
            request, project, matrix, (), Context(store, HttpClient(attempts=1))
        )
    refused = outcome.arch[Arch.X86_64].refused
    assert refused is not None
    assert refused.reasons[0] == "you require demo==9.9"
    assert (outcome.row, outcome.checks, outcome.unchecked) == ((), (), ())


def test_missing_python_archive_is_an_error_before_packages_are_resolved(tmp_path):
    index = LocalIndex()
    index.wheel("demo", "1.0")
    request = ResolveRequest(
        requests=(RequestedPackage(package="demo"),),
        arches=(Arch.X86_64,),
        cuda="12.4",
        python="3.12",
    )
    with serve_site(FileSite(files=index.site_files())) as site:
        archives = {Arch.X86_64: site.url("python.tar.gz")}
        python = StandalonePython(version="3.12", origin="standalone", archives=archives)
        here = {"pypi": PackageIndex(url=site.url("simple"))}
        matrix = msgspec.structs.replace(standalone_matrix.matrix(python), indexes=here)
        context = Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1))
        project = Project(matrix=tmp_path / "matrix.yaml")
        with pytest.raises(FetchFailed, match=r"python\.tar\.gz: 404"):
            answers.answer_request(request, project, matrix, (), context)
        assert [path for _, path, _ in site.requests] == ["/python.tar.gz"]
