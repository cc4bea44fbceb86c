"""Tests the bounds on a version, and the dependency tree in both directions."""

from __future__ import annotations

import pytest

from imgbuild.errors import InputError
from imgbuild.matrix.constraints import Constraint
from imgbuild.show import dependencies
from imgbuild.show.dependencies import DependencyGraph, DependencyTree, PackageDependency
from imgbuild.values import Arch

VERSIONS = {"trl": "1.0", "torch": "2.6.0", "numpy": "1.26.4", "pandas": "2.2", "tqdm": "4.1"}
NEEDS = (
    ("pandas", "numpy", ">=1.20"),
    ("torch", "numpy", ""),
    ("trl", "numpy", "<2,>=1.25"),
    ("trl", "torch", "==2.6.0"),
    ("trl", "pandas", ""),
    ("trl", "trl", ""),
    ("pandas", "tqdm", "!=4.0"),
)
GRAPH = DependencyGraph(
    target="small",
    arch=Arch.X86_64,
    roots={"trl": "==1.0", "torch": ""},
    packages=VERSIONS,
    dependencies=tuple(
        PackageDependency(
            package=package,
            version=VERSIONS[package],
            needs=needs,
            requirement=f"{needs}{spec}",
            spec=spec,
        )
        for package, needs, spec in NEEDS
    ),
)


def learned(package: str, versions: str, needs: str) -> Constraint:
    return Constraint(package=package, versions=versions, needs=needs, file="a.py", line=3)


def test_tightest_bounds_are_shown_with_their_packages() -> None:
    explanation = dependencies.version_reason(GRAPH, "numpy", "2025-01-01", ())
    assert [dependent.package for dependent in explanation.dependents] == ["pandas", "torch", "trl"]
    assert explanation.bounds == ">=1.25,<2"
    assert dependencies.bounds_summary(explanation) == "<2,>=1.25 (trl)"
    assert explanation.target_spec is None
    lines = dict(dependencies.why_lines(explanation))
    assert lines["torch 2.6.0"] == "any version"
    assert lines["as_of"] == "uploaded before 2025-01-01"


def test_requirements_of_the_target_are_shown_as_bounds() -> None:
    explanation = dependencies.version_reason(GRAPH, "trl", "2025-01-01", ())
    assert (explanation.target_spec, explanation.dependents) == ("==1.0", ())
    assert dependencies.bounds_summary(explanation) == "==1.0 (target)"
    assert (
        dependencies.bounds_summary(dependencies.version_reason(GRAPH, "pandas", "", ()))
        == "any version"
    )


def test_learned_constraints_on_a_package_are_listed_with_evidence() -> None:
    narrows = learned("torch", "<2.7", "numpy<1.30")
    other_version = learned("torch", ">=2.7", "numpy<1.20")
    absent = learned("vllm", "<2", "numpy<1.20")
    rules_out = learned("numpy", ">=2", "pandas>=3")
    explanation = dependencies.version_reason(
        GRAPH, "numpy", "", (narrows, other_version, absent, rules_out)
    )
    assert explanation.learned == (narrows, rules_out)
    assert explanation.bounds == ">=1.25,<1.30"
    assert "a.py:3" in str(explanation.learned[0])


def test_dependency_tree_shows_the_dependencies_of_a_package_once() -> None:
    assert list(DependencyTree(GRAPH).tree_lines(["trl", "torch"])) == [
        "trl 1.0",
        "├── numpy 1.26.4 [numpy<2,>=1.25]",
        "├── pandas 2.2",
        "│   ├── numpy 1.26.4 [numpy>=1.20]",
        "│   └── tqdm 4.1 [tqdm!=4.0]",
        "└── torch 2.6.0 [torch==2.6.0]",
        "    └── numpy 1.26.4",
        "torch 2.6.0 (*)",
    ]


def test_dependency_tree_is_limited_to_the_depth() -> None:
    drawn = DependencyTree(GRAPH, depth=1)
    assert len(list(drawn.tree_lines(["trl"]))) == 4
    assert drawn.reached(["trl"]) == {"trl", "numpy", "pandas", "torch"}
    assert list(DependencyTree(GRAPH, depth=0).tree_lines(["trl"])) == ["trl 1.0"]


def test_inverted_dependency_tree_shows_dependents() -> None:
    drawn = DependencyTree(GRAPH, invert=True)
    assert list(drawn.tree_lines(["tqdm"])) == [
        "tqdm 4.1",
        "└── pandas 2.2 [tqdm!=4.0]",
        "    └── trl 1.0 [pandas]",
    ]
    assert drawn.reached(["tqdm"]) == {"tqdm", "pandas", "trl"}


def test_package_that_is_not_in_the_lock_is_reported() -> None:
    assert dependencies.package_name("Pandas", VERSIONS, "small") == "pandas"
    with pytest.raises(InputError, match="small has no package nunpy") as caught:
        dependencies.package_name("nunpy", VERSIONS, "small")
    assert "did you mean numpy?" in (caught.value.hint or "")
