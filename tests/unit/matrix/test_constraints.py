"""Tests the meaning, merging and encoding of learned constraints."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.learn.loop import add_constraints
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from tests.support.rows import each_row


def entry(versions=">=0.27,<=1.16.0", needs="vllm>=0.11.1", package="trl", **more):
    return Constraint(package=package, versions=versions, needs=needs, **more)


TRITON = entry("==3.2.0", "setuptools", "triton", missing=True, check="imports")


def test_constraint_is_violated_only_within_its_version_range():
    assert entry().is_violated({"trl": "1.16.0", "vllm": "0.8.5.post1"})
    assert not entry().is_violated({"trl": "0.26.2", "vllm": "0.8.5.post1"})
    assert not entry().is_violated({"trl": "1.16.0", "vllm": "0.11.1"})
    assert not entry().is_violated({"trl": "1.16.0"})  # optional, and not there
    assert not entry().is_violated({"vllm": "0.8.5.post1"})


def test_constraint_about_a_missing_package_requires_the_package():
    assert TRITON.is_violated({"triton": "3.2.0"})
    assert not TRITON.is_violated({"triton": "3.2.0", "setuptools": "80.9.0"})
    assert constraints.violated_constraints([TRITON, entry()], {"triton": "3.2.0"}) == (TRITON,)


def test_constraint_about_unused_code_adds_no_requirement():
    relu = entry("==0.19.3", "torch", "deepspeed", unused=True, file="a.py", name="torch.nn:Relu")
    versions = {"deepspeed": "0.19.3", "torch": "2.11.0"}
    assert not relu.is_violated(versions)
    assert not relu.applies_to(versions)
    assert constraints.added_requirements([relu], "deepspeed", "0.19.3", versions) == ()
    assert relu.contains_version("0.19.3")
    assert str(relu) == "deepspeed==0.19.3: no version of torch is compatible (a.py, torch.nn:Relu)"


def test_constraints_about_unused_code_are_merged_only_for_the_same_name():
    relu = entry("==1", "torch", "deepspeed", unused=True, file="a.py", name="torch.nn:Relu")
    other = entry("==1", "torch", "deepspeed", unused=True, file="a.py", name="torch.nn:Gelu")
    bound = entry("==1", "torch<3", "deepspeed")
    merged = constraints.merge_constraints([bound, relu], [other, relu])
    assert {(each.unused, each.name) for each in merged} == {
        (False, ""),
        (True, "torch.nn:Relu"),
        (True, "torch.nn:Gelu"),
    }
    text = constraints.encode_constraints(merged)
    assert constraints.parse_constraints(text, "constraints.yaml") == merged


def test_prereleases_in_constraints_are_ordered_as_in_packaging():
    five = entry("==0.8.5.post1", "transformers<5", "vllm")
    assert five.is_violated({"vllm": "0.8.5.post1", "transformers": "5.0.0rc1"})
    assert not five.is_violated({"vllm": "0.8.5.post1", "transformers": "4.57.6"})


def test_constraints_require_only_present_packages():
    entries = [entry(), TRITON, entry(needs="transformers<5")]
    assert constraints.added_requirements(entries, "trl", "1.0.0", ()) == ()
    assert constraints.added_requirements(entries, "trl", "1.0.0", {"vllm"}) == ("vllm>=0.11.1",)
    assert constraints.added_requirements(entries, "trl", "0.26.2", {"vllm"}) == ()
    assert constraints.added_requirements(entries, "triton", "3.2.0", ()) == ("setuptools",)


@each_row(
    ("first", "two", "ranges"),
    [
        (">=0.27,<=1.9.2", ">=0.27,<=1.16.0", [">=0.27,<=1.16.0"]),
        (">=0.27,<=1.9.2", ">=1.0,<=1.16.0", [">=0.27,<=1.16.0"]),
        ("==1.9.2", ">=1.9.2,<=1.16.0", [">=1.9.2,<=1.16.0"]),
        (">=0.27", "==1.16.0", [">=0.27"]),
        ("==0.8.5.post1", "==0.8.5.post1", ["==0.8.5.post1"]),
        ("<0.5", ">=0.5,<1", ["<0.5", "<1,>=0.5"]),  # they do not meet: no version is in both
        ("==1.0", "==1.2", ["==1.0", "==1.2"]),
        ("!=1.0", "==1.2", ["!=1.0"]),
        ("!=1.0", "==1.0", ["!=1.0", "==1.0"]),
        ("!=1.*", "==1.2", ["!=1.*", "==1.2"]),
    ],
)
def test_adjacent_ranges_of_constraints_are_merged(first, two, ranges):
    for pair in ((first, two), (two, first)):
        merged = constraints.merge_constraints([entry(pair[0])], [entry(pair[1])])
        assert sorted(item.versions for item in merged) in (sorted(ranges), sorted({first, two}))
        assert len(merged) == len(ranges)


def test_stricter_constraint_replaces_a_weaker_constraint():
    loose, tight = entry(needs="transformers<5"), entry(needs="transformers<4.54")
    assert constraints.merge_constraints([loose], [tight]) == (tight,)
    assert constraints.merge_constraints([tight], [loose]) == (tight,)
    excluding, bound = entry(needs="transformers!=5.1"), entry(needs="transformers<5")
    assert (
        constraints.merge_constraints([excluding], [bound])
        == constraints.merge_constraints([bound], [excluding])
        == (bound,)
    )
    other = entry(needs="transformers!=4.1")
    assert set(constraints.merge_constraints([other], [bound])) == {other, bound}
    below = entry("==0.10.0", "transformers<4.40")
    assert set(constraints.merge_constraints([tight], [below])) == {tight, below}


def test_constraints_that_together_allow_all_versions_are_not_merged():
    assert len(constraints.merge_constraints([entry("<3")], [entry(">2")])) == 2


def test_widened_constraint_replaces_the_constraints_it_covers():
    entries = [entry("==0.28.0"), entry("==1.0.0"), entry("==1.9.2")]
    (merged,) = constraints.merge_constraints(
        entries, [entry(">=0.27,<=1.16.0", file="trl/a.py", line=4)]
    )
    assert (merged.versions, merged.file) == (">=0.27,<=1.16.0", "trl/a.py")


def test_constraints_with_different_bounds_or_packages_are_not_merged():
    entries = constraints.merge_constraints(
        [entry(needs="vllm>=0.11.1")],
        [entry(needs="vllm<0.20"), entry(needs="torch<2.9"), entry(package="verl")],
    )
    assert len(entries) == 4


def test_rewritten_constraints_file_has_one_line_per_constraint(tmp_path):
    full = entry(
        check="imports",
        file="trl/generation/vllm_client.py",
        line=47,
        name="vllm.utils.network_utils",
        came="0.11.1",
        read_in="1.16.0",
        against="0.8.5.post1",
    )
    text = constraints.encode_constraints([full, TRITON]).decode()
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "version: 1",
        "constraints:",
        (
            '  - {package: triton, versions: "==3.2.0", needs: setuptools, missing: true, '
            "check: imports}"
        ),
        (
            '  - {package: trl, versions: ">=0.27,<=1.16.0", needs: "vllm>=0.11.1", '
            "check: imports, file: trl/generation/vllm_client.py, line: 47, "
            'name: vllm.utils.network_utils, came: "0.11.1", read_in: "1.16.0", '
            'against: "0.8.5.post1"}'
        ),
    ]
    assert constraints.parse_constraints(text.encode(), "x") == (TRITON, full)
    assert (
        constraints.encode_constraints(constraints.parse_constraints(text.encode(), "x")).decode()
        == text
    )


def test_missing_or_empty_constraints_file_has_no_constraints(tmp_path):
    assert constraints.read_constraints(tmp_path) == ()
    add_constraints(tmp_path, [], Store.open(tmp_path / "cache"))
    assert constraints.read_constraints(tmp_path) == ()


def test_constraint_texts_that_look_like_other_yaml_types_stay_texts():
    odd = entry(name="on", file="a b.py", check="null", needs="yes-no>=1")
    assert constraints.parse_constraints(constraints.encode_constraints([odd]), "x") == (odd,)


@each_row(
    ("row", "path", "words"),
    [
        ("{package: trl, versions: '>>1', needs: vllm<1}", "versions", "not a version specifier"),
        ("{package: trl, versions: '', needs: vllm<1}", "versions", "contains no version"),
        ("{package: trl, versions: '==1', needs: 'vllm =< 1'}", "needs", "not a requirement"),
        ("{package: trl, versions: '==1', needs: vllm}", "needs", "must not be empty"),
        (
            "{package: trl, versions: '==1', needs: 'v[x]<1'}",
            "needs",
            "only a package and a specifier",
        ),
        ("{package: My_Pkg, versions: '==1', needs: v<1}", "package", "normalized"),
        ("{package: trl, versions: '==1', needs: v<1, lin: 4}", "lin", "unknown"),
        ("{package: trl, needs: v<1}", "versions", ""),
    ],
)
def test_error_for_an_invalid_constraint_has_file_and_line(row, path, words):
    data = f"version: 1\nconstraints:\n  - {{package: a, versions: ==1, needs: b<1}}\n  - {row}\n"
    with pytest.raises(InputError) as caught:
        constraints.parse_constraints(data.encode(), "images/constraints.yaml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("images/constraints.yaml", 4)
    assert path in f"{problem.path} {problem.message}"
    assert words in problem.message


def test_invalid_types_and_constraints_are_reported_together():
    data = b"version: 1\nconstraints:\n  - {package: a, versions: ==1, needs: [b]}\n"
    data += b"  - {package: a, versions: '>>1', needs: b<1}\n"
    with pytest.raises(InputError) as caught:
        constraints.parse_constraints(data, "images/constraints.yaml")
    assert [(problem.path, problem.source) for problem in caught.value.problems] == [
        ("constraints[0].needs", "  - {package: a, versions: ==1, needs: [b]}"),
        ("constraints[1].versions", "  - {package: a, versions: '>>1', needs: b<1}"),
    ]
    assert "restore the file from git" in str(caught.value.hint)


def test_concurrent_writers_lose_no_constraints(tmp_path):
    def learn(number):
        learned = Constraint(package="a", versions=f"=={number}", needs="b<1")
        add_constraints(tmp_path / "images", [learned], Store.open(tmp_path / "cache"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(learn, range(6)))
    stored = constraints.read_constraints(tmp_path / "images")
    assert {item.versions for item in stored} == {f"=={number}" for number in range(6)}
