"""`imgbuild registry mirror`: the inputs of locks in your own registry, and builds from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.assemble.mirror import NamedMirror
    from imgbuild.project import Project
    from imgbuild.publish.mirror import Held, Part
    from imgbuild.registry.reference import Repository

HEAD = ("target", "arch", "files", "GB", "lacking", "MB lacking", "tag")
NUMBERS = frozenset({2, 3, 4, 5})

app = typer.Typer(
    no_args_is_help=True,
    help="Keep every wheel, sdist, deb and base layer of locks in your own registry, so that a"
    " build works after upstream files vanish, or where there is no other network.\n\n"
    "Files are blobs named by the sha256 that the lock has, each once however many targets have"
    " it. A mirror is what `lock` has chosen: to choose, `lock` still asks the indexes.",
)

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET]... [HOST/REPOSITORY]",
        help="Targets, and the repository; by default the one that `registry mirror use` has set.",
        show_default=False,
    ),
]
Drop = Annotated[
    bool,
    typer.Option(
        "--drop",
        help="Take what was downloaded for it out of the cache again, 4 GB at a time.",
        rich_help_panel=_options.WORK,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say what would be sent; send nothing.", rich_help_panel=_options.WORK
    ),
]
Only = Annotated[
    bool,
    typer.Option(
        "--only",
        help="Ask no index for what the mirror lacks: such a build fails at once.",
        rich_help_panel=_options.WORK,
    ),
]
ForUser = Annotated[
    bool,
    typer.Option(
        "--user",
        help="For every project of this user, in ~/.config/imgbuild; without it for this project,"
        " in mirror.json beside the matrix.",
        rich_help_panel=_options.WORK,
    ),
]
Off = Annotated[
    bool, typer.Option("--off", help="Remove the setting.", rich_help_panel=_options.WORK)
]


@app.command("push")
def push(
    places: Places = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    dry_run: DryRun = False,
    drop: Drop = False,
    plain_http: _options.PlainHttp = None,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Put the inputs of locks into a registry: what is not there, from the cache or its source.

    An interrupted run goes on where it stopped. For each target and architecture the repository
    gets the tags TARGET-ARCH-inputs and TARGET-ARCH-inputs-HEX, which stays when the lock
    changes; `imgbuild registry gc` finds those that no lock names.

    Examples:

        imgbuild registry mirror push cu124-vllm registry.example/rl/inputs

        imgbuild registry mirror push --all registry.example/rl/inputs --drop

        imgbuild registry mirror push 'cu130-*' registry.example/rl/inputs --dry-run
    """
    from imgbuild.assemble.inputs import Inputs
    from imgbuild.pipeline import targets
    from imgbuild.publish import mirror
    from imgbuild.registry.client import Client

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    session = targets.open_session(matrix, targets.Options(offline=offline))
    repository, plain, names = _place(session.project, places, plain_http)
    parts = _parts(session.project, _options.wanted(names, target), everything, arch)
    inputs: Inputs = session.inputs(locking=True)
    if inputs.mirror is not None and inputs.mirror.repository == repository:
        inputs.mirror = None  # what it lacks is not to be had there
    filled = mirror.push(
        parts,
        repository,
        Client(plain_http=plain, origin=True, reporter=console),
        inputs,
        dry_run=dry_run,
        drop=drop,
    )
    word = "would be sent" if dry_run else "sent"
    console.info(
        f"{repository}: {filled.sent} files {word}, {filled.sent_size / 1e9:.2f} GB;"
        f" {filled.files} files of {filled.size / 1e9:.2f} GB in all"
    )
    lines = [f"{item.target} {item.arch} {repository}@{item.artifact}" for item in filled.artifacts]
    _options.answer(filled, [] if dry_run else lines, json=json)


@app.command("use")
def use(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST/REPOSITORY]",
            help="The repository that `registry mirror push` has filled.",
            show_default=False,
        ),
    ] = None,
    off: Off = False,
    only: Only = False,
    user: ForUser = False,
    plain_http: _options.PlainHttp = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Let builds take their inputs from a mirror before they ask any index.

    Locks and digests stay as they are: what the mirror gives must have the hash of the lock.
    `--mirror` of a verb and $IMGBUILD_MIRROR (either may be `off`) go before this setting.

    Examples:

        imgbuild registry mirror use registry.example/rl/inputs

        imgbuild registry mirror use registry.example/rl/inputs --only --user

        imgbuild registry mirror use --off
    """
    from imgbuild import codec, project
    from imgbuild.assemble import mirror

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if off == (place is not None):
        message = "name a repository, or give --off to remove the setting"
        raise InputError(message, hint="imgbuild registry mirror use HOST/REPOSITORY")
    path = mirror.user_file() if user else project.find(matrix).root / mirror.FILE
    if place is None:
        path.unlink(missing_ok=True)
        console.info(f"{path}: no mirror is set there")
        _options.answer(None, [], json=json)
        return
    repository = mirror.repository(place, "mirror use")
    plain = repository.host in (plain_http or [])
    setting = mirror.MirrorSetting(mirror=str(repository), only=only, plain_http=plain)
    codec.write(path, setting)
    console.info(f"{path}: inputs are taken from {repository}" + (", and only there" * only))
    _options.answer(setting, [str(path)], json=json)


@app.command("status")
def status(
    places: Places = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    plain_http: _options.PlainHttp = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Say what of the targets' inputs a mirror has; exit status 1 if a file of them is lacking.

    Columns: target, architecture, files, GB, files lacking, MB lacking, the tag that keeps them
    (- if it is not there).

    Examples:

        imgbuild registry mirror status --all

        imgbuild registry mirror status cu124-vllm registry.example/rl/inputs --json
    """
    from imgbuild import project
    from imgbuild.publish import mirror
    from imgbuild.registry.client import Client

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    repository, plain, names = _place(found, places, plain_http)
    parts = _parts(found, _options.wanted(names, target), everything, arch)
    held = mirror.status(parts, repository, Client(plain_http=plain, origin=True, reporter=console))
    rows: list[Sequence[str]] = [HEAD, *(_row(item) for item in held)]
    _options.answer(held, _options.aligned(rows, right=NUMBERS), json=json)
    absent = sorted({item.target for item in held if item.lacking or not item.tagged})
    if absent:
        message = f"{repository} does not have all inputs of {', '.join(absent)}"
        hint = f"imgbuild registry mirror push {' '.join(absent)} {repository}"
        if not json:
            raise WorkFailed(message, hint=hint)
        console.error(message, hint=hint)  # the answer stands on stdout already
        raise typer.Exit(WorkFailed.exit_code)


def _row(item: Held) -> tuple[str, ...]:
    return (
        item.target,
        item.arch,
        str(item.files),
        f"{item.size / 1e9:.2f}",
        str(len(item.lacking)),
        f"{item.lacking_size / 1e6:.1f}",
        item.tag if item.tagged else "-",
    )


def _place(
    project: Project, places: list[str] | None, plain_http: list[str] | None
) -> tuple[Repository, list[str], list[str]]:
    """The repository that is meant, hosts without TLS, and the targets among `places`."""
    from imgbuild.assemble import mirror
    from imgbuild.registry.reference import parse_repository

    named = [word for word in places or [] if "/" in word]
    names = [word for word in places or [] if "/" not in word]
    if len(named) > 1:
        message = f"one repository is wanted, not {' and '.join(named)}"
        raise InputError(message, hint="name the targets, and one HOST/REPOSITORY")
    if named:
        return parse_repository(named[0]), list(plain_http or []), names
    setting: NamedMirror | None = mirror.find(project.root)
    if setting is None:
        message = "which mirror? none is named, and none is set"
        raise InputError(message, hint="name HOST/REPOSITORY, or: imgbuild registry mirror use …")
    repository = parse_repository(setting.setting.mirror)
    plain = [*(plain_http or []), *([repository.host] if setting.setting.plain_http else [])]
    return repository, plain, names


def _parts(
    project: Project, names: list[str], everything: bool, arch: list[Arch] | None
) -> list[Part]:
    from imgbuild.cli import _selection
    from imgbuild.publish import mirror

    chosen = _selection.choose(project, names, everything=everything, arches=arch or [])
    return [mirror.Part(lock=item.lock, arch=each) for item in chosen for each in item.arches]
