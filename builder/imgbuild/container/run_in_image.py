"""Runs commands in images with Docker, podman or Apptainer, or in a root folder.

A root folder needs neither an engine nor root privileges (see `root_folder`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.container import apptainer, arguments, driver, engine, sandbox
from imgbuild.container.arguments import EngineCommand
from imgbuild.container.driver import DriverFiles
from imgbuild.container.enclosure import FAILED
from imgbuild.container.engine import Engine
from imgbuild.container.load import load_image
from imgbuild.container.request import ContainerRequest
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.layout import Layout
from imgbuild.system import decoding, process, programs
from imgbuild.system.process import ProcessResult
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch

# The program of --init, and where engines search for it in addition to PATH.
INITS = {"docker": "docker-init", "podman": "catatonit"}
HELPERS = ("/usr/libexec/", "/usr/local/libexec/", "/usr/lib/", "/usr/local/lib/")


PROJECT_COMMIT = "dev.imgbuild.project.commit"  # label: the image contains this commit of a project


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished command. `through` is docker, podman, apptainer or root.

    `stdout` and `stderr` are empty unless they were captured.
    """

    through: str
    status: int
    stdout: str
    stderr: str


class CommandConfig(msgspec.Struct, frozen=True):
    """The fields of an image configuration (image-spec 1.1) that are needed to run a command."""

    env: tuple[str, ...] = msgspec.field(default=(), name="Env")
    entrypoint: tuple[str, ...] = msgspec.field(default=(), name="Entrypoint")
    command: tuple[str, ...] = msgspec.field(default=(), name="Cmd")
    workdir: str = msgspec.field(default="/", name="WorkingDir")
    user: str = msgspec.field(default="", name="User")
    labels: dict[str, str] = msgspec.field(default={}, name="Labels")


def command_config(layout: Layout, arch: Arch) -> CommandConfig:
    """Read the fields of the image configuration that are needed to run a command.

    Raises IntegrityError if the configuration is invalid.
    """
    image = layout.image(arch)
    try:
        labels = {"Labels": image.configuration.labels}
        return decoding.convert({**image.settings, **labels}, CommandConfig)
    except msgspec.ValidationError as error:
        message = f"{layout.path}: invalid image configuration for {arch}: {error}"
        raise IntegrityError(message, hint="build the image again") from error


def image_environment(settings: CommandConfig) -> dict[str, str]:
    """Return the environment variables of the image by name."""
    return dict(item.split("=", 1) for item in settings.env)


def run_in_root(
    root: sandbox.SandboxRoot,
    settings: CommandConfig,
    request: ContainerRequest,
    *,
    driver_files: DriverFiles | None = None,
    streams: sandbox.StreamMode = sandbox.StreamMode.CAPTURED,
) -> ProcessResult:
    """Run the command of `request` in `root`, an unpacked image with the configuration `settings`.

    Raises InputError if the user of `request` is a name.
    """
    ids = request.user_ids()
    if ids is None:
        message = f"--user {request.user}: user names are not supported in a root folder"
        raise InputError(message, hint="use --user UID:GID")
    env = image_environment(settings) | ({"HOME": request.home} if request.home else {})
    if streams is sandbox.StreamMode.TERMINAL:
        env["TERM"] = os.environ.get("TERM", "xterm")
    binds = [
        sandbox.BindMount(source=mount.source, target=mount.target, writable=mount.writable)
        for mount in request.mounts
    ]
    if driver_files is not None:
        binds += driver_files.binds
        env |= driver_files.env
    return sandbox.run_in_sandbox(
        root,
        [*settings.entrypoint, *(request.command or settings.command)],
        env=env | request.all_variables(),
        binds=binds,
        cwd=request.workdir,
        user=None if ids == (0, 0) else ids,
        network=request.network,
        streams=streams,
    )


def choose_engine(through: str | None, *, reporter: Reporter = SILENT_REPORTER) -> Engine | None:
    """Find the engine for `through`: "docker", "podman", "root", or None for any running engine.

    Returns None for "root" (a root folder), or if no engine is running. Raises ToolMissing if the
    requested engine does not respond.
    """
    if through == "root":
        return None
    if through is not None:
        return engine.require_engine(through, reporter=reporter)
    return engine.find_engine(reporter=reporter)


def run_in_image(
    layout: Layout,
    arch: Arch,
    tag: str,
    request: ContainerRequest,
    *,
    container_engine: Engine | None,
    store: Store,
    capture: bool = False,
    reporter: Reporter = SILENT_REPORTER,
) -> CommandResult:
    """Run the command of `request` with `container_engine`, or in a root folder if it is None.

    An image that is missing from the engine is loaded first. The exit status of the command is not
    checked.
    """
    if container_engine is None:
        return _run_in_root_folder(layout, arch, request, store, capture=capture, reporter=reporter)
    loaded = load_image(container_engine, layout, arch, tag, reporter=reporter)
    name = f"imgbuild-{secrets.token_hex(6)}"
    invocation = engine_command(
        container_engine.kind,
        container_engine.program,
        msgspec.structs.replace(request, name=name),
        loaded.id,
        rootless=container_engine.rootless,
    )
    ran = _run_command_line(
        container_engine.kind,
        invocation,
        capture=capture,
        end=container_engine.command("kill", name),
    )
    if ran.status == FAILED and request.gpus:
        reporter.warn(
            f"{container_engine.kind} could not start the container with GPUs; install the "
            "NVIDIA Container Toolkit, or disable GPUs with --gpus 0"
        )
    return ran


def run_sif(image: Path, request: ContainerRequest, *, capture: bool = False) -> CommandResult:
    """Run the command of `request` in a SIF file.

    Raises ToolMissing if Apptainer is not installed.
    """
    invocation = arguments.apptainer_command(request, apptainer.require_apptainer(), image)
    return _run_command_line("apptainer", invocation, capture=capture)


def engine_command(
    kind: engine.EngineKind,
    program: str,
    request: ContainerRequest,
    reference: str,
    *,
    rootless: bool = False,
) -> EngineCommand:
    """Return the command line for `request` with Docker or podman."""
    places = [f"{folder}{kind}" for folder in HELPERS]
    # An engine on another machine may also have the program for --init.
    init = (
        programs.find_on_path(INITS[kind], path=os.pathsep.join([os.defpath, *places])) is not None
    )
    return arguments.engine_command(kind, request, program, reference, rootless=rootless, init=init)


def _run_command_line(
    through: str, invocation: EngineCommand, *, capture: bool, end: Sequence[str] | None = None
) -> CommandResult:
    env = {**invocation.env, **arguments.variables_from_process(invocation.env_from)}
    if capture:
        done = process.run_command(invocation.command, env=env, check=False)
        return CommandResult(
            through=through, status=done.status, stdout=done.stdout, stderr=done.stderr
        )
    status = process.run_in_foreground(invocation.command, env=env, end=end)
    return CommandResult(through=through, status=status, stdout="", stderr="")


def _run_in_root_folder(
    layout: Layout,
    arch: Arch,
    request: ContainerRequest,
    store: Store,
    *,
    capture: bool,
    reporter: Reporter,
) -> CommandResult:
    with root_folder(layout, arch, store, reporter=reporter) as root, store.scratch() as scratch:
        fetched = driver.driver_files(scratch) if request.gpus else None
        settings = command_config(layout, arch)
        streams = sandbox.StreamMode.TERMINAL if request.tty else sandbox.StreamMode.INHERITED
        done = run_in_root(
            root,
            settings,
            request,
            driver_files=fetched,
            streams=sandbox.StreamMode.CAPTURED if capture else streams,
        )
    return CommandResult(through="root", status=done.status, stdout=done.stdout, stderr=done.stderr)
