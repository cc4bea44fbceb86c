"""Tests that differences are reported by key, shortened, and never as two equal texts."""

from imgbuild.lock import drift
from imgbuild.matrix.model import User
from tests.support import samples


def test_equal_lock_values_have_no_differences():
    assert (
        drift.difference_lines("settings", samples.lock().settings, samples.lock().settings) == []
    )


def test_differences_between_lock_and_matrix_name_keys_and_fields():
    assert drift.difference_lines(
        "m", {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}}
    ) == [
        "m.a.c: the matrix has 2, but the lock has 3",
        "m.a.d: exists only in the lock",
    ]
    other = User(name="imgbuild", uid=1001, gid=1000, home="/home/imgbuild")
    differences = drift.difference_lines("user", samples.USER, other)
    assert differences == ["user.uid: the matrix has 1000, but the lock has 1001"]


def test_long_list_of_lock_differences_is_shortened_with_a_count():
    differences = drift.difference_lines("m", {}, {f"key{number:02}": 1 for number in range(20)})
    assert len(differences) == 8
    assert differences[-1] == "m: 13 more differences"
    assert len(drift.difference_lines("m", {}, {str(number): 1 for number in range(8)})) == 8


def test_long_texts_in_lock_differences_are_cut_around_the_difference():
    (line,) = drift.difference_lines("m", "a" * 500 + "b" + "c" * 500, "a" * 500 + "d" + "c" * 500)
    assert "aaabccc" in line
    assert "aaadccc" in line
    assert len(line) < 250
    (line,) = drift.difference_lines("m", "a" * 500, "a" * 501)
    ours, theirs = line.split(", but the lock has ")
    assert ours.count("a") != theirs.count("a")


def test_differences_between_long_lists_show_the_items():
    shared = [{"package": "p", "paths": [str(number)]} for number in range(20)]
    gone = {"package": "q", "paths": []}
    differences = drift.difference_lines("drop", shared, [*shared, gone])
    assert differences == ['drop: only the lock has {"package":"q","paths":[]}']
    assert drift.difference_lines("drop", shared, shared[::-1]) == [
        "drop: the items are the same, but their order or number differs"
    ]
    assert drift.difference_lines("cmd", ["a"], ["b"]) == [
        'cmd: the matrix has ["a"], but the lock has ["b"]'
    ]
