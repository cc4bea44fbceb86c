"""Runs the smoke tests in `smoke_tests/` in an image or environment.

The tests are scripts that do not import imgbuild. They are copied into containers, because the
engine can be on another machine, or mounted into root folders. In an image, tests run without
network and without root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.container import driver, engine, path_variables, run_in_image, sandbox
from imgbuild.container.load import load_image
from imgbuild.container.request import Mount
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.lock.lock_file import Lock, require_arch
from imgbuild.lock.resolution import installed_wheels
from imgbuild.oci.image import PlatformImage
from imgbuild.oci.layout import Layout
from imgbuild.oci.tar import LayerMember, member_header, padding_size
from imgbuild.report import CaseResult, Report, TierName, case_counts, has_passed
from imgbuild.smoke.result import RunSettings, SmokeRun, completed_run
from imgbuild.system import decoding, files, process, programs
from imgbuild.system.process import ProcessResult
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch

# In a checkout this is a link to smoke_tests/ next to builder/; a wheel contains the files.
TESTS = files.data("smoke_tests")
PLACE = "/smoke_tests"
EXPECTATION_FILE = "expect.json"
FORMAT = 1
MODEL = "/model"
# The user and group id for `arbitrary_user`, which the image's /etc/passwd does not have.
ARBITRARY_USER = (54321, 54321)
DEFAULT_SETTINGS = RunSettings()
GPU_TIERS: dict[TierName, int] = {"gpu": 1, "multi-gpu": 2}  # and the number of GPUs they need


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """The expected contents of the image, as described in smoke_tests/README.md."""

    format: int
    target: str
    arch: Arch
    prefix: str
    cache: str
    workdir: str
    packages: dict[str, str]
    debian: tuple[str, ...]
    flashinfer: str


class RunnerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON output of smoke_tests/run.py."""

    format: int
    tier: str
    python: str
    cases: tuple[CaseResult, ...]


class ImageUnderTest(msgspec.Struct, frozen=True, kw_only=True):
    """A locked image for one architecture, and the cache for files of tests."""

    lock: Lock
    arch: Arch
    store: Store
    reporter: Reporter = SILENT_REPORTER

    @property
    def expected_content(self) -> Expectation:
        """The expected contents of the image.

        Raises InputError if the lock does not include `arch`.
        """
        return create_expectation(self.lock, self.arch)

    def report_step(self, text: str) -> AbstractContextManager[object]:
        """Report the start and end of the step `text`, with the name of the target."""
        return self.reporter.step(f"{self.lock.target}: {text}")


def create_expectation(lock: Lock, arch: Arch) -> Expectation:
    """Return the expected contents of an image of `lock` for `arch`."""
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


def fitting_tiers(gpus: int, through: str | None = None) -> tuple[TierName, ...]:
    """Return the tiers that can run with `gpus` GPUs, which are the default of `imgbuild smoke`.

    If `through` is "here" (the active environment), `static` is omitted.
    """
    tiers: list[TierName] = ["cpu"] if through == "here" else ["static", "cpu"]
    return (*tiers, *(tier for tier, needed in GPU_TIERS.items() if gpus >= needed))


def run_tiers(
    test_image: ImageUnderTest,
    layout: Layout,
    tiers: Sequence[TierName],
    *,
    through: str | None,
    how: RunSettings = DEFAULT_SETTINGS,
    arbitrary_user: bool = False,
) -> Iterator[SmokeRun]:
    """Run `tiers` in the image of `layout`, and yield a run for each tier.

    `through` is "docker", "podman" or "root". None selects a running engine, or else a root folder.
    With `arbitrary_user`, files of the image are read-only and the user is not in /etc/passwd, as
    on clusters. Raises InputError if the layout has no image for the architecture, ToolMissing if
    the selected engine is not running, and WorkFailed if the tests could not run.
    """
    lock, expected, reporter = test_image.lock, test_image.expected_content, test_image.reporter
    image = layout.image(test_image.arch)
    container_engine = None if through == "root" else engine.find_engine(through, reporter=reporter)
    if container_engine is None and through in ("docker", "podman"):
        engine.require_engine(through)
    if container_engine is not None:
        loaded = load_image(
            container_engine, layout, test_image.arch, lock.target, reporter=reporter
        )
        for tier in tiers:
            command = command_line(lock.settings.prefix, tier, how)
            with test_image.report_step(f"smoke tests, tier {tier}, in {container_engine.kind}"):
                settings = _container(tier, how.model, arbitrary_user=arbitrary_user)
                result = _run_in_container(container_engine, loaded.id, command, expected, settings)
            report = read_report(result, expected, tier, reporter=reporter)
            yield add_image_digests(
                image,
                completed_run(
                    report, result, container_engine.kind, how, arbitrary_user=arbitrary_user
                ),
            )
        return
    with root_folder(layout, test_image.arch, test_image.store, reporter=reporter) as root:
        config = run_in_image.command_config(layout, test_image.arch)
        for tier in tiers:
            smoke_run = smoke_root(
                test_image, root, config, tier, how=how, arbitrary_user=arbitrary_user
            )
            yield add_image_digests(image, smoke_run)


def add_image_digests(image: PlatformImage, report: SmokeRun) -> SmokeRun:
    """Add the digests of `image` to `report`."""
    manifest, config = image.manifest.digest, image.config.digest
    return msgspec.structs.replace(report, digest=manifest, config=config)


def smoke_root(
    test_image: ImageUnderTest,
    root: sandbox.SandboxRoot,
    settings: run_in_image.CommandConfig,
    tier: TierName,
    *,
    how: RunSettings = DEFAULT_SETTINGS,
    arbitrary_user: bool = False,
) -> SmokeRun:
    """Run `tier` in the unpacked image `root`. `settings` is the image's configuration."""
    expected, user = test_image.expected_content, test_image.lock.settings.user
    command = command_line(test_image.lock.settings.prefix, tier, how)
    with test_image.store.scratch() as scratch:
        binds = [sandbox.BindMount(source=write_tests(expected, scratch), target=PLACE)]
        env = run_in_image.image_environment(settings) | {"HOME": user.home}
        if how.model is not None:
            binds.append(sandbox.BindMount(source=how.model, target=MODEL))
        if tier in GPU_TIERS:
            fetched = driver.driver_files(scratch)
            binds += fetched.binds
            variables, mounts = machine_settings(tier)
            binds += [sandbox.BindMount(source=each.source, target=each.target) for each in mounts]
            env |= {**fetched.env, **variables}
        with test_image.report_step(f"smoke tests, tier {tier}, in a root folder"):
            result = sandbox.run_in_sandbox(
                root,
                [*settings.entrypoint, *command],
                env=env,
                binds=binds,
                cwd=settings.workdir,
                user=ARBITRARY_USER if arbitrary_user else (user.uid, user.gid),
                network=False,
                readonly=arbitrary_user,
            )
    report = read_report(result, expected, tier, reporter=test_image.reporter)
    return completed_run(report, result, "root", how, arbitrary_user=arbitrary_user)


def run_tiers_here(
    test_image: ImageUnderTest, tiers: Sequence[TierName], *, how: RunSettings = DEFAULT_SETTINGS
) -> Iterator[SmokeRun]:
    """Run `tiers` in the active environment: $VIRTUAL_ENV, or the environment of python3 in $PATH.

    The packages of the lock must be installed. Raises ToolMissing if there is no Python.
    """
    active = os.environ.get("VIRTUAL_ENV")
    python = f"{active}/bin/python" if active else programs.find_on_path("python3")
    if python is None or not Path(python).exists():
        message = f"{python or 'python3'} not found"
        raise ToolMissing(message, hint="activate the environment to test")
    prefix = process.run_command([python, "-I", "-c", "import sys; print(sys.prefix)"])
    for tier in tiers:
        with test_image.store.scratch() as scratch:
            expected = msgspec.structs.replace(
                test_image.expected_content,
                prefix=prefix.stdout.strip(),
                cache=str(scratch),
                workdir=str(scratch),
            )
            folder = write_tests(expected, scratch)
            words = command_line("", tier, how, str(folder), str(how.model))
            with test_image.report_step(f"smoke tests, tier {tier}, in {expected.prefix}"):
                result = process.run_command([python, *words[1:]], check=False)
        report = read_report(result, expected, tier, reporter=test_image.reporter)
        yield completed_run(report, result, "here", how)


def command_line(
    prefix: str, tier: TierName, how: RunSettings, place: str = PLACE, model: str = MODEL
) -> list[str]:
    """Return the command line for smoke_tests/run.py, which is in the folder `place`."""
    words = [f"{prefix}/bin/python", f"{place}/run.py", "--json", f"--tier={tier}"]
    words += [
        f"--expect={place}/{EXPECTATION_FILE}",
        f"--timeout-factor={how.timeout_factor}",
        f"--case={how.only}",
    ]
    words += [f"--jobs={how.jobs}", f"--share={how.share}"]
    return [*words, *([f"--model={model}"] if how.model else [])]


def write_tests(expected: Expectation, scratch: Path) -> Path:
    """Write the tests and `expected` to a folder in `scratch` that all users can read."""
    folder = scratch / PLACE.strip("/")
    folder.mkdir()
    for member in test_members(expected):
        path = folder / member.path
        path.write_bytes(member.content if isinstance(member.content, bytes) else b"")
        path.chmod(0o644)
    folder.chmod(0o755)
    return folder


def machine_settings(tier: TierName) -> tuple[dict[str, str], tuple[Mount, ...]]:
    """Return environment variables for the GPUs of `tier`, and mounts for files in them."""
    return path_variables.split_settings(driver.gpu_variables() if tier in GPU_TIERS else {})


def _container(
    tier: TierName, model: Path | None, *, arbitrary_user: bool
) -> engine.ContainerOptions:
    # The tests are in a volume, since no files can be copied into a read-only root.
    options = [f"--volume={PLACE}", *(["--shm-size=8g"] if tier in GPU_TIERS else [])]
    if model is not None:
        options.append(f"--volume={model}:{MODEL}:ro")
    variables, mounts = machine_settings(tier)
    options += [f"--volume={mount.source}:{mount.target}:ro" for mount in mounts]
    if arbitrary_user:
        options += ["--read-only", "--tmpfs=/tmp:rw,exec,nosuid,mode=1777"]
    return engine.ContainerOptions(
        env=variables,
        network=False,
        gpus=tier in GPU_TIERS,
        user=":".join(map(str, ARBITRARY_USER)) if arbitrary_user else None,
        options=tuple(options),
    )


def test_members(expected: Expectation) -> tuple[LayerMember, ...]:
    """Return the tests and `expected` as archive members."""
    scripts = {path.name: path.read_bytes() for path in sorted(TESTS.iterdir()) if path.is_file()}
    if "run.py" not in scripts:
        message = f"no smoke tests found in {TESTS}"
        raise WorkFailed(message, hint="reinstall imgbuild")
    scripts[EXPECTATION_FILE] = codec.encode(expected)
    return tuple(
        LayerMember(path=file, size=len(data), content=data)
        for file, data in sorted(scripts.items())
    )


def test_tar(expected: Expectation) -> Iterator[bytes]:
    """Yield the tests and `expected` as a tar stream."""
    for member in test_members(expected):
        yield member_header(member)
        if isinstance(member.content, bytes):
            yield member.content + bytes(padding_size(member.size))
    yield bytes(1024)


def read_report(
    result: ProcessResult,
    expected: Expectation,
    tier: TierName,
    *,
    reporter: Reporter = SILENT_REPORTER,
) -> Report:
    """Read the report of smoke_tests/run.py from its output.

    Raises WorkFailed if the report is missing, is invalid, or contradicts the exit status.
    """
    for line in result.stderr.splitlines():
        reporter.detail(line)
    try:
        document = decoding.decode_json(result.stdout, RunnerReport)
    except msgspec.DecodeError as error:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-20:])
        message = (
            f"{expected.target}: the smoke tests did not run (status {result.status}):\n{tail}"
        )
        hint = f"to inspect the image, run: imgbuild run {expected.target} -- sh"
        raise WorkFailed(message, hint=hint) from error
    if document.format != FORMAT or document.tier != tier:
        message = (
            f"{expected.target}: the smoke-test report has tier {document.tier} and format"
            f" {document.format} (expected tier {tier} in format {FORMAT})"
        )
        raise WorkFailed(message, hint="reinstall imgbuild")
    report = Report(target=expected.target, arch=expected.arch, tier=tier, cases=document.cases)
    if (result.status == 0) != has_passed(report.cases):
        message = (
            f"{expected.target}: the smoke tests ended with status {result.status}, but the "
            f"report lists {case_counts(report.cases)}"
        )
        raise WorkFailed(message)
    return report


def report_verdict(report: Report) -> str:
    """Return the outcome and the numbers of cases: "passed (3 passed, 0 failed, 0 skipped)".

    Returns "nothing to test" if the image contains no package that the tier tests.
    """
    outcome = "passed" if has_passed(report.cases) else "failed"
    if all(case.outcome == "skipped" for case in report.cases):
        outcome = "nothing to test"
    return f"{outcome} ({case_counts(report.cases)})"


def _run_in_container(
    container_engine: engine.Engine,
    reference: str,
    command: Sequence[str],
    expected: Expectation,
    settings: engine.ContainerOptions,
) -> ProcessResult:
    container = engine.create_container(container_engine, reference, command, settings)
    try:
        engine.copy_into_container(container_engine, container, test_tar(expected), PLACE)
        return engine.start_container(container_engine, container)
    finally:
        engine.remove_container(container_engine, container)
