"""Runs the smoke tests inside a built image, and says how they went.

Comes in: a lock and the layout that was built from it. Goes out: a `Report`, and from that a table
or JUnit XML. The tests themselves are scripts that import nothing of imgbuild; they are copied into
a container (no shared folder, so an engine on another machine works alike), or shown to a root
folder, which needs no engine; or they run in the environment that is active, for which a lock was
installed without an image. In an image they have no network and are not root.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent

import msgspec

from imgbuild import codec
from imgbuild import report as reports
from imgbuild.cache.store import Store
from imgbuild.container import driver, engine, run_in_image, sandbox
from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.lock.lock import Lock, require_arch
from imgbuild.oci.layout import Layout, Stored
from imgbuild.oci.tar import Member, header, padding
from imgbuild.plan.plan import installed_wheels
from imgbuild.report import Case, Report, counts, passed
from imgbuild.smoke.result import How, Tested, ran
from imgbuild.system import process as processes
from imgbuild.system.console import console
from imgbuild.system.files import data as data_folder
from imgbuild.system.process import Result
from imgbuild.values import Arch

# In a checkout this is a link to smoke_tests/ beside builder/; a wheel holds the files themselves.
TESTS = data_folder("smoke_tests")
PLACE = "/smoke_tests"
EXPECT = "expect.json"
FORMAT = 1
MODEL = "/model"
Tier = reports.Tier
# Who runs where `stranger` is asked for: an id that the image's /etc/passwd does not have.
STRANGER = (54321, 54321)
USUAL = How()
GPU_TIERS: dict[Tier, int] = {"gpu": 1, "multi-gpu": 2}  # and how many each needs
QUICK = 1.0  # seconds
TAIL = 30  # lines of a failed case's log
COLUMNS = ("case", "outcome", "seconds")


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests are to find in the image: smoke_tests/README.md describes it."""

    format: int
    target: str
    arch: Arch
    prefix: str
    cache: str
    workdir: str
    packages: dict[str, str]
    debian: tuple[str, ...]
    flashinfer: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests' own runner writes to stdout."""

    format: int
    tier: str
    python: str
    cases: tuple[Case, ...]


def expectation(lock: Lock, arch: Arch) -> Expectation:
    """What an image of `lock` on `arch` holds."""
    wheels = installed_wheels(require_arch(lock, arch))
    return Expectation(
        format=FORMAT,
        target=lock.target,
        arch=arch,
        prefix=lock.settings.prefix,
        cache=lock.settings.cache,
        workdir=lock.settings.workdir,
        packages={wheel.package: wheel.version for wheel in wheels},
        debian=tuple(sorted(deb.package for deb in lock.arch[arch].debs)),
        flashinfer=lock.flashinfer,
    )


def fitting(gpus: int, through: str | None = None) -> tuple[Tier, ...]:
    """The tiers that a machine with so many GPUs allows: what `imgbuild smoke` runs unasked.

    The active environment is no image: what `static` says of users and files is not its matter.
    """
    tiers: list[Tier] = ["cpu"] if through == "here" else ["static", "cpu"]
    return (*tiers, *(tier for tier, needed in GPU_TIERS.items() if gpus >= needed))


def smoke(
    lock: Lock,
    layout: Layout,
    arch: Arch,
    tiers: Sequence[Tier],
    *,
    through: str | None,
    store: Store,
    how: How = USUAL,
    stranger: bool = False,
) -> Iterator[Tested]:
    """Run `tiers` in the image of `layout` on `arch`: a report for each, as soon as it is there.

    `through` is "docker", "podman" or "root"; None takes the engine that answers, else a root
    folder. With `stranger` the image's files are read-only and the user is none of the image's, as
    clusters have it. InputError if the layout has no such image, ToolMissing if what `through`
    names is not there, WorkFailed if the tests could not run.
    """
    expected = expectation(lock, arch)
    image = layout.image(arch)
    found = None if through == "root" else engine.find(through)
    if found is None and through in ("docker", "podman"):
        engine.require(through)
    if found is not None:
        reference = engine.load(found, layout, arch, lock.target).reference
        for tier in tiers:
            command = command_line(lock.settings.prefix, tier, how)
            with console.step(f"{lock.target}: smoke tests, tier {tier}, in {found.kind}"):
                settings = _container(tier, how.model, stranger=stranger)
                result = _in_container(found, reference, command, expected, settings)
            report = read_report(result, expected, tier)
            yield of_image(image, ran(report, result, found.kind, how, stranger=stranger))
        return
    with run_in_image.root_folder(layout, arch, store) as root:
        settings_ = run_in_image.running(layout, arch)
        for tier in tiers:
            made = smoke_root(
                lock, root, arch, tier, settings=settings_, store=store, how=how, stranger=stranger
            )
            yield of_image(image, made)


def of_image(image: Stored, report: Tested) -> Tested:
    """`report` as one of a run in `image`."""
    manifest, config = image.manifest.digest, image.config.digest
    return msgspec.structs.replace(report, digest=manifest, config=config)


def smoke_root(
    lock: Lock,
    root: Path,
    arch: Arch,
    tier: Tier,
    *,
    settings: run_in_image.Running,
    store: Store,
    how: How = USUAL,
    stranger: bool = False,
) -> Tested:
    """Run `tier` in the folder `root`, into which the image with `settings` was unpacked."""
    expected = expectation(lock, arch)
    user = lock.settings.user
    command = command_line(lock.settings.prefix, tier, how)
    with store.scratch() as scratch:
        binds = [sandbox.Bind(source=write(expected, scratch), target=PLACE)]
        env = run_in_image.environment(settings) | {"HOME": user.home}
        if how.model is not None:
            binds.append(sandbox.Bind(source=how.model, target=MODEL))
        if tier in GPU_TIERS:
            brought = driver.shown(scratch)
            binds += brought.binds
            env |= {**brought.env, **driver.chosen()}
        with console.step(f"{lock.target}: smoke tests, tier {tier}, in a root folder"):
            result = sandbox.run(
                root,
                [*settings.entrypoint, *command],
                env=env,
                binds=binds,
                cwd=settings.workdir,
                user=STRANGER if stranger else (user.uid, user.gid),
                network=False,
                readonly=stranger,
            )
    return ran(read_report(result, expected, tier), result, "root", how, stranger=stranger)


def smoke_here(
    lock: Lock,
    arch: Arch,
    tiers: Sequence[Tier],
    *,
    store: Store,
    how: How = USUAL,
) -> Iterator[Tested]:
    """Run `tiers` in the environment that is active: that of VIRTUAL_ENV, else of PATH's python3.

    It must hold what the lock names, whoever installed it. ToolMissing if there is no Python.
    """
    active = os.environ.get("VIRTUAL_ENV")
    python = f"{active}/bin/python" if active else shutil.which("python3")
    if python is None or not Path(python).exists():
        message = f"{python or 'python3'} is not there"
        raise ToolMissing(message, hint="activate the environment that is to be tested")
    asked = processes.run([python, "-c", "import sys; print(sys.prefix)"])
    for tier in tiers:
        with store.scratch() as scratch:
            expected = msgspec.structs.replace(
                expectation(lock, arch),
                prefix=asked.stdout.strip(),
                cache=str(scratch),
                workdir=str(scratch),
            )
            folder = write(expected, scratch)
            words = command_line("", tier, how, str(folder), str(how.model))
            with console.step(f"{lock.target}: smoke tests, tier {tier}, in {expected.prefix}"):
                result = processes.run([python, *words[1:]], check=False)
        yield ran(read_report(result, expected, tier), result, "here", how)


def command_line(
    prefix: str, tier: Tier, how: How, place: str = PLACE, model: str = MODEL
) -> list[str]:
    """That of the tests' own runner, which lies in `place`; its model lies in `model`."""
    words = [f"{prefix}/bin/python", f"{place}/run.py", "--json", f"--tier={tier}"]
    words += [f"--expect={place}/{EXPECT}", f"--patience={how.patience}", f"--only={how.only}"]
    words += [f"--jobs={how.jobs}", f"--share={how.share}"]
    return [*words, *([f"--model={model}"] if how.model else [])]


def write(expected: Expectation, scratch: Path) -> Path:
    """The tests and what they are to find, as a folder that everybody can read."""
    folder = scratch / PLACE.strip("/")
    folder.mkdir()
    for member in members(expected):
        path = folder / member.path
        path.write_bytes(member.content if isinstance(member.content, bytes) else b"")
        path.chmod(0o644)
    folder.chmod(0o755)
    return folder


def _container(tier: Tier, model: Path | None, *, stranger: bool) -> engine.Running:
    """How a container of `tier` runs. NCCL's processes meet in shared memory, 64 MB by default."""
    # The tests lie in a volume: into nothing else can files be copied where the root is read-only.
    options = [f"--volume={PLACE}", *(["--shm-size=8g"] if tier in GPU_TIERS else [])]
    if model is not None:
        options.append(f"--volume={model}:{MODEL}:ro")
    if stranger:
        options += ["--read-only", "--tmpfs=/tmp:rw,exec,nosuid,mode=1777"]
    return engine.Running(
        env=driver.chosen() if tier in GPU_TIERS else {},
        network=False,
        gpus=tier in GPU_TIERS,
        user=":".join(map(str, STRANGER)) if stranger else None,
        options=tuple(options),
    )


def members(expected: Expectation) -> tuple[Member, ...]:
    """The tests and what they are to find, as members of an archive."""
    files = {path.name: path.read_bytes() for path in sorted(TESTS.iterdir()) if path.is_file()}
    if "run.py" not in files:
        message = f"{TESTS} holds no smoke tests"
        raise WorkFailed(message, hint="install imgbuild again")
    files[EXPECT] = codec.encode(expected)
    return tuple(
        Member(path=file, size=len(data), content=data) for file, data in sorted(files.items())
    )


def tar(expected: Expectation) -> Iterator[bytes]:
    """The tests and what they are to find, as a tar stream."""
    for member in members(expected):
        yield header(member)
        if isinstance(member.content, bytes):
            yield member.content + bytes(padding(member.size))
    yield bytes(1024)


def read_report(result: Result, expected: Expectation, tier: Tier) -> Report:
    """The report that the tests' runner wrote; WorkFailed if it wrote none, or lied.

    Its exit status must agree with its cases.
    """
    for line in result.stderr.splitlines():
        console.detail(line)
    try:
        document = msgspec.json.decode(result.stdout, type=Document)
    except msgspec.DecodeError as error:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-20:])
        message = (
            f"{expected.target}: the smoke tests did not run (status {result.status}):\n{tail}"
        )
        hint = f"look into the image: imgbuild run {expected.target} -- sh"
        raise WorkFailed(message, hint=hint) from error
    if document.format != FORMAT or document.tier != tier:
        message = (
            f"{expected.target}: the smoke tests answered tier {document.tier} in format"
            f" {document.format}, not tier {tier} in format {FORMAT}"
        )
        raise WorkFailed(message, hint="install imgbuild again")
    report = Report(target=expected.target, arch=expected.arch, tier=tier, cases=document.cases)
    if (result.status == 0) != succeeded(report):
        message = (
            f"{expected.target}: the smoke tests ended with status {result.status}, and their"
            f" report has {counts(report.cases)}"
        )
        raise WorkFailed(message)
    return report


def succeeded(report: Report) -> bool:
    """No case failed and at least one passed: a skip is never a pass."""
    return report.ok and passed(report.cases)


def verdict(report: Report) -> str:
    """The report in a word and its counts, for a line of data."""
    return f"{'passed' if succeeded(report) else 'failed'} ({counts(report.cases)})"


def show(report: Report) -> None:
    """Tell people how long cases took, what was skipped and why, and last what failed.

    What passed at once is one row of the table, and of a failed case's log the end is shown; with
    `-v` all is.
    """
    title = f"{report.target} {report.arch}, tier {report.tier}"
    whole = console.verbosity > 0
    quick = [
        case.seconds
        for case in report.cases
        if not whole and case.outcome == "passed" and case.seconds < QUICK
    ]
    rows = [
        (case.name, case.outcome, f"{case.seconds:.1f}")
        for case in report.cases
        if whole or case.outcome != "passed" or case.seconds >= QUICK
    ]
    if quick:
        rows.append((f"{len(quick)} more, under {QUICK:.0f} s each", "passed", f"{sum(quick):.1f}"))
    console.table(title, COLUMNS, rows)
    console.info(f"{title}: {counts(report.cases)}")
    for case in report.cases:
        if case.outcome == "skipped":
            console.info(f"skipped: {case.name}: {case.message}")
    for case in report.cases:
        if case.outcome == "failed":
            console.error(f"{case.name}: {case.message}")
            lines = case.log.splitlines()
            if len(lines) > TAIL and not whole:
                console.info(f"the last {TAIL} of {len(lines)} lines of its log (-v: all of it):")
                lines = lines[-TAIL:]
            console.info(indent("\n".join(lines), "  "))


def _in_container(
    found: engine.Engine,
    reference: str,
    command: Sequence[str],
    expected: Expectation,
    settings: engine.Running,
) -> Result:
    """Run `command` in a new container that holds the tests."""
    container = engine.create(found, reference, command, settings)
    try:
        engine.copy_in(found, container, tar(expected), PLACE)
        return engine.start(found, container)
    finally:
        engine.discard(found, container)
