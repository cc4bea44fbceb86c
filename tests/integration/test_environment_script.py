"""Tests that the environment script gives another user a private home and cache folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imgbuild.assemble import skeleton
from imgbuild.plan.plan import FilesRecipe
from tests.support import needs, samples

OTHER_UID = 4321


@pytest.fixture(name="script")
def _script(tmp_path: Path) -> Path:
    needs.require_root()
    (tmp_path / "cache").mkdir(mode=0o700)
    recipe = FilesRecipe(
        user=samples.USER, workdir="/workspace", cache=str(tmp_path / "cache"), private=True
    )
    (text,) = (
        member.content
        for member in skeleton.files_members(recipe)
        if member.path.endswith("environment.sh")
    )
    assert isinstance(text, bytes)
    (tmp_path / "environment.sh").write_bytes(text)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    (tmp_path / "environment.sh").chmod(0o644)
    return tmp_path / "environment.sh"


def moved(script: Path) -> list[str]:
    """The values of HOME and of Triton's cache folder for another user."""
    folder = script.parent
    done = subprocess.run(
        ["/bin/sh", "-c", '. "$0"; echo "$HOME"; echo "$TRITON_CACHE_DIR"', script],
        env={
            "HOME": "/", "PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "tmp"),
            "TRITON_CACHE_DIR": f"{folder}/cache/triton",
        },
        user=OTHER_UID, group=OTHER_UID, extra_groups=[],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_folders_of_another_user_have_mode_700(script: Path) -> None:
    user_folder = script.parent / f"tmp/imgbuild-{OTHER_UID}"
    home, triton = moved(script)
    assert home == str(user_folder / "home")
    assert triton == f"{home}/.cache/imgbuild/triton"
    for folder in (user_folder, user_folder / "home", user_folder / "home/.cache/imgbuild"):
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (OTHER_UID, 0o700)


def test_folder_created_by_another_user_is_not_used(script: Path) -> None:
    planted = script.parent / f"tmp/imgbuild-{OTHER_UID}"
    (planted / "home/.cache/imgbuild").mkdir(parents=True)
    for folder in (planted, *planted.rglob("*")):
        folder.chmod(0o777)
    assert not [place for place in moved(script) if place.startswith(str(planted))]
