"""Tests that requirements of wheels and learned constraints are checked in package sets."""

import pytest

from imgbuild.audit.checks import metadata
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import ConflictRelation, Severity
from tests.support import audited


def metadata_findings(tmp_path, packages, requires=None, constraints=(), extras=None, **more):
    lines = {
        name: "".join(f"{line}\n" for line in lines) for name, lines in (requires or {}).items()
    }
    package_set = audited.package_set(
        tmp_path, {pin: {} for pin in packages}, metadata=lines, **more
    )
    return metadata.check_metadata(package_set, constraints, extras or {})


def test_package_set_with_consistent_metadata_has_no_findings(tmp_path):
    requires = {"a==1": ["Requires-Dist: b>=2,<3", "Requires-Python: >=3.9"]}
    assert metadata_findings(tmp_path, ["a==1", "b==2.5"], requires) == []


def test_finding_about_a_version_conflict_names_both_packages(tmp_path):
    (finding,) = metadata_findings(tmp_path, ["a==1", "b==3.0"], {"a==1": ["Requires-Dist: b<3"]})
    assert finding.severity is Severity.ERROR
    assert finding.message == "a 1 requires b<3, but b is 3.0"
    assert finding.evidence.relation is ConflictRelation.REQUIREMENT
    assert (finding.evidence.other, finding.evidence.other_version) == ("b", "3.0")
    assert finding.evidence.spec == "<3"
    assert (finding.evidence.file, finding.evidence.line) == ("a-1.dist-info/METADATA", 4)
    assert finding.where == "a 1 a-1.dist-info/METADATA:4"


def test_local_versions_and_prereleases_are_compared_exactly(tmp_path):
    requires = {"a==1": ["Requires-Dist: torch==2.6.0", "Requires-Dist: b>=1"]}
    assert metadata_findings(tmp_path, ["a==1", "torch==2.6.0+cu124", "b==2.0rc1"], requires) == []


def test_missing_package_is_reported_unless_set_is_partial(tmp_path):
    requires = {"a==1": ["Requires-Dist: b"]}
    (finding,) = metadata_findings(tmp_path, ["a==1"], requires)
    assert "b is not in this package set" in finding.message
    assert metadata_findings(tmp_path / "partial", ["a==1"], requires, partial=True) == []


def test_requirement_markers_are_evaluated_for_the_target(tmp_path):
    requires = {
        "a==1": [
            'Requires-Dist: windows-only; sys_platform == "win32"',
            'Requires-Dist: older; python_version < "3.11"',
            'Requires-Dist: arm; platform_machine == "aarch64"',
        ]
    }
    assert metadata_findings(tmp_path, ["a==1"], requires) == []
    assert len(metadata_findings(tmp_path / "old", ["a==1"], requires, python="3.10")) == 1


def test_requirements_of_an_extra_apply_if_another_package_requires_the_extra(tmp_path):
    requires = {
        "a==1": ["Requires-Dist: b[fast]"],
        "b==1": ['Requires-Dist: c; extra == "fast"', 'Requires-Dist: d; extra == "slow"'],
    }
    (finding,) = metadata_findings(tmp_path, ["a==1", "b==1"], requires)
    assert finding.message == 'b 1 requires c; extra == "fast", but c is not in this package set'


def test_package_that_excludes_the_python_of_the_base_is_an_error(tmp_path):
    (finding,) = metadata_findings(tmp_path, ["a==1"], {"a==1": ["Requires-Python: >=3.12"]})
    assert finding.message == "a 1 requires Python >=3.12, but this package set has 3.11"
    assert finding.where == "a 1 a-1.dist-info/METADATA:4"


def test_invalid_requirement_specifier_is_ignored(tmp_path):
    assert metadata_findings(tmp_path, ["a==1"], {"a==1": ["Requires-Python: >=3.6.*"]}) == []


@pytest.mark.parametrize(("glibc", "fits"), [("2.36", True), ("2.17", False)])
def test_wheel_that_requires_a_newer_glibc_is_an_error(tmp_path, glibc, fits):
    package_set = audited.package_set(tmp_path, {"a==1": {}}, glibc=glibc)
    name = "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"
    library_wheel = package_set.wheels["a"]
    library_wheel.wheel = audited.with_changes(library_wheel.wheel, file=name)
    assert audited.finding_subjects(metadata.check_metadata(package_set)) == (
        [] if fits else [name]
    )


def test_learned_constraints_are_checked(tmp_path):
    learned = Constraint(
        package="a", versions=">=1", needs="b>=2", file="a/x.py", line=7, name="b.new"
    )
    (finding,) = metadata_findings(tmp_path, ["a==1", "b==1.9"], constraints=[learned])
    assert finding.where == "a 1 a/x.py:7"
    assert finding.evidence.spec == ">=2"
    assert metadata_findings(tmp_path / "new", ["a==1", "b==2.0"], constraints=[learned]) == []


def test_version_outside_the_range_of_an_extra_is_a_warning(tmp_path):
    requires = {
        "a==1": [
            'Requires-Dist: b<2,>=1; extra == "b"',
            'Requires-Dist: c<2; extra == "test"',
            'Requires-Dist: d; extra == "d"',
        ]
    }
    (finding,) = metadata_findings(tmp_path, ["a==1", "b==3", "c==3", "d==3"], requires)
    assert finding.severity is Severity.WARNING
    assert finding.message == "a 1 supports b<2,>=1 according to its extra b, but b is 3"
    assert metadata_findings(tmp_path / "fits", ["a==1", "b==1.5"], requires) == []


RAY = {
    "ray==2.48": [
        "Provides-Extra: default",
        "Provides-Extra: all_of_it",
        'Requires-Dist: aiohttp>=3.7; extra == "default"',
        'Requires-Dist: grpcio; extra == "all-of-it"',
        'Requires-Dist: ray[default]; extra == "all-of-it"',
        "Requires-Dist: click",
    ]
}


@pytest.mark.parametrize("partial", [False, True])
def test_requirements_of_requested_extra_must_be_present(tmp_path, partial):
    packages = ["ray==2.48", "click==8"]
    assert metadata_findings(tmp_path, packages, RAY, partial=partial) == []
    extras = {"ray": ("default",)}
    (finding,) = metadata_findings(
        tmp_path / "absent", packages, RAY, extras=extras, partial=partial
    )
    assert finding.severity is Severity.ERROR
    assert "aiohttp is not in this package set" in finding.message
    assert finding.evidence.relation is ConflictRelation.REQUIREMENT
    assert finding.where.startswith("ray 2.48 ray-2.48.dist-info/METADATA:")
    (finding,) = metadata_findings(
        tmp_path / "old", [*packages, "aiohttp==3.0"], RAY, extras=extras, partial=partial
    )
    assert "aiohttp is 3.0" in finding.message
    whole = [*packages, "aiohttp==3.9"]
    assert metadata_findings(tmp_path / "whole", whole, RAY, extras=extras, partial=partial) == []


def test_missing_requirements_are_not_reported_for_a_partial_package_set(tmp_path):
    packages = ["ray==2.48", "aiohttp==3.9"]
    assert (
        metadata_findings(tmp_path, packages, RAY, extras={"ray": ("default",)}, partial=True) == []
    )


def test_extra_includes_requirements_of_another_extra(tmp_path):
    messages = [
        finding.message
        for finding in metadata_findings(
            tmp_path, ["ray==2.48", "click==8"], RAY, extras={"ray": ("all-of-it",)}, partial=True
        )
    ]
    assert len(messages) == 2
    assert any("aiohttp" in message for message in messages)
    assert any("grpcio" in message for message in messages)


def test_unknown_extra_is_reported_with_the_available_extras(tmp_path):
    (finding,) = metadata_findings(
        tmp_path, ["ray==2.48"], RAY, extras={"ray": ("absent",)}, partial=True
    )
    assert finding.severity is Severity.WARNING
    assert finding.message == "ray 2.48 has no extra absent, so it is ignored"
    assert finding.remedy == "its extras: all-of-it, default"
