"""Implements `imgbuild registry mirror`, which mirrors inputs of locks."""

# A separate module: a verb.
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from imgbuild import codec
from imgbuild.assemble import mirror
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.mirror import FILE, MirrorSetting, NamedMirror
from imgbuild.cli._help import VerbGroup, register_verb
from imgbuild.cli._options import DRY_RUN, KEEP, MirrorOnly, Offline, PlainHttp
from imgbuild.cli._output import align_columns, fold_lines, format_count, print_result
from imgbuild.cli._selection import require_no_host, split_places
from imgbuild.cli._targets import FilterOptions, MatrixFile
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError, WorkFailed
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.opened import open_project
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.publish.mirror import LockedInputs, MirrorStatus, mirror_status, upload_missing_inputs
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository, parse_repository
from imgbuild.system.console import console

HEAD = ("target", "arch", "files", "GB", "missing", "MB missing", "tag")
NUMBERS = frozenset({2, 3, 4, 5})

app = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    help="Mirror the locked inputs to a registry.\n\nBuilds that use a mirror work even if "
    "upstream files disappear or no other server can be reached. Each file (wheel, sdist, Debian "
    "package, base layer) is stored once for all targets, as a blob identified by the sha256 in "
    "the lock. `imgbuild lock` still reads the upstream indexes.\n\nFor a cluster without network "
    "access, run `push`, copy the registry's storage, and inside, set IMGBUILD_MIRROR to the "
    "repository and run `imgbuild build TARGET --mirror-only`.",
)

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET... HOST/REPOSITORY",
        help="The targets, and the mirror's repository. Default repository: the mirror set by "
        "`imgbuild registry mirror use`.",
        show_default=False,
    ),
]


@create_verb
def push_inputs(
    selection: FilterOptions,
    places: Places = None,
    dry_run: Annotated[
        bool, DRY_RUN("Print the number and size of the files that would be sent.")
    ] = False,
    keep: Annotated[
        bool,
        KEEP("Applies to downloads in the cache. --drop removes them after every 4 GB."),
    ] = True,
    plain_http: PlainHttp = None,
    offline: Offline = False,
) -> None:
    """Push the inputs of locks to a registry.

    Sends only files that are not in the registry, from the cache or from their sources. To continue
    an interrupted push, run the command again. Each target and architecture is tagged
    TARGET-ARCH-inputs and TARGET-ARCH-inputs-HEX. The second tag is kept when the lock changes.
    `imgbuild registry gc` finds tags that no lock refers to.

    Examples:

        imgbuild registry mirror push cu124-vllm registry.example/rl/inputs

        imgbuild registry mirror push --all registry.example/rl/inputs --drop

        imgbuild registry mirror push 'cu130-*' registry.example/rl/inputs --dry-run
    """
    session = open_session(selection.matrix, SessionOptions(offline=offline))
    repository, plain, names = _selected_mirror(session.project, places, plain_http)
    parts = _parts(session.project, selection, names)
    inputs: Inputs = open_inputs(session, locking=True)
    if inputs.mirror is not None and inputs.mirror.repository == repository:
        inputs.mirror = None  # what it lacks cannot come from there
    filled = upload_missing_inputs(
        parts,
        repository,
        RegistryClient(plain_http=plain, origin=True, reporter=console),
        inputs,
        dry_run=dry_run,
        drop=not keep,
    )
    word = "would be sent" if dry_run else "sent"
    console.info(
        f"{repository}: {format_count(filled.sent, 'file')} {word}, {filled.sent_size / 1e9:.2f}"
        " GB;"
        f" {format_count(filled.files, 'file')} of {filled.size / 1e9:.2f} GB in total"
    )
    lines = [f"{item.target} {item.arch} {repository}@{item.artifact}" for item in filled.artifacts]
    print_result(filled, [] if dry_run else fold_lines(lines))


@create_verb
def use_mirror(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST/REPOSITORY",
            help="A repository with inputs from `imgbuild registry mirror push`.",
            show_default=False,
        ),
    ] = None,
    off: Annotated[bool, option("--off", "Stop using a mirror.", often=True)] = False,
    mirror_only: MirrorOnly = False,
    plain_http: PlainHttp = None,
    matrix: MatrixFile = None,
) -> None:
    """Set the mirror for the inputs of builds.

    Locks and digests do not change, because the hash of each file is verified. The option
    --mirror and $IMGBUILD_MIRROR override this setting; `off` disables the mirror.

    Examples:

        imgbuild registry mirror use registry.example/rl/inputs

        imgbuild registry mirror use registry.example/rl/inputs --mirror-only

        imgbuild registry mirror use --off
    """
    if off == (place is not None):
        message = "either a repository or --off is required"
        raise InputError(message, hint="run imgbuild registry mirror use HOST/REPOSITORY")
    path = _project_file(matrix)
    if place is None:
        path.unlink(missing_ok=True)
        console.info(f"{path}: no mirror is set")
        print_result(None, [])
        return
    repository = mirror.parse_mirror_repository(place, "registry mirror use")
    plain = repository.host in (plain_http or [])
    setting = MirrorSetting(mirror=str(repository), only=mirror_only, plain_http=plain)
    codec.write_document(path, setting)
    console.info(
        f"{path}: inputs are downloaded from {repository}"
        + (", without fallback to other servers" * mirror_only)
    )
    print_result(setting, [str(path)])


def _project_file(matrix: Path | None) -> Path:
    project = open_project(matrix)
    project.require_writable(
        "imgbuild registry mirror use",
        hint="outside of a project, set IMGBUILD_MIRROR=HOST/REPOSITORY",
    )
    return project.root / FILE


@create_verb
def show_status(
    selection: FilterOptions, places: Places = None, plain_http: PlainHttp = None
) -> None:
    """Show which inputs of targets are in a mirror.

    Exits with status 1 if a file is missing. Columns: target, architecture, files, GB, missing
    files, missing MB, and the tag that protects the files from deletion ("-" if there is none).

    Examples:

        imgbuild registry mirror status --all

        imgbuild registry mirror status cu124-vllm registry.example/rl/inputs --json
    """
    project = selection.project()
    repository, plain, names = _selected_mirror(project, places, plain_http)
    parts = _parts(project, selection, names)
    statuses = mirror_status(
        parts, repository, RegistryClient(plain_http=plain, origin=True, reporter=console)
    )
    rows: list[Sequence[str]] = [HEAD, *(_row(item) for item in statuses)]
    print_result(statuses, align_columns(rows, right=NUMBERS))
    absent = sorted({item.target for item in statuses if item.lacking or not item.tagged})
    if absent:
        message = f"{repository} lacks inputs of {', '.join(absent)}"
        hint = f"run imgbuild registry mirror push {' '.join(absent)} {repository}"
        if not console.json:
            raise WorkFailed(message, hint=hint)
        console.error(message, hint=hint)  # the result is on stdout already
        raise typer.Exit(WorkFailed.exit_code)


def _row(item: MirrorStatus) -> tuple[str, ...]:
    return (
        item.target,
        item.arch,
        str(item.files),
        f"{item.size / 1e9:.2f}",
        str(len(item.lacking)),
        f"{item.lacking_size / 1e6:.1f}",
        item.tag if item.tagged else "-",
    )


def _selected_mirror(
    project: Project, places: list[str] | None, plain_http: list[str] | None
) -> tuple[Repository, list[str], list[str]]:
    """Return the selected repository, the hosts without TLS, and the targets in `places`."""
    names, named = split_places(places)
    if named is not None:
        return parse_repository(named), list(plain_http or []), names
    require_no_host(names, project.locked_targets())
    setting: NamedMirror | None = mirror.find_mirror(project.root)
    if setting is None:
        message = "no mirror is configured"
        raise InputError(
            message,
            hint="pass HOST/REPOSITORY, or configure a mirror with `imgbuild registry mirror use`",
        )
    repository = parse_repository(setting.setting.mirror)
    plain = [*(plain_http or []), *([repository.host] if setting.setting.plain_http else [])]
    return repository, plain, names


def _parts(project: Project, selection: FilterOptions, names: list[str]) -> list[LockedInputs]:
    chosen = selection.selected_locks(project, names)
    return [LockedInputs(lock=item.lock, arch=each) for item in chosen for each in item.arches]


register_verb(app, "push", push_inputs)
register_verb(app, "use", use_mirror)
register_verb(app, "status", show_status)
