"""Tests which of two packages with the same module keeps its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.lock import extension, same_files
from imgbuild.lock.lock_file import Lock
from imgbuild.plan.plan import omitted_paths
from imgbuild.values import Arch
from tests.support import extended, samples
from tests.support.rows import each_row

PLAIN, HEADLESS, CONTRIB = "opencv-python", "opencv-python-headless", "opencv-contrib-python"
CV2 = ("lib/python*/site-packages/cv2/*",)


def lock_of(folder: Path, *packages: str) -> Lock:
    matrix = extended.read_extended(extended.create_repository(folder))
    wheels = [samples.wheel(name, "4.11.0") for name in packages]
    return extension.make_lock(
        matrix, extended.OWN_TARGET, extended.resolve_additions(matrix, *wheels)
    )


@each_row(
    ("packages", "left_out"),
    [
        ((PLAIN,), []),
        ((PLAIN, HEADLESS), [PLAIN]),
        ((PLAIN, HEADLESS, CONTRIB), [PLAIN, HEADLESS]),
        (("onnxruntime", "onnxruntime-gpu"), ["onnxruntime"]),
    ],
)
def test_preferred_package_keeps_its_locked_files(
    tmp_path: Path, packages: tuple[str, ...], left_out: list[str]
) -> None:
    lock = lock_of(tmp_path, *packages)
    patterns = omitted_paths(lock.drop, lock.arch[Arch.X86_64].wheels)
    assert sorted(name for name in packages if name in patterns) == sorted(left_out)
    if PLAIN in left_out:
        assert patterns[PLAIN] == CV2
    assert same_files.duplicate_file_drops(lock) == lock.drop[len(lock.drop) - len(left_out) :]


def test_extension_keeps_the_files_of_a_published_package(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, PLAIN, HEADLESS)
    assert lock.extends is not None
    below = {
        arch: msgspec.structs.replace(each, wheels=(HEADLESS,))
        for arch, each in lock.extends.arch.items()
    }
    extends = msgspec.structs.replace(lock.extends, arch=below)
    (drop,) = same_files.duplicate_file_drops(msgspec.structs.replace(lock, extends=extends))
    assert (drop.package, drop.beside) == (HEADLESS, PLAIN)
