"""Tests that a command succeeds after a killed command or a disk error.

Each fault is tried a few times. `make bench-faults` kills a thousand commands.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild.system.files import remove_tree
from tests.support import images, memory_registry, needs, sample_project
from tests.support.memory_registry import Registry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

COUNT = int(os.environ.get("IMGBUILD_FAULTS", "0"))  # kills in all; 0: a few
SEED = int(os.environ.get("IMGBUILD_SEED", "20261124"))
LEFT = (".tmp", "partial/", "scratch/", "live/")
WORKERS = """
import time
from imgbuild.audit.packages.reading import ReaderProcesses
if __name__ == "__main__":
    pool = ReaderProcesses(2)._start_workers()
    first = [pool.submit_call(time.sleep, 0.1) for _ in range(2)]
    [each.result() for each in first]
    [pool.submit_call(time.sleep, 600) for _ in range(2)]
    print("ready", flush=True)
    time.sleep(600)
"""
VERBS = ("lock", "build", "archive", "sif", "push", "pull") if COUNT else ("build", "push", "pull")
pytestmark = pytest.mark.timeout(6 * 3600 if COUNT else 300)


@dataclass
class FaultRun:
    """A locked project with an index and a registry, and the expected results of its commands."""

    project: Project
    registry: Registry
    digest: str = ""

    def words(self, verb: str, out: Path) -> list[str]:
        """The command line of a verb that writes to `out`."""
        image = f"{self.registry.host}/me/image"
        plain = ("--plain-http", self.registry.host)
        return {
            "lock": ["lock", TARGET],
            "build": ["build", TARGET, "--output", str(out / "image")],
            "archive": ["build", TARGET, "--format", "oci-archive", "--output", f"{out}/a.tar"],
            "sif": ["build", TARGET, "--format", "sif", "--output", str(out / "a.sif")],
            "push": ["push", TARGET, image, *plain],
            "pull": ["pull", f"{image}:{TARGET}", "--output", str(out / "pulled"), *plain],
        }[verb]

    def right(self, verb: str, out: Path) -> None:
        """Check that a verb wrote the complete locked image and left no temporary files."""
        if verb in ("build", "pull"):
            assert images.verify_layout(
                out / ("image" if verb == "build" else "pulled")
            ).digest == (self.digest)
        if verb == "push":
            assert self.registry.tags["me/image", TARGET] == self.digest
        cache = self.project.cache or Path()
        for folder in (out, cache, self.project.folder):
            names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
            left = [name for name in names if name.startswith(LEFT) or ".tmp" in name]
            assert {name: (folder / name).read_bytes()[:1000] for name in left} == {}
        assert self.project.run("digest", TARGET).stdout.split()[0] == self.digest


@pytest.fixture(scope="module", name="fault_run")
def _fault_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultRun]:
    folder = tmp_path_factory.mktemp("faults")
    images.python_base(folder)
    index = sample_project.sample_index()
    index.wheel("large", "1.0", files={"large.bin": random.Random(0).randbytes(2_000_000)})
    with (
        serve_site(FileSite(files=index.site_files())) as site,
        memory_registry.serve(Registry()) as there,
    ):
        project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
        project.env["XDG_STATE_HOME"] = str(folder / "state")
        project.write(
            sample_project.registry_base(sample_project.serve_image(site, folder / "base", "base"))
        )
        matrix = project.folder / "matrix.yaml"
        row = "requires: {large: {reason: it is large}}"
        matrix.write_text(matrix.read_text().replace("requires: {}", row))
        fault_run = FaultRun(project, there)
        project.run("lock", TARGET)
        fault_run.digest = project.run("digest", TARGET).stdout.split()[0]
        for verb in ("build", "push"):
            project.run(*fault_run.words(verb, folder / "out"))
        yield fault_run


def family(session: int) -> list[int]:
    """The processes of a session that have not ended.

    A process in state Z keeps its locks as long as another of its threads is running.
    """
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            threads = len(list(path.with_name("task").iterdir()))
        except OSError:
            continue
        if int(fields[3]) == session and (fields[0] != "Z" or threads > 1):
            processes.append(int(path.parent.name))
    return processes


def killed(fault_run: FaultRun, verb: str, out: Path, seconds: float) -> bool:
    """Start a verb and kill it after `seconds`. Returns whether it was still running.

    All processes that it started also end.
    """
    with subprocess.Popen(
        fault_run.project.command(*fault_run.words(verb, out)),
        cwd=fault_run.project.folder,
        env=fault_run.project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        time.sleep(seconds)
        running = process.poll() is None
        process.send_signal(signal.SIGKILL)
    ended(process.pid)
    return running


def ended(session: int) -> None:
    """Wait for the end of all processes of a session, for ten seconds."""
    for _ in range(200):
        if not family(session):
            return
        time.sleep(0.05)
    assert not [Path(f"/proc/{number}/cmdline").read_bytes() for number in family(session)]


def emptied(fault_run: FaultRun, verb: str, out: Path, *, cold: bool) -> None:
    """Remove the outputs, and the cache if `cold`."""
    remove_tree(out)
    out.mkdir()
    if verb == "lock":
        for name in ("lock.json", "digests.json"):
            (fault_run.project.folder / "images" / TARGET / name).unlink(missing_ok=True)
    if verb == "push":
        fault_run.registry.tags.clear()
        fault_run.registry.manifests.clear()
        fault_run.registry.blobs.clear()
    if fault_run.project.cache is not None and cold:
        remove_tree(fault_run.project.cache)


def timed(fault_run: FaultRun, verb: str, out: Path) -> float:
    """Run a verb to its end, and return its duration in seconds."""
    started = time.monotonic()
    fault_run.project.run(*fault_run.words(verb, out))
    return time.monotonic() - started


def test_worker_processes_exit_if_their_parent_is_killed():
    command = [sys.executable, "-c", WORKERS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(family(process.pid)) >= 3
        process.kill()
    ended(process.pid)


@pytest.mark.long  # test_layout_kill.py and test_push.py kill two verbs
def test_killed_command_succeeds_when_it_is_run_again(
    fault_run, tmp_path, record_testsuite_property
):
    if "sif" in VERBS:
        needs.require_tool("mksquashfs", "squashfs-tools")
    chance = random.Random(SEED)
    out, hits = tmp_path / "out", dict.fromkeys(VERBS, 0)
    seconds: dict[str, float] = {}
    out.mkdir()
    for number in range(COUNT or len(VERBS)):
        verb = VERBS[number % len(VERBS)]
        cold = chance.random() < 0.5
        emptied(fault_run, verb, out, cold=cold)
        if verb == "pull" and ("me/image", TARGET) not in fault_run.registry.tags:
            fault_run.project.run(*fault_run.words("push", out))
        if verb not in seconds:  # how long it takes on this machine
            seconds[verb] = timed(fault_run, verb, out)
            emptied(fault_run, verb, out, cold=cold)
        # A run takes about as long as the previous one.
        hits[verb] += killed(fault_run, verb, out, chance.uniform(0.2, seconds[verb]))
        seconds[verb] = timed(fault_run, verb, out)
        fault_run.right(verb, out)
    record_testsuite_property(
        "kills", f"{sum(hits.values())} of {COUNT or len(VERBS)} in the middle: {hits}"
    )
    assert any(hits.values())


FAULTS = {
    "full": "mount -o remount,size=$((used + 4))k .",
    "read-only": "mount -o remount,ro .",
    "no inodes": "mount -o remount,nr_inodes=$((inodes + 3)) .",
}
SCRIPT = """set -e
mount -t tmpfs none {disk}; cp -r {project}/. {cache} {disk}; cd {disk}; rm -rf {gone}
used=$(df --output=used -k . | tail -1); inodes=$(df --output=iused . | tail -1)
{fault}
set +e; "$@"; echo "status $?"
mount -o remount,rw,size=256m,nr_inodes=100000 .
"$@" > /dev/null 2> again; echo "again $?"; cat again >&2
find . -name '*.tmp*'
"""


FEW = [
    pytest.param("lock", "no inodes", marks=pytest.mark.long),  # test_full_disk.py has other verbs
    ("build", "full"),
]
ALL = [(verb, fault) for verb in ("lock", "build", "archive", "sif", "pull") for fault in FAULTS]


@pytest.mark.parametrize(("verb", "fault"), ALL if COUNT else FEW)
def test_command_reports_a_disk_error_and_succeeds_when_it_is_run_again(
    fault_run, tmp_path, verb, fault
):
    needs.require_root()
    disk = tmp_path / "disk"
    disk.mkdir()
    if verb == "pull" and ("me/image", TARGET) not in fault_run.registry.tags:
        fault_run.project.run(*fault_run.words("push", tmp_path))
    gone = f"images/{TARGET}" if verb == "lock" else "cache/blobs build"
    script = SCRIPT.format(
        disk=disk, project=fault_run.project.folder, cache=fault_run.project.cache, gone=gone,
        fault=FAULTS[fault],
    )  # fmt: skip
    command = fault_run.project.command(*fault_run.words(verb, Path("out")))
    done = subprocess.run(
        [
            needs.require_tool("unshare", "util-linux"),
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            *command,
        ],
        env=fault_run.project.environment() | {"IMGBUILD_CACHE": str(disk / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "status 0" not in done.stdout
    assert "error: " in done.stderr
    assert "again 0" in done.stdout, done.stderr
    assert ".tmp" not in done.stdout


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Flip one bit."""
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


HARMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flipped,
    "truncation": lambda data, chance: data[: chance.randrange(len(data))],
    "swap": lambda data, chance: chance.randbytes(len(data)),
}
KINDS = ("file", "blob", "pulled", "image", "fact", "partial", "records", "format")
OUTCOMES = ("harmless", "healed", "refused")


def entries(fault_run: FaultRun, kind: str, out: Path) -> list[Path]:
    """Return the files to damage, after removing files that would hide the damage."""
    cache = fault_run.project.cache or Path()
    if kind in ("file", "partial"):
        remove_tree(cache / "blobs")
    if kind != "image":
        remove_tree(out)
    place = {
        "blob": cache / "blobs",
        "pulled": cache / "blobs",
        "image": out / "image/blobs",
        "fact": cache / "facts",
        "records": Path(fault_run.project.env["XDG_STATE_HOME"]),
        "format": cache / "FORMAT",
    }.get(kind, cache / "files")
    return [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())


def harmed(fault_run: FaultRun, kind: str, path: Path, data: bytes) -> None:
    """Write `data` to an entry in place, and keep its times. A partial file gets a new name."""
    before = path.stat()
    if kind == "partial":
        path.unlink()
        path = (fault_run.project.cache or Path()) / "partial" / path.name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(before.st_mode & 0o777)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def outcome(fault_run: FaultRun, kind: str, out: Path) -> str:
    """Run a command after the damage; its result must be one of OUTCOMES."""
    verb = "pull" if kind == "pulled" else "build"
    done = subprocess.run(
        fault_run.project.command(*fault_run.words(verb, out)),
        cwd=fault_run.project.folder,
        env=fault_run.project.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "error: " in done.stderr
        assert "hint: " in done.stderr
        return "refused"
    fault_run.right(verb, out)
    return "healed" if "is damaged" in done.stderr else "harmless"


@pytest.mark.long  # unit/cache/test_damage.py has each type of damage
def test_damaged_cache_does_not_change_the_built_image(
    fault_run, tmp_path, record_testsuite_property
):
    """Each type of entry gets each type of damage; the next run reports no problem."""
    chance, out = random.Random(SEED), tmp_path / "out"
    cases = [(kind, harm) for harm in HARMS for kind in KINDS]
    few = [case for number, case in enumerate(cases) if number % len(HARMS) == number // len(KINDS)]
    outcome_counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for number in range(COUNT or len(few)):
        kind, harm = cases[number % len(cases)] if COUNT else few[number]
        if kind == "pulled" and ("me/image", TARGET) not in fault_run.registry.tags:
            fault_run.project.run(*fault_run.words("push", out))
        if number == 0 or kind == "image":
            fault_run.project.run(*fault_run.words("build", out))
        path = chance.choice(entries(fault_run, kind, out))
        data = path.read_bytes()
        harmed(fault_run, kind, path, HARMS[harm](data, chance))
        outcome_counts[kind][outcome(fault_run, kind, out)] += 1
        if kind == "format":
            path.write_bytes(data)
        assert outcome(fault_run, kind, out) == "harmless", (kind, harm, path)
    record_testsuite_property(
        "damage", str({kind: dict(each) for kind, each in outcome_counts.items()})
    )
    assert all(outcome_counts[kind]["healed"] for kind in ("file", "blob", "pulled", "image"))
    assert not any(outcome_counts[kind]["refused"] for kind in KINDS if kind != "format")
