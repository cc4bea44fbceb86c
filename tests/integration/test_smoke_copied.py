"""`imgbuild smoke` on a machine with a copied folder: no network, no checkout, no home."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.oci import layout as layouts
from imgbuild.values import Arch
from tests.support import needs, smoke_environment

ROOT = Path(__file__).parents[2]
PACKAGED = ("builder", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")
UV = Path(sys.prefix) / "bin/uv"
pytestmark = [pytest.mark.engine, pytest.mark.network]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copied files: `wheels` of imgbuild and its dependencies, a layout and its lock."""
    needs.root()
    needs.user_namespaces()
    base = tmp_path_factory.mktemp("copied")
    base.chmod(0o755)  # the smoke tests' user enters it
    folder, source = base / "folder", base / "source"
    folder.mkdir()
    source.mkdir()
    for name in PACKAGED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    constraints = ROOT / "tools/constraints.txt"
    words = ["wheel", "--constraint", constraints, "--wheel-dir", folder / "wheels", source]
    subprocess.run([*pip, *map(str, words)], check=True)
    (base / "made").mkdir()
    wheels = smoke_environment.good(base / "made")
    smoke_environment.make_layout(base, wheels).path.rename(folder / "layout")
    codec.write(folder / "lock.json", smoke_environment.make_lock_of(wheels))
    shutil.rmtree(source)
    return folder


def offline(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run `command` in `folder` without a network or variables, with an empty home."""
    env = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={folder.parent / 'home'}"]
    words = [*env, "unshare", "--net", *map(str, command)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


CASES = {"system", "versions", "requirements", "files", "imports"}
SMOKE = ("env/bin/imgbuild", "smoke", "--through", "root", "--tier", "static", "--json")


def test_layout_is_tested_with_copied_tests(folder):
    completed = offline(folder, UV, "venv", "--python", sys.executable, "env")
    assert completed.returncode == 0, completed.stderr
    install = (UV, "pip", "install", "--python", "env", "--no-index")
    done = offline(folder, *install, "--find-links", "wheels", "imgbuild")
    assert done.returncode == 0, done.stderr
    words = ("layout", "--lock", "lock.json", "--case", "|".join(sorted(CASES)))
    done = offline(folder, *SMOKE, *words)
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert {case["name"] for case in report["cases"] if case["outcome"] == "passed"} >= CASES
    assert (report["target"], report["through"]) == ("small", "root")
    assert report["config"] == layouts.read(folder / "layout").image(Arch.X86_64).config.digest

    refused = offline(folder, *SMOKE, "layout")
    assert refused.returncode == 2
    assert "cannot read the lock layout/lock.json" in json.loads(refused.stdout)["message"]
    shutil.copy(folder / "lock.json", folder / "layout")
    done = offline(folder, *SMOKE, "layout", "--case", "versions")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lock", "lock.json"), "--lock is for one image; given: none"),
        (("a", "b", "--lock", "lock.json"), "--lock is for one image; given: a, b"),
        (("layout", "--lock", "lock.json", "--record"), "--record needs the project of the image"),
    ],
)
def test_copied_tests_require_matching_lock(folder, words, message):
    command = [sys.executable, "-m", "imgbuild", "smoke", *words, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in json.loads(done.stdout)["message"]
