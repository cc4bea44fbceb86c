"""Tests the content of a lock, reading it back, and detecting a stale lock."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from imgbuild import codec
from imgbuild.errors import InputError, LockStale
from imgbuild.lock import lock_file
from imgbuild.matrix.model import RequiredPackage, Variable
from imgbuild.values import Arch
from tests.support import samples
from tests.support.rows import each_row


def test_lock_is_read_back_unchanged(tmp_path):
    small_lock = samples.lock(samples.wheel("trl"))
    path = lock_file.lock_path(tmp_path, "small")
    codec.write_document(path, small_lock)
    assert lock_file.read_lock(tmp_path, "small") == small_lock
    assert codec.encode(lock_file.read_lock(tmp_path, "small")) == path.read_bytes()


def test_locked_versions_are_read_from_a_complete_lock_only(tmp_path):
    assert lock_file.locked_versions(tmp_path, "small") == {}
    small_lock = samples.lock(samples.wheel("trl"), samples.wheel("torch", "2.6.0"))
    path = lock_file.lock_path(tmp_path, "small")
    codec.write_document(path, small_lock)
    versions = {arch: locked.versions for arch, locked in small_lock.arch.items()}
    assert lock_file.locked_versions(tmp_path, "small") == versions
    codec.write_document(path, {"format": 99, "unheard": "of"})
    with pytest.raises(LockStale, match="lock format 99"):
        lock_file.locked_versions(tmp_path, "small")
    codec.write_document(lock_file.lock_path(tmp_path, "large"), small_lock)
    with pytest.raises(InputError, match="is the lock of another target"):
        lock_file.locked_versions(tmp_path, "large")


def test_lock_has_one_line_per_wheel():
    lines = codec.encode(samples.lock(samples.wheel("trl"))).decode().splitlines()
    assert sum('"package": "trl"' in line and '"sha256"' in line for line in lines) == 1


def test_lock_contains_no_urls():
    assert b"://" not in codec.encode(samples.lock())


def test_error_for_a_missing_lock_has_a_remedy(tmp_path):
    with pytest.raises(LockStale) as caught:
        lock_file.read_lock(tmp_path, "small")
    assert caught.value.hint == "create it with: imgbuild lock small"


def test_lock_in_another_format_is_refused_before_it_is_decoded(tmp_path):
    path = lock_file.lock_path(tmp_path, "small")
    codec.write_document(path, {"format": 99, "unheard": "of"})
    with pytest.raises(LockStale, match="lock format 99"):
        lock_file.read_lock(tmp_path, "small")


def test_lock_of_another_target_is_refused(tmp_path):
    path = lock_file.lock_path(tmp_path, "large")
    codec.write_document(path, samples.lock())
    with pytest.raises(InputError, match="is the lock of another target") as caught:
        lock_file.read_lock(tmp_path, "large")
    (problem,) = caught.value.problems
    assert (problem.file, problem.value, problem.expected) == (str(path), "small", "large")


def test_error_for_a_damaged_lock_names_the_file(tmp_path):
    path = lock_file.lock_path(tmp_path, "small")
    damages: tuple[object, ...] = ({"format": 1, "target": 5}, {"format": "one"}, [])
    for damage in damages:
        codec.write_document(path, damage)
        with pytest.raises(InputError, match=r"lock\.json is not a valid lock$") as caught:
            lock_file.read_lock(tmp_path, "small")
        assert "_Versioned" not in str(caught.value.problems[0])
        remedy = "restore it from git, or create it again with: imgbuild lock small"
        assert caught.value.hint == remedy


def test_new_lock_matches_its_matrix():
    assert lock_file.matrix_differences(samples.lock(), samples.matrix()) == ()


@each_row(
    ("changes", "word"),
    [
        ({"pins": {"torch": "2.7.0"}}, "torch 2.6.0 is locked, but torch==2.7.0 is required"),
        ({"pins": {"torch": "2.6.0", "trl": "1.0"}}, "trl==1.0 is not locked"),
        ({"as_of": datetime.date(2025, 7, 1)}, "as_of"),
        ({"cuda": "12.6"}, "cuda"),
        ({"arch": (Arch.X86_64, Arch.ARM64)}, "arch: the matrix has arm64, x86_64"),
        ({"env": {"A": Variable(value="b", reason=samples.REASON)}}, "settings"),
        (
            {"requires": {"pip": RequiredPackage(spec=">=25", reason=samples.REASON)}},
            "pip 1.0 is locked",
        ),
    ],
)
def test_changed_matrix_is_detected_without_resolving(changes, word):
    reasons = lock_file.matrix_differences(samples.lock(), samples.matrix(**changes))
    assert any(word in reason for reason in reasons), reasons


def test_reason_for_a_stale_lock_names_the_changed_keys():
    small_lock = samples.lock(of=samples.matrix(labels={"x": "1", "y": "1"}))
    changed_matrix = samples.matrix(
        env={"FOO": Variable(value="a", reason=samples.REASON)}, labels={"y": "2"}
    )
    assert set(lock_file.matrix_differences(small_lock, changed_matrix)) == {
        "settings.env.FOO: exists only in the matrix",
        "settings.labels.x: exists only in the lock",
        'settings.labels.y: the matrix has "2", but the lock has "1"',
    }


def test_missing_debian_package_is_detected():
    small_lock = samples.lock()
    less = msgspec.structs.replace(small_lock.arch[Arch.X86_64], debs=(samples.deb("bash"),))
    reasons = lock_file.matrix_differences(
        msgspec.structs.replace(small_lock, arch={Arch.X86_64: less}), samples.matrix()
    )
    assert reasons == ("x86_64: Debian package python3 is not locked",)


def test_target_removed_from_the_matrix_is_detected():
    small_lock = msgspec.structs.replace(samples.lock(), target="gone")
    assert lock_file.matrix_differences(small_lock, samples.matrix()) == (
        "the matrix has no target gone",
    )


def test_target_settings_override_image_settings():
    target = samples.matrix(
        env={"PATH": Variable(value="/own", reason=samples.REASON)}, labels={"own": "1"}
    )
    settings = samples.lock(of=target).settings
    assert settings.env["PATH"] == "/own"
    assert settings.labels["own"] == "1"
    assert settings.labels["dev.imgbuild.gpu"] == "9.0"


def test_lock_with_tools_and_user_packages_is_read_back_unchanged(tmp_path):
    lock = samples.lock_with_tools(samples.wheel("trl"))
    codec.write_document(lock_file.lock_path(tmp_path, "small"), lock)
    assert lock_file.read_lock(tmp_path, "small") == lock
    assert (lock.base.tools, lock.settings.user_packages) == (("htop",), True)


def test_added_tool_makes_the_lock_stale_but_readme_text_does_not():
    lock, matrix = samples.lock_with_tools(), samples.matrix_with_tools("htop")
    settings = msgspec.structs.replace(lock.settings, readme="# an earlier text\n")
    lock = msgspec.structs.replace(lock, settings=settings)
    assert lock_file.matrix_differences(lock, matrix) == ()
    reasons = lock_file.matrix_differences(lock, samples.matrix_with_tools("htop", "jq"))
    assert "x86_64: Debian package jq is not locked" in reasons
    assert any(
        "settings.user_packages" in reason
        for reason in lock_file.matrix_differences(lock, samples.matrix())
    )
