from __future__ import annotations

import random

import pytest

from imgbuild.deb.closure import DebianArchive, resolve_dependencies
from imgbuild.errors import InputError, NoSolution


def package(name: str, version: str = "1.0", **fields: str) -> dict[str, str]:
    named = {key.replace("_", "-"): value for key, value in fields.items()}
    return {"Package": name, "Version": version, "Priority": "optional", **named}


def closed(*packages: dict[str, str], requested: tuple[str, ...]) -> list[str]:
    return [
        paragraph["Package"]
        for paragraph in resolve_dependencies(
            DebianArchive(packages), requested, file="matrix.yaml"
        )
    ]


def test_dependency_closure_includes_depends_but_not_recommends() -> None:
    names = closed(
        package("app", Depends="lib (>= 1.0)", Recommends="extra"),
        package("lib", Pre_Depends="base"),
        package("base"),
        package("extra"),
        requested=("app",),
    )
    assert names == ["app", "base", "lib"]


def test_essential_packages_are_always_included() -> None:
    assert closed(package("app"), package("sh", Essential="yes"), requested=("app",)) == [
        "app",
        "sh",
    ]


def test_first_alternative_of_a_dependency_is_chosen() -> None:
    packages = (package("app", Depends="one | two"), package("one"), package("two"))
    assert closed(*packages, requested=("app",)) == ["app", "one"]


def test_included_alternative_satisfies_the_dependency() -> None:
    packages = (package("app", Depends="one | two"), package("one"), package("two"))
    assert closed(*packages, requested=("app", "two")) == ["app", "two"]


def test_missing_alternative_of_a_dependency_is_skipped() -> None:
    packages = (
        package("app", Depends="gone | two (>= 2) | three"),
        package("two"),
        package("three"),
    )
    assert closed(*packages, requested=("app",)) == ["app", "three"]


def test_providers_of_a_package_are_ordered_by_priority_and_name() -> None:
    app = package("app", Depends="awk")
    gawk = package("gawk", Provides="awk")
    mawk = package("mawk", Provides="awk", Priority="required")
    busybox = package("busybox", Provides="awk")
    assert closed(app, gawk, mawk, busybox, requested=("app",)) == ["app", "mawk"]
    assert closed(app, gawk, busybox, requested=("app",)) == ["app", "busybox"]


def test_versioned_dependency_requires_a_versioned_provider() -> None:
    app = package("app", Depends="api (>= 3)")
    plain, old = package("plain", Provides="api"), package("old", Provides="api (= 2)")
    new = package("new", Provides="api (= 3.1)")
    assert closed(app, plain, old, new, requested=("app",)) == ["app", "new"]
    with pytest.raises(NoSolution):
        closed(app, plain, old, requested=("app",))


def test_dependency_closure_of_a_cycle_terminates() -> None:
    packages = (package("a", Depends="b"), package("b", Depends="a"))
    assert closed(*packages, requested=("a",)) == ["a", "b"]


def test_newest_of_several_debian_versions_is_used() -> None:
    archive = DebianArchive([package("a", "1.10"), package("a", "1.9")])
    assert archive.packages["a"]["Version"] == "1.10"


def test_dependency_closure_is_independent_of_the_index_order() -> None:
    packages = [
        package("app", Depends="awk, one | two"),
        *(package(f"awk{number}", Provides="awk") for number in range(9)),
        package("one", Depends="two"),
        package("two"),
    ]
    expected = closed(*packages, requested=("app",))
    for seed in range(5):
        shuffled = random.Random(seed).sample(packages, len(packages))
        assert closed(*shuffled, requested=("app",)) == expected


def test_all_unknown_debian_packages_are_reported_with_suggestions() -> None:
    with pytest.raises(InputError) as caught:
        closed(package("libnuma1"), package("git"), requested=("libnuma", "gti", "git"))
    assert [(p.value, p.nearest) for p in caught.value.problems] == [
        ("libnuma", "libnuma1"),
        ("gti", "git"),
    ]
    assert "matrix.yaml" in str(caught.value.problems[0])


def test_error_for_an_unsatisfiable_dependency_shows_the_chain_of_packages() -> None:
    with pytest.raises(NoSolution) as caught:
        closed(
            package("app", Depends="middle"),
            package("middle", Depends="lib (>= 2) | other"),
            package("lib", "1.0"),
            requested=("app",),
        )
    assert caught.value.reasons == (
        (
            "middle depends on lib (>= 2) | other, but no package in the archive satisfies this "
            "dependency"
        ),
        "middle is required by app",
        "app: required by the base",
    )


@pytest.mark.parametrize(("field", "verb"), [("Conflicts", "conflicts with"), ("Breaks", "breaks")])
def test_conflicting_debian_packages_are_reported(field: str, verb: str) -> None:
    excluding, two = package("one", **{field: "two (<< 2)"}), package("two", "1.5")
    with pytest.raises(NoSolution) as caught:
        closed(excluding, two, requested=("one", "two"))
    assert caught.value.reasons == (f"one {verb} two (<< 2), which two 1.5 satisfies",)
    assert closed(excluding, package("two", "2.0"), requested=("one", "two")) == ["one", "two"]


def test_package_can_conflict_with_a_name_that_it_provides() -> None:
    server = package("server", Provides="mail", Conflicts="mail")
    assert closed(server, requested=("server",)) == ["server"]


def test_only_packages_that_the_base_lacks_are_added() -> None:
    packages = (
        package("app", Depends="lib, base (>= 1.0)"),
        package("lib"),
        package("base", Depends="gone"),  # dependencies of base packages are not resolved again
        package("sh", Essential="yes"),
    )
    closure = resolve_dependencies(
        DebianArchive(packages), ["app"], file="matrix.yaml", have=["base"]
    )
    assert [paragraph["Package"] for paragraph in closure] == ["app", "base", "lib"]


def test_package_of_the_base_is_not_upgraded() -> None:
    packages = (package("app", Depends="base (>= 2.0)"), package("base", "1.0"))
    with pytest.raises(NoSolution, match=r"satisfies base \(>= 2.0\)") as caught:
        resolve_dependencies(DebianArchive(packages), ["app"], file="matrix.yaml", have=["base"])
    assert "app: required in addition to the base" in caught.value.reasons
