"""Tests explanations of conflicts and the nearest package sets, on a local index."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import msgspec
import pytest
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.matrix.constraints import Constraint
from imgbuild.project.model import Declarations, DeclaredRequirement, FilePlace
from imgbuild.resolve import causes, conflict, declared_requests, first_solve, suggest
from imgbuild.resolve import gaps as behind
from imgbuild.resolve.conflict import PackageFacts
from imgbuild.resolve.first_solve import ArchQuery, LearnedMemory
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.resolve.suggest import QuickLook
from imgbuild.solve import torch
from imgbuild.solve.uv import ChosenPackage
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import samples
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site

X86, ARM = "cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_aarch64"
LEARNED = Constraint(
    package="trl", versions=">=1.1", needs="vllm>=0.9", check="imports",
    file="trl/client.py", line=43, name="vllm.utils.network_utils", came="0.9", read_in="1.2",
    against="0.8",
)  # fmt: skip


def small_index() -> LocalIndex:
    local_index = LocalIndex()
    for version, cuda in (("2.5.0", "12.4"), ("2.6.0", "12.4"), ("2.7.0", "12.6")):
        needs = [f"nvidia-cuda-runtime-cu12=={cuda}.127; platform_machine == 'x86_64'"]
        local_index.wheel("torch", version, needs, tag=X86)
        local_index.wheel("torch", version, needs, tag=ARM)
        local_index.wheel("nvidia-cuda-runtime-cu12", f"{cuda}.127")
    local_index.wheel("cuda-toolkit", "13.0.2")
    for tag in (X86, ARM):
        local_index.wheel("torch", "2.11.0", ["cuda-toolkit==13.0.2"], tag=tag)
    for version, base in (
        ("0.7", "2.5.0"),
        ("0.8", "2.6.0"),
        ("0.9", "2.7.0"),
        ("1.0", "2.11.0"),
    ):
        local_index.wheel("vllm", version, [f"torch=={base}", "certs>=1"], tag=X86)
    local_index.wheel("vllm", "1.0", ["torch==2.11.0"], tag=ARM)
    local_index.wheel("vllm", "1.1", ["torch==2.11.0", "certs>=5"], tag=X86)
    local_index.wheel("engine", "0.1", ["torch>=2.0"])  # declares too little
    for version, base in (("0.4", "2.5.0"), ("0.5", "2.5.0"), ("0.6", "2.5.0"), ("0.7", "2.7.0")):
        local_index.wheel("engine", version, [f"torch=={base}"], tag=X86)
    local_index.wheel("certs", "4")
    for version in ("1.0", "1.1", "1.2"):
        local_index.wheel("trl", version, ["torch>=2.0"])
    local_index.wheel("dict", "0.1", uploaded="2023-01-01")
    local_index.wheel("dict", "0.2", tag=X86, uploaded="2023-06-01")
    local_index.wheel("dict", "0.6", tag=X86, uploaded="2024-11-01")
    local_index.wheel("dict", "0.8", tag=X86, uploaded="2025-01-01")
    local_index.wheel("dict", "0.8", tag=ARM, uploaded="2025-01-01")
    local_index.wheel("dict", "0.9", tag=ARM, uploaded="2025-02-01")
    local_index.wheel("rl", "0.4", uploaded="2024-01-01")
    local_index.wheel("rl", "0.9", ["vllm==0.7"], uploaded="2025-01-01")
    return local_index


@pytest.fixture
def site() -> Iterator[FileSite]:
    with serve_site(FileSite(files=small_index().site_files())) as opened:
        yield opened


@pytest.fixture
def ask(site, tmp_path):
    """A function that returns the facts about requested (package, specifier) pairs."""
    http, store = HttpClient(attempts=1), Store.open(tmp_path / "cache")

    def make(*requests, arch=Arch.X86_64, learned=()):
        demands = tuple(conflict.user_demand(package, spec) for package, spec in requests)
        rules = FileRules(
            as_of=datetime.date(2025, 6, 20),
            tags=WheelTags(python="3.11", glibc="2.36", arch=arch),
            pins=conflict.exact_requests(demands),
        )
        place = IndexAddress(name="pypi", address=site.url("simple"))
        gone = IndexAddress(name="gone", address="http://127.0.0.1:9/simple")
        indexes = IndexLookup(
            {"pypi": place, "gone": gone}, {"flashinfer-python": "gone"}, "pypi", http
        )
        catalogue = FileCatalogue(indexes, rules, http, store)

        def read(file):
            return read_wheel_metadata(file, http, store)

        return PackageFacts(catalogue, read, learned, torch.torch_builds(catalogue, read)), demands

    return make


def refused(facts, demands, cuda) -> conflict.RequirementConflict:
    requirement_conflict = conflict.find_conflict(facts, demands, cuda)
    assert requirement_conflict is not None
    return requirement_conflict


def read_all(versions) -> QuickLook:
    return QuickLook(read=frozenset(versions))


def clash(versions, *learned) -> QuickLook:
    return QuickLook(clashes=True, learned=learned, read=frozenset(versions))


def near(facts, demands, cuda, check=read_all, retained=()):
    requirement_conflict = refused(facts, demands, cuda)
    return suggest.SuggestionSearch(
        facts, demands, requirement_conflict, check, retained
    ).find_suggestions(cuda)


def test_exact_version_outside_of_its_other_bounds_is_named(ask):
    for package, spec in (("torch", "==2.5.0,<2.4"), ("trl", "==1.0,>=1.1")):
        facts, demands = ask((package, spec))
        reasons = refused(facts, demands, None).reasons
        assert reasons[-1] == f"no version of {package} satisfies {spec}"


def test_compatible_requested_packages_have_no_conflict(ask):
    facts, demands = ask(("vllm", "==0.8"), ("trl", ""), ("torch", ">=2.6"))
    assert conflict.find_conflict(facts, demands, "12.4") is None
    torch = conflict.newest_torch(facts, demands, "12.4")
    assert torch is not None
    assert (str(torch.version), torch.cuda) == ("2.6.0", "12.4")


def test_package_that_requires_torch_of_a_different_cuda_release_is_a_conflict(ask):
    facts, demands = ask(("vllm", "==1.0"))
    requirement_conflict = refused(facts, demands, "12.4")
    assert requirement_conflict.reasons == (
        "you require CUDA 12.4",
        "you require vllm==1.0",
        "vllm 1.0 requires torch==2.11.0 (its METADATA)",
        "torch 2.11.0 (CUDA 13.0: requires cuda-toolkit==13.0.2) on x86_64",
    )
    assert (requirement_conflict.requests, requirement_conflict.cuda) == (("vllm",), True)
    of_row = conflict.find_conflict(facts, demands, "12.4", row="cu124-vllm")
    assert of_row is not None
    assert of_row.reasons[0] == "the target cu124-vllm is for CUDA 12.4"
    assert near(facts, demands, "12.4") == (
        "vllm 0.8, with torch 2.6.0 for CUDA 12.4",
        "CUDA 13.0 instead of 12.4, with torch 2.11.0 for CUDA 13.0",
    )


def test_requested_packages_with_different_torch_versions_conflict(ask):
    facts, demands = ask(("torch", "==2.6.0"), ("vllm", "==0.9"))
    requirement_conflict = refused(facts, demands, None)
    assert requirement_conflict.reasons == (
        "you require torch==2.6.0",
        "you require vllm==0.9",
        "vllm 0.9 requires torch==2.7.0 (its METADATA)",
        (
            f"vllm 0.9 is compiled ({X86}): with a torch other than the one it requires, it may"
            " lack symbols of torch's C++ ABI"
        ),
    )
    assert near(facts, demands, None) == (
        "torch 2.7.0 for CUDA 12.6",
        "vllm 0.8, with torch 2.6.0 for CUDA 12.4",
    )
    assert near(facts, demands, None, retained=("torch",)) == (
        "vllm 0.8, with torch 2.6.0 for CUDA 12.4",
    )


def test_dependency_newer_than_every_version_on_the_index_is_explained(ask):
    facts, demands = ask(("vllm", "==1.1"))
    assert refused(facts, demands, "13.0").reasons == (
        "you require vllm==1.1",
        "vllm 1.1 requires certs>=5 (its METADATA)",
        "the newest certs on the index pypi is 4",
    )
    assert near(facts, demands, "13.0") == ("vllm 1.0, with torch 2.11.0 for CUDA 13.0",)


def test_learned_constraints_are_reported_with_their_evidence(ask):
    facts, demands = ask(("vllm", "==0.8"), ("trl", "==1.2"), learned=[LEARNED])
    requirement_conflict = refused(facts, demands, None)
    assert requirement_conflict.reasons[-1] == (
        "trl 1.2 needs vllm>=0.9: trl/client.py:43 imports vllm.utils.network_utils,"
        " added in vllm 0.9"
    )
    assert near(facts, demands, None) == (
        "vllm 0.9, with torch 2.7.0 for CUDA 12.6",
        "trl 1.0, with torch 2.6.0 for CUDA 12.4",
    )


def test_constraints_are_learned_from_the_nearest_package_set(ask):
    facts, demands = ask(("vllm", "==0.8"), ("trl", "==1.2"), learned=[LEARNED])
    checked = []

    def check(versions):
        checked.append(dict(versions))
        more = msgspec.structs.replace(LEARNED, versions=">=1.0", needs="vllm>=1.0")
        return clash(versions, more) if versions["vllm"] in ("0.8", "0.9") else read_all(versions)

    assert near(facts, demands, None, check) == ("vllm 1.0, with torch 2.11.0 for CUDA 13.0",)
    assert {"vllm": "0.9", "trl": "1.2"} in checked


def test_conflict_between_versions_is_shown_in_addition_to_the_cuda_release(ask):
    facts, demands = ask(("torch", "==2.7.0"), ("vllm", "==0.8"))
    reasons = refused(facts, demands, "12.4").reasons
    assert reasons[:2] == ("you require CUDA 12.4", "you require torch==2.7.0")
    assert "vllm 0.8 requires torch==2.6.0 (its METADATA)" in reasons
    assert len(set(reasons)) == len(reasons)


def test_missing_torch_for_the_cuda_release_is_explained(ask):
    facts, demands = ask(("torch", "==2.6.0"), ("dict", "==0.6"), arch=Arch.ARM64)
    requirement_conflict = refused(facts, demands, "12.4")
    assert requirement_conflict.reasons == (
        "torch 2.6.0 (a CPU build: requires no CUDA library) on aarch64",
        "no torch on aarch64 is built for CUDA 12.4: 2.11.0: CUDA 13.0, 2.5.0 to 2.7.0: CPU builds",
        (
            "dict 0.6: no Linux aarch64 wheel, nor has any version from 0.2 to 0.6"
            " (it has Linux x86_64); nearest compatible: 0.8"
        ),
    )
    (text,) = near(facts, demands, "12.4")
    assert text == "torch 2.11.0 and dict 0.8, with torch 2.11.0 for CUDA 13.0"


def test_constraints_are_learned_from_a_package_set_with_several_changes(ask):
    facts, demands = ask(("torch", "==2.6.0"), ("dict", "==0.6"), arch=Arch.ARM64)
    checked = []

    def against(*clashing):
        def check(versions):
            checked.append(dict(versions))
            needs = msgspec.structs.replace(
                LEARNED, package="dict", versions=f"=={versions['dict']}", needs="torch<2.11"
            )
            return clash(versions, needs) if versions["dict"] in clashing else read_all(versions)

        return check

    (text,) = near(facts, demands, "12.4", against("0.8"))
    assert text == "torch 2.11.0 and dict 0.9, with torch 2.11.0 for CUDA 13.0"
    assert checked == [{"torch": "2.11.0", "dict": "0.8"}, {"torch": "2.11.0", "dict": "0.9"}]
    assert near(facts, demands, "12.4", against("0.8", "0.9")) == ()


def test_package_set_with_incompatible_code_is_not_retried_with_another_cuda(ask):
    facts, demands = ask(("vllm", "==1.0"), ("trl", "==1.2"))
    plain = near(facts, demands, "12.4")
    assert plain[-1] == "CUDA 13.0 instead of 12.4, with torch 2.11.0 for CUDA 13.0"

    def check(versions):
        older = msgspec.structs.replace(LEARNED, versions="==1.2", needs="vllm<1.0")
        clashes = versions == {"vllm": "1.0", "trl": "1.2"}
        return clash(versions, older) if clashes else read_all(versions)

    assert near(facts, demands, "12.4", check) == plain[:-1]


def test_package_set_with_a_conflict_that_yields_no_constraint_is_not_retried(ask):
    facts, demands = ask(("vllm", "==0.8"), ("trl", "==1.2"), learned=[LEARNED])
    checked = []

    def check(versions):
        checked.append(dict(versions))
        return clash(versions) if versions["vllm"] == "0.9" else read_all(versions)

    assert near(facts, demands, None, check) == (
        "vllm 1.0, with torch 2.11.0 for CUDA 13.0",
        "trl 1.0, with torch 2.6.0 for CUDA 12.4",
    )
    assert [versions["vllm"] for versions in checked] == ["0.9", "1.0", "0.8"]


def test_other_package_set_is_tried_after_a_conflict_that_yields_no_constraint(ask):
    facts, demands = ask(("torch", "==2.6.0"), ("dict", "==0.6"), arch=Arch.ARM64)
    checked = []

    def check(versions):
        checked.append(versions["dict"])
        return clash(versions) if versions["dict"] == "0.8" else read_all(versions)

    (text,) = near(facts, demands, "12.4", check)
    assert text == "torch 2.11.0 and dict 0.9, with torch 2.11.0 for CUDA 13.0"
    assert checked == ["0.8", "0.9"]


def test_nearest_package_set_reports_code_that_was_not_read(ask):
    # The resulting version of a range is unknown.
    facts, demands = ask(("vllm", "==1.0"), ("trl", ">=1.0"), ("torch", ">=2.0"))
    words = "(the code of trl was not read)"
    assert near(facts, demands, "12.4") == (
        f"vllm 0.8, with torch 2.6.0 for CUDA 12.4 {words}",
        f"CUDA 13.0 instead of 12.4, with torch 2.11.0 for CUDA 13.0 {words}",
    )
    assert near(facts, demands, "12.4", lambda versions: QuickLook())[0] == (
        "vllm 0.8, with torch 2.6.0 for CUDA 12.4 (according to METADATA; its code was not read)"
    )


def test_pure_wheel_of_a_torch_package_has_no_abi(ask):
    facts, _ = ask()
    assert facts.compiled_tag("trl", Version("1.2")) == ""
    assert facts.compiled_tag("engine", Version("0.7")) == X86
    assert facts.compiled_tag("absent", Version("1")) == ""


def test_the_nearest_newer_version_is_suggested_before_an_older_one(ask):
    facts, demands = ask(("engine", "==0.6"), ("torch", "==2.7.0"))
    assert [text.partition(",")[0] for text in near(facts, demands, None)] == [
        "engine 0.7",
        "torch 2.5.0 for CUDA 12.4",
    ]
    # An older version if no newer one fits; newer versions of all requests come first.
    facts, demands = ask(("engine", "==0.6"), ("torch", "==2.6.0"))
    assert [text.partition(",")[0] for text in near(facts, demands, None)] == [
        "engine 0.1",
        "torch 2.5.0 for CUDA 12.4",
    ]
    facts, demands = ask(("vllm", "==0.8"), ("torch", "==2.5.0"))
    assert [text.partition(",")[0] for text in near(facts, demands, None)] == [
        "torch 2.6.0 for CUDA 12.4",
        "vllm 0.7",
    ]


def test_torch_version_of_a_prebuilt_wheel_is_read_from_the_file_name(ask):
    requested = ("flashinfer-python", "==0.2.5+cu124torch2.6")
    facts, demands = ask(("torch", "==2.7.0"), requested)
    requirement_conflict = refused(facts, demands, None)
    assert requirement_conflict.requests == ("torch", "flashinfer-python")
    assert "is compiled for torch 2.6, according to its version" in requirement_conflict.reasons[-1]
    assert near(facts, demands, None) == ("torch 2.6.0 for CUDA 12.4",)
    facts, demands = ask(("torch", "==2.6.0"), requested)
    assert conflict.find_conflict(facts, demands, "12.4") is None


def test_package_missing_on_every_index_is_explained(ask):
    facts, demands = ask(("absent", "==1.0"))
    assert refused(facts, demands, None).reasons == (
        "you require absent==1.0",
        "absent: the index pypi has no such package",
    )


def test_search_for_older_releases_continues_past_releases_without_wheels(ask):
    for arch, hidden in ((Arch.ARM64, True), (Arch.X86_64, False)):
        facts, _ = ask(arch=arch)
        gaps = behind.ReleaseGaps(facts.catalogue.indexes, facts.catalogue.rules.tags, ())
        assert gaps.is_before_gap("dict", Version("0.1")) is hidden
        assert not gaps.is_before_gap("dict", Version("0.8"))


def test_package_kept_at_an_old_version_is_reported_with_the_cause(ask):
    facts, demands = ask(("vllm", "==0.8"), ("rl", ""))
    versions = {"vllm": "0.8", "rl": "0.4", "torch": "2.6.0"}
    (text,) = behind.behind_newest(facts, demands, versions, "12.4")
    assert text == (
        "rl 0.4 was uploaded in 2024-01, and 0.9 in 2025-01: the package set has vllm 0.8;"
        " rl 0.9 is available; rl 0.9 requires vllm==0.7 (its METADATA)"
    )
    assert behind.behind_newest(facts, demands, {**versions, "rl": "0.9"}, "12.4") == ()


def outdated(facts, demands, versions):
    chosen = [ChosenPackage(package=name, version=versions[name], via=("rl",)) for name in versions]
    return behind.outdated_packages(facts, demands, chosen, versions, "12.4")


def test_requested_package_older_than_the_others_by_a_year_is_outdated(ask):
    facts, demands = ask(("vllm", "==0.8"), ("rl", ""))
    versions = {"vllm": "0.8", "rl": "0.4", "torch": "2.6.0"}
    (outdated_package,) = outdated(facts, demands, versions)
    assert (outdated_package.package, outdated_package.reasons) == (
        "rl",
        (
            "only rl 0.4 of 2024-01 is compatible, although 0.9 of 2025-01 is available",
            "the package set has vllm 0.8",
            "rl 0.9 is available",
            "rl 0.9 requires vllm==0.7 (its METADATA)",
        ),
    )
    assert outdated(facts, demands, {**versions, "rl": "0.9"}) == ()
    facts, demands = ask(("vllm", "==0.8"), ("rl", "==0.4"))
    assert outdated(facts, demands, versions) == ()


def test_package_that_a_dependent_keeps_outdated_is_reported(ask):
    facts, demands = ask(("vllm", "==0.8"))
    versions = {"vllm": "0.8", "dict": "0.1", "rl": "0.4", "torch": "2.6.0"}
    (outdated_package,) = outdated(facts, demands, versions)  # rl 0.9 requires another vllm
    assert outdated_package.reasons == (
        (
            "only dict 0.1 of 2023-01 (required by rl) is compatible, although 0.8 of 2025-01 is"
            " available"
        ),
    )


def test_minor_releases_are_counted_if_upload_times_are_missing(ask, site):
    local_index = small_index()
    for number in range(1, 20):
        local_index.wheel("many", f"0.{number}")
    site.files = local_index.site_files(api=False)
    facts, demands = ask(("torch", "==2.6.0"), ("many", ""))
    facts.catalogue.indexes.places["pypi"] = msgspec.structs.replace(
        facts.catalogue.indexes.places["pypi"], timed=False
    )
    behind_by = {
        version: bool(outdated(facts, demands, {"torch": "2.6.0", "many": version}))
        for version in ("0.6", "0.7", "0.19")
    }
    assert behind_by == {"0.6": True, "0.7": False, "0.19": False}


def test_the_newest_version_without_a_conflict_is_requested(ask):
    facts, demands = ask(("vllm", "==0.7"), ("rl", ""), ("trl", ""))
    versions = {"vllm": "0.7", "torch": "2.5.0", "rl": "0.4", "trl": "1.2"}
    (floor,) = behind.floor_constraints(facts, demands, versions, "12.4", "2.5.0")
    assert (floor.package, floor.versions, floor.needs) == ("torch", "==2.5.0", "rl>=0.9")
    facts, demands = ask(("vllm", "==0.8"), ("rl", ""))
    fitting = {"vllm": "0.8", "torch": "2.6.0", "rl": "0.4"}
    assert behind.floor_constraints(facts, demands, fitting, "12.4", "2.6.0") == ()


def test_all_causes_are_reported_with_the_lines_of_the_project(ask):
    facts, demands = ask(
        ("certs", "==5"), ("engine", "==0.7"), ("rl", "==0.9"), ("torch", "==2.6.0"),
        ("vllm", "==0.9"),
    )  # fmt: skip
    names = sorted(each.package for each in demands)
    places = {name: (FilePlace("a.txt", line),) for line, name in enumerate(names, 1)}
    first = refused(facts, demands, None)
    assert first.package == "certs"
    reasons = causes.all_reasons(facts, demands, first, None, places)
    assert reasons == (
        "a.txt:2: engine==0.7: requires torch==2.7.0, but torch==2.6.0 is required (a.txt:4)",
        "a.txt:3: rl==0.9: requires vllm==0.7, but vllm==0.9 is required (a.txt:5)",
        "a.txt:5: vllm==0.9: requires torch==2.7.0, but torch==2.6.0 is required (a.txt:4)",
        *first.reasons,
    )
    assert causes.without_files(facts, demands) == ()


def test_explained_conflict_is_not_reported_again(ask):
    facts, demands = ask(("torch", "==2.6.0"), ("vllm", "==0.9"), ("absent", "==1"))
    first = refused(facts, demands[:2], None)
    reasons = causes.all_reasons(facts, demands, first, None, {})
    assert reasons == (*first.reasons, *refused(facts, demands[2:], None).reasons)
    assert causes.without_files(facts, demands) == ("absent",)


def test_suggestions_omit_packages_without_a_wheel(ask, tmp_path):
    lines = ("absent==1", "torch==2.6.0", "vllm==0.9")
    declared = Declarations(
        requirements=tuple(
            DeclaredRequirement(text=text, place=FilePlace("a.txt", line))
            for line, text in enumerate(lines, 1)
        )
    )
    matrix = samples.matrix()
    request = ResolveRequest(requests=(), arches=(Arch.X86_64,), as_of=datetime.date(2025, 6, 20))
    requests = declared_requests.requested_packages(declared, request, matrix)
    query = ArchQuery(
        request=msgspec.structs.replace(request, requests=requests),
        matrix=matrix,
        arch=Arch.X86_64,
        memory=LearnedMemory(()),
        context=Context.open(root=tmp_path / "cache"),
        locked=frozenset(),
    )
    facts, _ = ask(*((each.package, each.spec) for each in query.demands))
    with pytest.raises(NoSolution) as error:
        first_solve.refuse_if_conflicting(query, facts)
    assert error.value.reasons[:2] == (
        "a.txt:3: vllm==0.9: requires torch==2.7.0, but torch==2.6.0 is required (a.txt:2)",
        "you require absent==1 (a.txt:1)",
    )
    assert error.value.nearest[0].startswith("without absent: torch 2.7.0")
    assert error.value.nearest[-1].startswith("the target small (planned, not locked) on x86_64")
    assert str(error.value.hint).endswith("imgbuild audit torch==2.6.0 vllm==0.9")
    brief = msgspec.structs.replace(query, suggestions=False)
    with pytest.raises(NoSolution) as error:
        first_solve.refuse_if_conflicting(brief, facts)
    assert not any(text.startswith("without absent") for text in error.value.nearest)
