"""Runs `smoke_tests/doctor.py` in a container to check whether the host suits an image.

The script does not import imgbuild. It is not part of the image, but passed to the container. It
runs under the same conditions as a user's command. With Apptainer, the home folder, the environment
and the limits of this machine apply, and are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from imgbuild.container import apptainer, driver, engine, run_in_image, sandbox
from imgbuild.container.load import load_image
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import WorkFailed
from imgbuild.lock.lock_file import Lock
from imgbuild.oci.layout import Layout
from imgbuild.oci.tar import LayerMember, member_header, padding_size
from imgbuild.report import Finding, Report, Severity
from imgbuild.sif import convert
from imgbuild.smoke import runner
from imgbuild.smoke.runner import ImageUnderTest
from imgbuild.system import decoding, process
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch

SCRIPT = "doctor.py"
SCRIPTS = (SCRIPT, "doctor_driver.py")
PLACE = "/smoke_tests"
FORMAT = 1
TIER = "doctor"
ENTRYPOINT = "/opt/imgbuild/entrypoint"


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for checks: GPUs, shared memory in MB, and Apptainer options (`words`)."""

    gpus: int = 0
    shared: int = 0
    words: tuple[str, ...] = ()


class _ImageReport(msgspec.Struct, frozen=True):
    check: str
    severity: Severity
    message: str
    remedy: str = ""


class _ScriptOutput(msgspec.Struct, frozen=True):
    format: int
    seconds: float
    findings: tuple[_ImageReport, ...]


def check_sif(
    lock: Lock,
    arch: Arch,
    image: Path,
    options: InspectOptions,
    reporter: Reporter = SILENT_REPORTER,
) -> Report:
    """Run the checks in the SIF file `image`. Raises ToolMissing without Apptainer."""
    program = apptainer.require_apptainer()
    words = [program, "exec", "--no-privs", "--bind", f"{runner.TESTS.resolve()}:{PLACE}:ro"]
    words += ["--nv"] if options.gpus else []
    command = [*words, *options.words, str(image), ENTRYPOINT, *_command(lock, options)]
    with reporter.step(f"{lock.target}: checking inside the image, in apptainer"):
        done = process.run_command(command, check=False)
    return _read_report(lock, arch, done, reporter)


def check_image(
    test_image: ImageUnderTest, layout: Layout, options: InspectOptions, *, through: str
) -> Report:
    """Run the checks in the image in `layout`. `through` is docker, podman, apptainer or root."""
    lock, arch, reporter = test_image.lock, test_image.arch, test_image.reporter
    if through == "apptainer":
        apptainer.require_apptainer()
        with test_image.store.scratch() as scratch:
            image = scratch / "image.sif"
            with reporter.step(f"creating a SIF of {layout.path.name}"):
                convert.convert_image(
                    layout, arch, image, convert.ConvertOptions(), reporter=reporter
                )
            return check_sif(lock, arch, image, options, reporter)
    if through == "root":
        return _check_in_root(test_image, layout, options)
    container_engine = engine.require_engine(through, reporter=reporter)
    loaded = load_image(container_engine, layout, arch, lock.target, reporter=reporter)
    settings = engine.ContainerOptions(gpus=options.gpus > 0, options=(f"--volume={PLACE}",))
    with test_image.report_step(f"checking inside the image, in {container_engine.kind}"):
        container = engine.create_container(
            container_engine, loaded.id, _command(lock, options), settings
        )
        try:
            engine.copy_into_container(container_engine, container, _script_tar(), PLACE)
            done = engine.start_container(container_engine, container)
        finally:
            engine.remove_container(container_engine, container)
    return _read_report(lock, arch, done, reporter)


def _check_in_root(test_image: ImageUnderTest, layout: Layout, options: InspectOptions) -> Report:
    lock, arch, user = test_image.lock, test_image.arch, test_image.lock.settings.user
    unpacked = root_folder(layout, arch, test_image.store, reporter=test_image.reporter)
    with unpacked as root, test_image.store.scratch() as scratch:
        settings = run_in_image.command_config(layout, arch)
        binds = [sandbox.BindMount(source=runner.TESTS, target=PLACE)]
        env = run_in_image.image_environment(settings) | {"HOME": user.home}
        if options.gpus:
            fetched = driver.driver_files(scratch)
            binds += fetched.binds
            env |= fetched.env
        with test_image.report_step("checking inside the image, in a root folder"):
            done = sandbox.run_in_sandbox(
                root,
                [*settings.entrypoint, *_command(lock, options)],
                env=env,
                binds=binds,
                cwd=settings.workdir,
                user=(user.uid, user.gid),
                network=True,
            )
    return _read_report(lock, arch, done, test_image.reporter)


def _command(lock: Lock, options: InspectOptions) -> list[str]:
    python = f"{lock.settings.prefix}/bin/python"
    needs = (f"--gpus={options.gpus}", f"--shared={options.shared}")
    return [python, f"{PLACE}/{SCRIPT}", "--json", *needs]


def _script_tar() -> Iterator[bytes]:
    for name in SCRIPTS:
        data = (runner.TESTS / name).read_bytes()
        yield member_header(LayerMember(path=name, size=len(data), content=data))
        yield data + bytes(padding_size(len(data)))
    yield bytes(1024)


def _read_report(lock: Lock, arch: Arch, done: process.ProcessResult, reporter: Reporter) -> Report:
    try:
        document = decoding.decode_json(done.stdout, _ScriptOutput)
    except msgspec.DecodeError as error:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        message = (
            f"{lock.target}: no command could run in the image (status {done.status}):\n{tail}"
        )
        raise WorkFailed(
            message, hint=f"to test the image, run: imgbuild run {lock.target} -- sh"
        ) from error
    if document.format != FORMAT:
        message = f"{SCRIPT} wrote a report in format {document.format}, not {FORMAT}"
        raise WorkFailed(message, hint="install imgbuild again")
    reporter.info(f"{lock.target}: checked in {document.seconds:.1f} s")
    return Report(
        target=lock.target,
        arch=arch,
        tier=TIER,
        findings=tuple(
            Finding(
                check=finding.check,
                severity=finding.severity,
                message=finding.message,
                remedy=finding.remedy,
            )
            for finding in document.findings
        ),
    )


def finding_lines(report: Report) -> Sequence[str]:
    """Return the findings as lines of text, with errors at the end."""
    order = (Severity.NOTE, Severity.WARNING, Severity.ERROR)
    rows = []
    for finding in sorted(report.findings, key=lambda entry: order.index(entry.severity)):
        rows.append(f"{finding.severity}: {finding.check}: {finding.message}")
        if finding.remedy:
            rows.append(f"  remedy: {finding.remedy}")
    return rows
