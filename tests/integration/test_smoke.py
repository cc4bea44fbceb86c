"""Smoke tests really run: on small worlds that are sound or broken in one way, and in images."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from imgbuild import codec, engine, runner, smoke
from imgbuild.oci.layout import Layout
from imgbuild.oci.tree import remove
from imgbuild.report import Case, Report
from imgbuild.store import Store
from imgbuild.values import Arch
from tests import needs, smallworld

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "smoke_tests"
NOTHING: Mapping[str, list[Any]] = {"imports": [], "entry points": [], "requirements": []}


class World:
    """A virtual environment, what is expected of it, and the tests run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "wheels").mkdir()
        self.wheels = smallworld.good(folder / "wheels")
        self.expect: dict[str, Any] = {
            "format": smoke.FORMAT,
            "target": "small",
            "arch": "x86_64",
            "prefix": str(folder / "venv"),
            "cache": str(folder / "cache"),
            "workdir": str(folder / "work"),
            "debian": [],
        }
        self.allowed: dict[str, Any] = dict(NOTHING)
        self.site = smallworld.make_venv(folder / "venv", self.wheels)
        self.expect["packages"] = smallworld.versions(self.wheels)

    def add(self, name: str, files: Mapping[str, bytes], *, locked: bool = True) -> None:
        """Install one more wheel."""
        wheel = smallworld.make_wheel(self.folder / "wheels", name, "1.0", files)
        smallworld.make_venv(self.folder / "venv", [wheel])
        if locked:
            self.expect["packages"][name] = "1.0"

    def run(self, only: str, *, tier: str = "static", patience: float = 1) -> dict[str, Case]:
        """Run cases on it, by the environment's own Python."""
        (self.folder / "expect.json").write_text(json.dumps(self.expect))
        (self.folder / "allowed.json").write_text(json.dumps(self.allowed))
        done = subprocess.run(
            [
                *(self.folder / "venv/bin/python", SCRIPTS / "run.py", "--json", "--tier", tier),
                *("--expect", self.folder / "expect.json", "--only", only),
                *("--allowed", self.folder / "allowed.json", "--patience", str(patience)),
            ],
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        cases = json.loads(done.stdout)["cases"]
        outcomes = {case["outcome"] for case in cases}
        assert done.returncode == (0 if outcomes & {"passed"} and "failed" not in outcomes else 1)
        return {case["name"]: Case(**case) for case in cases}


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("case", ["versions", "requirements", "files", "imports"])
def test_a_sound_world_passes(world, case):
    cases = world.run(case)
    assert {item.outcome for item in cases.values()} == {"passed"}, cases


def test_all_outermost_names_are_imported(world):
    cases = world.run("imports")
    assert cases["import alpha"].message == "1 names: alpha"
    assert cases["import beta"].message == "2 names: beta, spaces.inner"
    assert cases["imports"].message == "4 names of 3 distributions"


def old(world):
    world.expect["packages"]["beta"] = "2.1"


def absent(world):
    world.expect["packages"]["gamma"] = "1.0"


def extra(world):
    world.add("gamma", {"gamma.py": b""}, locked=False)


def twice(world):
    world.add("beta", {"beta_too.py": b""})


def lost(world):
    (world.site / "alpha/data.txt").unlink()


def cut(world):
    (world.site / "alpha/data.txt").write_text("dat")


def stray(world):
    (world.site / "alpha/stray.py").write_text("")


def dangling(world):
    (world.site / "alpha/link").symlink_to("nothing")


def alone(world):
    world.expect["packages"].pop("beta")
    for path in (world.site / "beta-2.0.dist-info").iterdir():
        path.unlink()
    (world.site / "beta-2.0.dist-info").rmdir()


def raising(world):
    world.add("gamma", {"gamma/__init__.py": b"from alpha import NOTHING\n"})


def crashing(world):
    world.add("gamma", {"gamma.py": b"import os\nos.abort()\n", "later.py": b""})


def hanging(world):
    world.add("gamma", {"gamma.py": b"import time\ntime.sleep(600)\n"})


def leaving(world):
    world.add("gamma", {"gamma.py": b"import os\nos._exit(0)\n"})


@pytest.mark.parametrize(
    ("case", "break_it", "words"),
    [
        ("versions", old, "beta 2.1 is locked, 2.0 is installed"),
        ("versions", absent, "gamma 1.0 is locked and not installed"),
        ("versions", extra, "gamma 1.0 in"),
        ("versions", twice, "beta is installed 2 times"),
        ("requirements", alone, "alpha 1.0 requires beta, which is not installed."),
        ("files", lost, "alpha/data.txt: No such file"),
        ("files", cut, "alpha/data.txt: 3 bytes, RECORD says 4"),
        ("files", stray, "alpha/stray.py: in no RECORD"),
        ("files", dangling, "alpha/link: a link to nothing"),
    ],
)
def test_a_broken_world_fails_and_says_why(world, case, break_it, words):
    break_it(world)
    found = world.run(case)[case]
    assert found.outcome == "failed"
    assert words in found.message


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (raising, "gamma: ImportError: cannot import name 'NOTHING' from 'alpha'"),
        (crashing, "gamma: ended with status -6: Fatal Python error: Aborted"),
        (hanging, "gamma: not done after 3 s"),
        (leaving, "gamma: ended with status 0"),
    ],
)
def test_an_import_that_fails_is_located(world, break_it, words):
    break_it(world)
    cases = world.run("imports", patience=0.01 if break_it is hanging else 1)
    assert cases["import gamma"].outcome == "failed"
    assert words in cases["import gamma"].message
    assert cases["import alpha"].outcome == "passed"
    assert cases["imports"].outcome == "failed"
    assert cases["imports"].message == "error: gamma does not import"


def test_a_crash_does_not_hide_the_next_name(world):
    world.add("gamma", {"first.py": b"import os\nos.abort()\n", "second.py": b"1 / 0\n"})
    message = world.run("imports")["import gamma"].message
    assert "first: ended with status -6" in message
    assert "second: ZeroDivisionError: division by zero (second.py:1)" in message


ENTRY = {"package": "gamma", "name": "gamma", "reason": "a reason that is long enough"}


def test_an_accepted_failure_is_a_skip_and_never_a_pass(world):
    raising(world)
    world.allowed["imports"] = [{**ENTRY, "error": "cannot import name 'NOTHING'"}]
    cases = world.run("imports")
    assert cases["import gamma: gamma"].outcome == "skipped"
    assert "cannot import name 'NOTHING'" in cases["import gamma: gamma"].message
    assert ENTRY["reason"] in cases["import gamma: gamma"].message
    assert cases["import gamma"].outcome == "skipped"
    assert cases["imports"].outcome == "passed"


@pytest.mark.parametrize("versions", [None, ["1.0"]])
def test_an_entry_that_accepts_nothing_is_a_failure(world, versions):
    world.add("gamma", {"gamma.py": b""})
    bounded = {"versions": versions} if versions else {}
    world.allowed["imports"] = [{**ENTRY, **bounded, "error": "cannot import"}]
    cases = world.run("imports")
    assert "nothing fails so any more" in cases["import gamma"].message
    assert cases["imports"].outcome == "failed"


def test_an_entry_for_another_version_is_not_used(world):
    raising(world)
    world.allowed["imports"] = [{**ENTRY, "versions": ["0.9"], "error": "cannot import name"}]
    assert world.run("imports")["import gamma"].outcome == "failed"


def test_a_waived_requirement_must_still_be_broken(world):
    line = "alpha 1.0 requires beta, which is not installed."
    world.allowed["requirements"] = [{"package": "alpha", "error": line, "reason": "as above"}]
    idle = world.run("requirements")["requirements"]
    assert idle.outcome == "failed"
    assert "pip no longer says it" in idle.message
    alone(world)
    assert world.run("requirements")["requirements"].outcome == "passed"


def test_a_compiler_compiles_and_its_absence_is_told(world, monkeypatch):
    needs.tool("g++", "g++")
    world.expect["debian"] = ["g++"]
    assert world.run("compiler")["compiler"].outcome == "passed"
    monkeypatch.setenv("PATH", "/nonexistent")
    found = world.run("compiler")["compiler"]
    assert found.outcome == "failed"
    assert found.message.startswith("FileNotFoundError: [Errno 2] No such file or directory: 'cc'")


def test_a_driver_library_in_the_image_is_refused(world):
    library = world.folder / "venv/lib/stubs/libcuda.so"
    library.parent.mkdir()
    library.write_bytes(b"")
    found = world.run("system")["system"]
    assert found.outcome == "failed"
    assert str(library) in found.log


def test_root_is_refused(world):
    needs.root()
    assert "the user is root" in world.run("system")["system"].log


def test_what_the_lock_lacks_is_skipped_and_no_pass(world):
    found = world.run("*", tier="cpu")
    assert found["grpo step"].outcome == "skipped"
    assert found["grpo step"].message == "the lock has no trl"
    assert world.run("triton*")["triton launcher"].outcome == "skipped"


def test_a_bad_expectation_is_an_input_error(tmp_path):
    (tmp_path / "expect.json").write_text("{")
    command = [sys.executable, str(SCRIPTS / "run.py"), "--tier=cpu", "--expect"]
    done = subprocess.run(
        [*command, str(tmp_path / "expect.json")], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"expect.json" in done.stderr


# In images


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="imgbuild-smoke-"))
    folder.chmod(0o755)
    yield folder
    remove(folder)


@pytest.fixture(scope="module", name="wheels")
def _wheels(place: Path) -> list[Path]:
    (place / "wheels").mkdir()
    return smallworld.good(place / "wheels")


@pytest.fixture(scope="module", name="built")
def _built(place: Path, wheels: list[Path]) -> Layout:
    return smallworld.make_layout(place, wheels)


def check(report: Report) -> None:
    """Everything passes but what needs the compiler, and packages that this image has not."""
    outcomes = {case.name: case.outcome for case in report.cases}
    assert outcomes == {
        "system": "passed",
        "versions": "passed",
        "requirements": "passed",
        "files": "passed",
        "compiler": "failed",
        "triton launcher": "skipped",
        "entry points": "failed",
        "import alpha": "passed",
        "import beta": "passed",
        "import pip": "passed",
        "imports": "passed",
    }, report.cases
    said = {case.name: case.message for case in report.cases}
    assert said["compiler"].startswith("FileNotFoundError")
    assert said["entry points"].endswith("has none of the packages that entry_points.json names")
    assert f"user id {smallworld.USER.uid}," in said["system"]
    assert (report.target, report.arch, report.tier) == ("small", Arch.X86_64, "static")


@pytest.mark.engine
def test_a_root_folder_needs_no_engine(built, wheels, tmp_path):
    needs.user_namespaces()
    lock = smallworld.make_lock_of(wheels)
    store = Store.open(tmp_path)
    [report] = smoke.smoke(lock, built, Arch.X86_64, ["static"], through="root", store=store)
    check(report)


@pytest.mark.engine
def test_a_root_folder_needs_no_root(built, wheels, place):
    needs.root()  # to become nobody
    needs.user_namespaces()
    nobody = pwd.getpwnam("nobody")
    cache = place / "cache"
    cache.mkdir()
    os.chown(cache, nobody.pw_uid, nobody.pw_gid)
    script = f"""
import os, sys
from pathlib import Path
from imgbuild import codec, smoke
from imgbuild.oci import layout
from imgbuild.store import Store
from imgbuild.values import Arch
from tests import smallworld
assert os.geteuid() != 0
lock = smallworld.make_lock_of([Path(path) for path in sys.argv[1:]])
built = layout.read(Path({str(built.path)!r}))
store = Store.open(Path({str(cache)!r}))
[report] = smoke.smoke(lock, built, Arch.X86_64, ["static"], through="root", store=store)
sys.stdout.buffer.write(codec.encode(report))
"""
    setpriv = needs.tool("setpriv", "util-linux")
    become = [setpriv, "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    done = subprocess.run(
        [*become, sys.executable, "-B", "-c", script, *wheels],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{REPOSITORY / 'builder'}:{REPOSITORY}",
            "HOME": str(cache),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(codec.decode(done.stdout.encode(), Report, file="report"))


@pytest.mark.engine
def test_a_root_folder_that_is_there_is_used(built, wheels, tmp_path):
    needs.user_namespaces()
    store = Store.open(tmp_path)
    lock = smallworld.make_lock_of(wheels)
    settings = runner.running(built, Arch.X86_64)
    with runner.root_folder(built, Arch.X86_64, store) as root:
        shutil.rmtree(root / "opt/venv/lib/python3.11/site-packages/alpha")
        report = smoke.smoke_root(lock, root, Arch.X86_64, "static", settings=settings, store=store)
    failed = {case.name: case.message for case in report.cases if case.outcome == "failed"}
    assert "alpha/__init__.py: No such file" in failed["files"]
    assert "ModuleNotFoundError: No module named 'alpha'" in failed["import alpha"]


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_an_engine_runs_them_in_a_container(kind, built, wheels, tmp_path):
    ask: Callable[[], str] = getattr(needs, kind)
    ask()
    found = engine.require(kind)
    before = _containers(found)
    lock = smallworld.make_lock_of(wheels)
    store = Store.open(tmp_path)
    try:
        [report] = smoke.smoke(lock, built, Arch.X86_64, ["static"], through=kind, store=store)
    finally:
        engine.remove(found, "small:latest")
    check(report)
    assert _containers(found) == before


def _containers(found: engine.Engine) -> set[str]:
    done = subprocess.run(found.command("ps", "-aq"), capture_output=True, text=True, check=True)
    return set(done.stdout.split())
