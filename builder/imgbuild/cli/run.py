"""Implements `imgbuild run`, which runs a command in an image."""

# A separate module: a verb.
from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cache.store import Store
from imgbuild.cli._cause import report_cause
from imgbuild.cli._help import RunCommand, create_command
from imgbuild.cli._options import (
    DRY_RUN,
    ENV,
    GPUS,
    THROUGH,
    EngineName,
    KernelCache,
    LayoutFolder,
    OneArch,
    process_count,
)
from imgbuild.cli._output import print_result
from imgbuild.cli._selection import selected_arch, single_target
from imgbuild.cli._targets import OneTarget
from imgbuild.cli._verb import (
    CONTAINER,
    OptionDefinition,
    OptionGroup,
    RunOutput,
    create_verb,
    option,
)
from imgbuild.container import driver, path_variables
from imgbuild.container.request import ContainerRequest, Mount, process_ids
from imgbuild.container.run_in_image import PROJECT_COMMIT, CommandConfig
from imgbuild.container.settings import MODELS, MODELS_VARIABLE, TOKEN, TRACKING_PREFIX, WORKDIR
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.pipeline import cached_code_audit, run_target
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.system import boundary, files
from imgbuild.system.console import console
from imgbuild.system.output_tail import OutputTail, tail_of_stderr
from imgbuild.values import Arch, is_number

ENTRYPOINT = "/opt/imgbuild/entrypoint"  # selects a home if HOME is not writable
NOTICE = "notice"  # the kind of facts for messages that are reported once a day
SELINUX = Path("/sys/fs/selinux/enforce")
NAME = re.compile(r"[^\s=]+")
PORT = re.compile(r"([\w.\[\]:-]+:)?\d+(-\d+)?(/(tcp|udp|sctp))?", re.ASCII)
SIZE = re.compile(r"\d+(\.\d+)?([bkmgBKMG]b?)?", re.ASCII)
USER = re.compile(r"[\w.-]+(:[\w.-]+)?")


class RunOptions(OptionGroup, frozen=True, kw_only=True):
    """Options for the container of a command."""

    volume: Annotated[
        list[str] | None,
        OptionDefinition(
            "--volume -v",
            "Mount a file or folder at the path DST, read-only with :ro. Can be repeated.",
            metavar="SRC:DST[:ro]",
            panel=CONTAINER,
            often=True,
        )(),
    ] = None
    env: Annotated[list[str] | None, ENV()] = None
    env_file: Annotated[
        list[Path] | None,
        option("--env-file", "Set environment variables from a file of NAME=VALUE lines. Can be"
                             " repeated.",
               metavar="FILE", panel=CONTAINER),
    ] = None  # fmt: skip
    publish: Annotated[
        list[str] | None,
        option("--publish -p", "Publish a port to the host. Requires docker or podman. Can be"
                               " repeated.",
               metavar="[HOST:]PORT", panel=CONTAINER, often=True),
    ] = None  # fmt: skip
    gpus: Annotated[str | None, GPUS("Accepts 'all'. Default: all GPUs of this machine.")] = None
    shm_size: Annotated[
        str | None,
        option(
            "--shm-size",
            "The size of the container's shared memory, such as 16g. By default, the container "
            "uses the shared memory of the host (--ipc=host).",
            metavar="SIZE",
            panel=CONTAINER,
            setting=True,
        ),
    ] = None
    user: Annotated[
        str | None,
        OptionDefinition(
            "--user",
            "The user to run the command as. Default: the current user, who then owns new files.",
            metavar="UID[:GID]",
            panel=CONTAINER,
        )(),
    ] = None
    network: Annotated[
        bool,
        option(
            "--network/--no-network", "Give the command access to the network.", panel=CONTAINER
        ),
    ] = True
    hf_cache: Annotated[
        bool,
        option(
            "--hf-cache/--no-hf-cache",
            "Mount the Hugging Face cache if it exists: $HF_HOME,"
            " else ~/.cache/huggingface, and the folders of"
            " $HF_HUB_CACHE and similar variables.",
            panel=CONTAINER,
        ),
    ] = True
    kernel_cache: KernelCache = True

    def assigned_variables(self) -> dict[str, str]:
        """Return the variables that `--env` assigns a value to."""
        pairs = [text.partition("=") for text in self.env or []]
        return {name: value for name, given, value in pairs if given}

    def container_request(
        self, config: CommandConfig, command: Sequence[str], *, interactive: bool, dry_run: bool
    ) -> ContainerRequest:
        """Return the request to run a command in an image with `config`.

        With `dry_run`, the command is only printed, and stdout does not have to be a terminal.
        Raises InputError for an invalid option.
        """
        files = {path.absolute(): read_env_file(path) for path in self.env_file or []}
        named = {name for values in files.values() for name in values}
        given = dict(_variable(text) for text in self.env or [])
        workdir = config.workdir if config.workdir not in ("", "/") else WORKDIR
        folder = _folder_mount(workdir, config.labels.get(PROJECT_COMMIT, ""))
        mounts = {mount.target: mount for mount in folder}
        env: dict[str, str | None] = dict.fromkeys(_variables_by_name())
        if self.hf_cache and (cache := hugging_face_cache()) is not None:
            mounts[MODELS] = Mount(source=cache, target=MODELS)
            env[MODELS_VARIABLE] = MODELS
        volumes = {mount.target: mount for mount in map(_volume, self.volume or [])}
        typed = {*named, *(name for name, value in given.items() if value is not None)}
        unpassed = path_variables.variable_names("not passed") & given.keys()
        paths = path_variables.passed_paths(
            os.environ,
            mounts=tuple({**mounts, **volumes}.values()),
            folders=path_variables.image_folders(config.env),
            without={"HF_HOME", *typed, *unpassed},
            hf_cache=self.hf_cache,
        )
        for message in paths.messages:
            if message.partition("=")[0] not in given:  # else there is a warning
                console.info(message)
        env |= paths.env
        mounts |= {mount.target: mount for mount in paths.mounts} | volumes
        gpus = _parse_gpus(self.gpus, dry_run=dry_run)
        if gpus is True:
            env |= dict.fromkeys(driver.chosen_gpus())
        env = {name: value for name, value in env.items() if name not in named} | given
        _require_form(
            self.publish or [], PORT, "--publish", "PORT, HOSTPORT:PORT or IP:HOSTPORT:PORT"
        )
        _require_form([self.shm_size or "1g"], SIZE, "--shm-size", "a size such as 16g")
        _require_form([self.user or "0"], USER, "--user", "UID[:GID]")
        if self.publish and not self.network:
            message = "--publish and --no-network cannot be combined"
            raise InputError(message, hint="omit one of these options")
        terminal = interactive and sys.stdin.isatty() and (dry_run or sys.stdout.isatty())
        return ContainerRequest(
            command=tuple(command),
            workdir=workdir,
            mounts=tuple(mounts.values()),
            env=env,
            env_files=files,
            ports=tuple(self.publish or ()),
            user=self.user,
            caller=process_ids(),
            home=None if "HOME" in {*named, *given} else _home(config, self.user),
            gpus=gpus,
            shm_size=self.shm_size,
            network=self.network,
            selinux=SELINUX.exists(),
            interactive=interactive,
            tty=terminal,
        )


def hugging_face_cache() -> Path | None:
    """Return $HF_HOME or ~/.cache/huggingface.

    If it does not exist, report this and return None.
    """
    named = os.environ.get("HF_HOME")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = files.expand_home(named or f"{base}/huggingface").absolute()
    except RuntimeError:  # there is no home
        return None
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises PermissionError
        return folder
    if not os.environ.get("HF_HUB_CACHE"):
        _report_daily(
            f"{folder} does not exist, so models that the command downloads are lost when "
            "the command ends"
        )
    return None


def _report_daily(text: str) -> None:
    """Report `text` at most once a day (UTC). The last time is recorded in the cache."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat().encode()
    try:
        store = Store.open()
        if store.fact(NOTICE, text) == today:
            return
        store.put_fact(NOTICE, text, today)
    except (ImgbuildError, OSError) as error:
        console.detail(f"could not record that this warning was shown today: {error}")
    console.info(text)


def read_env_file(path: Path) -> dict[str, str]:
    """Read variables from a file in Docker's format: NAME=VALUE, or NAME for the current value.

    Raises InputError if the file cannot be read, or if a name is invalid.
    """
    try:
        lines = boundary.read_regular_file(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"--env-file {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
        raise InputError(message, hint="specify a file of NAME=VALUE lines") from error
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.lstrip()
        if not text or text.startswith("#"):
            continue
        name, given, value = text.partition("=")
        if not NAME.fullmatch(name):
            message = f"{path}:{number}: invalid variable name: {name!r}"
            raise InputError(message, hint="use lines NAME=VALUE, without quotes or export")
        setting = value if given else os.environ.get(name)
        if setting is not None:
            variables[name] = setting
    return variables


def _variable(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    if not NAME.fullmatch(name):
        message = f"--env {text}: expected NAME=VALUE or NAME"
        raise InputError(message, hint="set the variable, or specify a value: -e NAME=VALUE")
    if not given and name not in os.environ:
        console.warn(f"--env {name}: the variable is not set in this environment")
    return name, value if given else None


def _variables_by_name() -> Iterable[str]:
    """Yield the names of variables to pass to the container, except those with paths."""
    paths = path_variables.variable_names()
    for name in sorted(os.environ):
        if name == TOKEN or (name.startswith(TRACKING_PREFIX) and name not in paths):
            yield name


def _folder_mount(target: str, commit: str) -> Iterable[Mount]:
    """Yield the mount of the current folder at `target`.

    Nothing is mounted if the folder is `/`, or if the image contains `commit` of the project at
    `target`.
    """
    here = Path.cwd()
    if commit:
        console.info(
            f"the current folder is not mounted, because the image has commit {commit[:12]} of "
            f"the project in {target}; to mount it, add -v .:{target}"
        )
        return
    if here == Path("/"):
        console.warn("the current folder is not mounted, because it is /")
        return
    yield Mount(source=here, target=target)


def _volume(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
        message = f"--volume {text}: expected SRC:DST or SRC:DST:ro, where DST is an absolute path"
        raise InputError(message, hint="specify, for example, -v ./data:/data:ro")
    path = files.expand_home(source).absolute()
    if not path.exists():
        message = f"--volume {text}: {path} does not exist"
        raise InputError(message, hint=f"to create the folder, run: mkdir -p {path}")
    return Mount(source=path, target=target.rstrip("/") or "/", writable=mode != "ro")


def _parse_gpus(text: str | None, *, dry_run: bool) -> bool | int:
    """Parse a number of GPUs.

    Returns True for all GPUs. With `dry_run`, a missing GPU is reported.
    """
    if text is not None:
        return True if text == "all" else int(text)
    present = driver.count_gpus() > 0
    if dry_run and not present:
        console.info(
            "no GPU is visible on this machine, so the command does not request GPUs; to request "
            "GPUs, add --gpus all"
        )
    return present


def _home(config: CommandConfig, user: str | None) -> str | None:
    """Return HOME for a user without an account in the image, or None for other users."""
    uid = (user or str(process_ids()[0])).partition(":")[0]
    if not is_number(uid) or uid in ("0", config.user.partition(":")[0]):
        return None
    return "/" if ENTRYPOINT in config.entrypoint else "/tmp"  # noqa: S108 - in the container


def _require_form(texts: Sequence[str], form: re.Pattern[str], flag: str, expected: str) -> None:
    for text in texts:
        if not form.fullmatch(text):
            message = f"{flag} {text}: expected {expected}"
            raise InputError(message, hint="for the options, run: imgbuild run --help")


class RunInImage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command that ran in an image."""

    target: str
    arch: Arch
    through: str
    status: int
    stdout: str
    stderr: str


class CommandToRun(msgspec.Struct, frozen=True, kw_only=True):
    """The command line for an engine, and the environment variables that it requires.

    `env_from` maps variables of the container to the caller's variables with the values.
    """

    target: str
    arch: Arch
    command: tuple[str, ...]
    env: Mapping[str, str]
    env_from: Mapping[str, str]


ThroughOption = Annotated[
    EngineName | None,
    THROUGH(
        "Choices: docker, podman, apptainer, or root (an unpacked root folder, without an "
        "engine). Default: docker or podman if running, else root."
    ),
]


INTERRUPT_STATUSES = (129, 130, 143)  # by SIGHUP, SIGINT, SIGTERM: their cause is known


@functools.partial(create_verb, output=RunOutput)
def run(
    selection: OneTarget,
    container: RunOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="The command to run. Default: a shell.",
            show_default=False,
        ),
    ] = None,
    arch: OneArch = None,
    layout: LayoutFolder = None,
    through: ThroughOption = None,
    dry_run: Annotated[bool, DRY_RUN("Print the command line for the container engine.")] = False,
) -> None:
    """Run a command in the image of a target.

    If the image is missing or does not match the lock, it is built and loaded first. The current
    folder is mounted at the working folder of the image (/workspace). The command runs there as the
    current user, with all GPUs, the shared memory of the host and the Hugging Face cache. The
    variables HF_TOKEN and WANDB_* are passed if they are set. The folders and files in
    HF_HUB_CACHE, TORCH_HOME, SSL_CERT_FILE and similar variables are mounted.

    Options of imgbuild must precede the command; use -- to separate them. The exit status is the
    status of the command. If the command fails and stderr is not a terminal, the likely cause is
    printed at the end, as by `imgbuild diagnose`. With --json, the command has no terminal, and the
    result contains its output.

    In a project with one target, the name can be omitted.

    Examples:

        imgbuild run -- python train.py

        imgbuild run cu124-vllm -- python train.py --lr 1e-5

        imgbuild run cu124-vllm -v /data:/data:ro -e NCCL_DEBUG=INFO -- torchrun train.py

        imgbuild run cu124-vllm --through apptainer -- python train.py

        imgbuild run cu124-vllm --dry-run -- python train.py
    """
    where = RunPlace(arch=arch, layout=layout, through=through, dry_run=dry_run)
    run_in_container(selection.matrix, *selection.split(command), container, where)


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Options that select the image and the engine. With `dry_run`, the command is only printed."""

    arch: list[Arch] | None
    layout: Path | None
    through: EngineName | None
    dry_run: bool


def run_in_container(
    matrix: Path | None, name: str, words: Sequence[str], container: RunOptions, where: RunPlace
) -> None:
    """Run the command `words` in the image of target `name`, and exit with its status.

    If `name` is empty, the only target of the project is used.
    """
    patterns = [name] if name else []
    session = open_session(matrix, SessionOptions(jobs=process_count(0)), patterns)
    name = single_target([item.name for item in session.select_targets(patterns)])
    target = run_target.find_run_target(session, name, where.layout)
    chosen = selected_arch(target.arches, target.place, where.arch)
    dry_run, through = where.dry_run, where.through
    json = console.json
    request = container.container_request(
        target.config(chosen), words, interactive=not json, dry_run=dry_run
    )
    if dry_run:
        engine_command = run_target.engine_command(
            target, chosen, request, through=through, kernel_cache=container.kernel_cache
        )
        shown = CommandToRun(
            target=target.name, arch=chosen, **msgspec.structs.asdict(engine_command)
        )
        print_result(shown, [engine_command.text()])
        return
    cached_code_audit.warn_of_command_errors(
        session, target.name, chosen, words, container.assigned_variables()
    )
    with contextlib.nullcontext(OutputTail()) if request.tty or json else tail_of_stderr() as tail:
        ran = run_target.run_target(
            session,
            target,
            chosen,
            request,
            through=through,
            capture=json,
            kernel_cache=container.kernel_cache,
        )
    if ran.status not in (0, *INTERRUPT_STATUSES):
        report_cause(ran.stderr if json else tail.text())
    if json:
        print_result(RunInImage(target=target.name, arch=chosen, **msgspec.structs.asdict(ran)), [])
    raise typer.Exit(ran.status)


COMMAND = create_command(run, cls=RunCommand)
