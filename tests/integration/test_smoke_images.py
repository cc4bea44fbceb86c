"""Tests that smoke tests run in root folders, as root and as an ordinary user, and in engines."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.container import engine, run_in_image
from imgbuild.container.root_folder import root_folder
from imgbuild.lock.lock_file import Lock
from imgbuild.oci.layout import Layout
from imgbuild.report import Report, has_passed
from imgbuild.smoke import result, runner, sif
from imgbuild.system.files import remove_tree
from imgbuild.values import Arch
from tests.support import needs, ordinary, smoke_environment
from tests.support.inprocess_project import Command

pytestmark = pytest.mark.engine
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="place")
def _place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="imgbuild-smoke-"))
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


@pytest.fixture(scope="module", name="wheels")
def _wheels(place: Path) -> list[Path]:
    (place / "wheels").mkdir()
    return smoke_environment.good_wheels(place / "wheels")


@pytest.fixture(scope="module", name="built")
def _built(place: Path, wheels: list[Path]) -> Layout:
    return smoke_environment.make_layout(place, wheels)


def check(report: Report) -> None:
    """Check that all cases pass, or are skipped because the image lacks their packages."""
    outcomes = {case.name: case.outcome for case in report.cases}
    assert outcomes == {
        "system": "passed",
        "versions": "passed",
        "requirements": "passed",
        "files": "passed",
        "compiler": "skipped",
        "triton launcher": "skipped",
        "nvcc": "skipped",
        "sglang kernels": "skipped",
        "sglang preload": "skipped",
        "entry points": "skipped",
        "import alpha": "passed",
        "import beta": "passed",
        "import pip": "passed",
        "imports": "passed",
    }, report.cases
    messages = {case.name: case.message for case in report.cases}
    assert messages["compiler"] == "the lock has no gcc"
    assert messages["entry points"].endswith("has none of the packages in entry_points.json")
    assert f"user id {smoke_environment.USER.uid}," in messages["system"]
    assert (report.target, report.arch, report.tier) == ("small", Arch.X86_64, "static")


def _test_image(lock: Lock, store: Store) -> runner.ImageUnderTest:
    return runner.ImageUnderTest(lock=lock, arch=Arch.X86_64, store=store)


def test_smoke_tests_in_a_root_folder_need_no_container_engine(built, wheels, tmp_path):
    needs.user_namespaces()
    lock = smoke_environment.make_lock_of(wheels)
    store = Store.open(tmp_path)
    [report] = runner.run_tiers(_test_image(lock, store), built, ["static"], through="root")
    check(report)


@pytest.mark.long
def test_tier_without_test_cases_is_not_a_failure(built, wheels, tmp_path, monkeypatch, capsys):
    needs.user_namespaces()
    lock = tmp_path / "lock.json"
    codec.write_document(lock, smoke_environment.make_lock_of(wheels))
    imgbuild = Command(monkeypatch, capsys)
    words = ("smoke", str(built.path), "--lock", str(lock), "--through", "root", "--tier")
    done = imgbuild(*words, "static", "--tier", "cpu", status=0)
    assert "cpu nothing to test (0 passed, 0 failed, " in done.stdout.splitlines()[-1]
    assert imgbuild(*words, "cpu").status == 1


@pytest.mark.long  # test_run_command.py runs as an ordinary user
def test_smoke_tests_in_a_root_folder_need_no_root_privileges(built, wheels, place):
    needs.require_root()  # to become nobody
    needs.user_namespaces()
    nobody = pwd.getpwnam("nobody")
    cache = place / "cache"
    cache.mkdir()
    readable = [shutil.copy(wheel, cache) for wheel in wheels]  # that of pip may be in root's home
    os.chown(cache, nobody.pw_uid, nobody.pw_gid)
    script = f"""
import os, sys
from pathlib import Path
from imgbuild import codec
from imgbuild.smoke import runner as smoke
from imgbuild.oci import layout
from imgbuild.cache.store import Store
from imgbuild.values import Arch
from tests.support import smoke_environment
assert os.geteuid() != 0
lock = smoke_environment.make_lock_of([Path(path) for path in sys.argv[1:]])
built = layout.read_layout(Path({str(built.path)!r}))
store = Store.open(Path({str(cache)!r}))
test_image = smoke.ImageUnderTest(lock=lock, arch=Arch.X86_64, store=store)
[report] = smoke.run_tiers(test_image, built, ["static"], through="root")
sys.stdout.buffer.write(codec.encode(report))
"""
    done = subprocess.run(
        [*ordinary.as_nobody(), ordinary.nobody_python(place), "-B", "-c", script, *readable],
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


@pytest.mark.long  # test_smoke.py damages an environment
def test_smoke_tests_run_in_a_given_root_folder(built, wheels, tmp_path):
    needs.user_namespaces()
    store = Store.open(tmp_path)
    lock = smoke_environment.make_lock_of(wheels)
    settings = run_in_image.command_config(built, Arch.X86_64)
    with root_folder(built, Arch.X86_64, store) as root:
        shutil.rmtree(root.path / "opt/venv/lib/python3.11/site-packages/alpha")
        report = runner.smoke_root(_test_image(lock, store), root, settings, "static")
    failed = {case.name: case.message for case in report.cases if case.outcome == "failed"}
    assert "alpha/__init__.py: No such file" in failed["files"]
    assert "ModuleNotFoundError: No module named 'alpha'" in failed["import alpha"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_smoke_tests_run_in_container(kind, built, wheels, tmp_path):
    ask: Callable[[], str] = getattr(needs, f"require_{kind}")
    ask()
    container_engine = engine.require_engine(kind)
    before = _containers(container_engine)
    lock = smoke_environment.make_lock_of(wheels)
    store = Store.open(tmp_path)
    try:
        [report] = runner.run_tiers(_test_image(lock, store), built, ["static"], through=kind)
    finally:
        engine.remove_image(container_engine, "small:latest")
    check(report)
    assert _containers(container_engine) == before


@pytest.mark.parametrize(
    "kind", ["docker", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("podman", "root"))]
)
def test_smoke_tests_run_as_arbitrary_user_on_read_only_root(kind, built, wheels, tmp_path):
    ask: Callable[[], object] = (
        needs.user_namespaces if kind == "root" else getattr(needs, f"require_{kind}")
    )
    ask()
    lock = smoke_environment.make_lock_of(wheels)
    store = Store.open(tmp_path)
    try:
        [report] = runner.run_tiers(
            _test_image(lock, store), built, ["static"], through=kind, arbitrary_user=True
        )
    finally:
        if kind != "root":
            engine.remove_image(engine.require_engine(kind), "small:latest")
    assert not {case.name for case in report.cases if case.outcome == "failed"}, report.cases
    [system] = [case for case in report.cases if case.name == "system"]
    assert "the root is read-only" in system.log
    assert f"user id {runner.ARBITRARY_USER[0]}," in system.message


@pytest.mark.apptainer
def test_smoke_tests_run_in_a_read_only_sif_as_an_unknown_user(built, wheels, tmp_path):
    needs.require_apptainer()
    lock = smoke_environment.make_lock_of(wheels)
    store = Store.open(tmp_path)
    how = result.RunSettings(timeout_factor=10)
    [report, none] = sif.smoke_sif(_test_image(lock, store), built, ["static", "gpu"], how=how)
    assert not {case.name for case in report.cases if case.outcome == "failed"}, report.cases
    [system] = [case for case in report.cases if case.name == "system"]
    assert system.outcome == "passed"
    assert "the root is read-only" in system.log
    if os.geteuid() == 0:
        assert f"user id {runner.ARBITRARY_USER[0]}," in system.message
    assert not has_passed(none.cases)  # there is no GPU, or no case of the image needs one


def _containers(container_engine: engine.Engine) -> set[str]:
    done = subprocess.run(
        container_engine.command("ps", "-aq"), capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.long
def test_smoke_tests_run_in_active_environment(wheels, tmp_path, monkeypatch):
    smoke_environment.make_venv(tmp_path / "venv", wheels)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    lock = smoke_environment.make_lock_of(wheels)
    store = Store.open(tmp_path / "cache")
    [report] = runner.run_tiers_here(_test_image(lock, store), ["static"])
    outcomes = {case.name: case.outcome for case in report.cases}
    assert outcomes["versions"] == "passed", report.cases
    assert outcomes["import alpha"] == "passed"
    [report] = runner.run_tiers_here(_test_image(lock, store), ["gpu"])
    assert not has_passed(report.cases) or report.cases[0].outcome == "passed"
