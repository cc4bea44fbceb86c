"""Implements `imgbuild resolve`, which finds compatible versions for requirements."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from packaging.specifiers import SpecifierSet

from imgbuild.cache.context import Context
from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    AGAIN,
    ARCH,
    AS_OF,
    BASE,
    CUDA,
    FULL,
    PYTHON,
    REQUIREMENTS,
    SOLVE,
    Offline,
    parse_day,
)
from imgbuild.cli._output import align_columns, format_count, print_result
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError, NoSolution
from imgbuild.learn import recorded
from imgbuild.lock import published
from imgbuild.lock.published import ExtendedMatrix
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import PackageIndex
from imgbuild.pipeline import declared_files
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.resolve import (
    declared_requests,
    locked,
    python_support,
    resolve_request,
    source_only,
    stored,
)
from imgbuild.resolve.answers import ArchOutcome, ChosenVersion, ResolveAnswer, answer_from_locks
from imgbuild.resolve.demands import cuda_releases
from imgbuild.resolve.first_matrix import index_lines
from imgbuild.resolve.init import CATALOGUE_PLACE
from imgbuild.resolve.locked import LockedTarget
from imgbuild.resolve.resolve_request import RequestedPackage, ResolveRequest
from imgbuild.system.amounts import join_first, wrap_paragraph
from imgbuild.system.console import console
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags

SHOWN_REASONS = 3  # reasons shown for a package; --json has all
WIDTH = 80
BOUNDS = 3  # shown in a message
TARGETS = 3  # shown without --full


def locked_lines(answer: ResolveAnswer, *, everything: bool = False) -> list[str]:
    """Format the locked targets in a result as lines: versions, and commands to use the targets."""
    shown = answer.locked if everything else answer.locked[:TARGETS]
    lines = [line for target in shown for line in (*_target_lines(target), "")]
    left = [target.target for target in answer.locked[len(shown) :]]
    if left:
        lines += [*_comment(f"also: {', '.join(left)}; to show the versions, add --full"), ""]
    return [*lines, "# to solve for different versions, add --solve"]


def _target_lines(target: LockedTarget) -> list[str]:
    versions = ", ".join(f"{package} {version}" for package, version in target.versions.items())
    tested = f"tested: {target.tested}" if target.tested else "not tested"
    text = f"{target.target} has {versions} (CUDA {target.cuda}, {tested})"
    return [
        *wrap_paragraph(text, WIDTH, "", "  "),
        *(f"  {command}" for command in target.commands),
    ]


def resolution_lines(answer: ResolveAnswer, *, everything: bool = False) -> list[str]:
    """Format a solution as lines: requested packages by architecture, the row, and the checks.

    If `everything` is set, all packages are included.
    """
    solved = [(arch, outcome) for arch, outcome in answer.arch.items() if outcome.refused is None]
    lines: list[str] = []
    for arch, outcome in solved:
        lines += [f"# {answer.name} on {arch}", *_table(_requested_packages(answer, outcome)), ""]
    if answer.row:
        lines += ["# a row for matrix.yaml, under targets:", *answer.row, ""]
    if answer.indexes:
        lines += ["# for matrix.yaml, under indexes:", *index_lines(answer.indexes), ""]
    if answer.driver and answer.target is not None:
        lines += _comment(f"CUDA {answer.target.cuda}: driver {answer.driver} or newer")
    if answer.row:
        lines += _comment(f"checked: {', '.join(answer.checks)}")
        unchecked = ", ".join(answer.unchecked)
        lines += _comment(f"not checked: {unchecked}; imgbuild lock reads shared objects")
    for arch, outcome in solved:
        number = format_count(len(outcome.packages), "package")
        if everything:
            lines += ["", f"# {number} on {arch}", *_table(outcome.packages)]
        else:
            lines += _comment(f"{number} on {arch}; to list them, add --full")
    return lines


def _requested_packages(answer: ResolveAnswer, outcome: ArchOutcome) -> list[ChosenVersion]:
    """Return the requested packages, and other packages that the row pins."""
    pins = answer.target.pins if answer.target is not None else {}
    names = dict.fromkeys((*answer.requested, *pins))
    chosen = {item.package: item for item in outcome.packages}
    return [chosen[name] for name in names if name in chosen]


def _table(packages: Sequence[ChosenVersion]) -> list[str]:
    if not packages:
        return []
    rows = [(item.package, item.version, "; ".join(item.why[:SHOWN_REASONS])) for item in packages]
    return align_columns(rows, width=WIDTH)


def _comment(text: str) -> list[str]:
    return wrap_paragraph(text, WIDTH, "# ", "#   ")


def report_refusals(answer: ResolveAnswer) -> bool:
    """Print warnings and missing solutions. Returns whether an architecture has no solution."""
    refused = False
    for arch, outcome in answer.arch.items():
        for text in outcome.warnings:
            console.warn(f"{arch}: {text}")
        if outcome.refused is not None:
            refused = True
            _print_outcome(arch, outcome)
    return refused


def _print_outcome(arch: Arch, outcome: ArchOutcome) -> None:
    error = outcome.refused
    if error is not None:
        details = [f"because {reason}" for reason in error.reasons]
        details += [f"suggestion: {each}" for each in error.nearest]
        named = error.message if arch in error.message else f"{arch}: {error.message}"
        console.error("\n  ".join((named, *details)), hint=error.hint)


REQUEST_PANEL = "Request"


RequirementsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="REQUIREMENT...",
        help="Requirements such as vllm==0.9.2 or 'ray[default]>=2.45', or files or folders that "
        "declare requirements, such as requirements.txt or ./project.",
        show_default=False,
    ),
]
WantOption = Annotated[
    list[str] | None,
    option(
        "--want",
        "Comma-separated requirements, equivalent to positional arguments. Can be repeated.",
        metavar="LIST",
        panel=REQUEST_PANEL,
    ),
]
RequirementsOption = Annotated[list[Path] | None, REQUIREMENTS()]
HaveOption = Annotated[
    list[str] | None,
    option(
        "--have",
        "Comma-separated exact versions that must not change. Can be repeated.",
        metavar="LIST",
        panel=REQUEST_PANEL,
        often=True,
    ),
]
CudaOption = Annotated[
    str | None, CUDA("Default: the release of the selected torch build.", panel=REQUEST_PANEL)
]
ArchOption = Annotated[
    list[Arch] | None,
    ARCH("Can be repeated or comma-separated. Default: the architecture of this machine."),
]
AsOfOption = Annotated[
    str | None,
    AS_OF(
        "Use only files that were uploaded before this date (00:00 UTC). Default: half a year "
        "after the newest requested version was released, but not later than today.",
        panel=REQUEST_PANEL,
    ),
]
PythonOption = Annotated[
    str | None, PYTHON("The matrix must have a base with this version.", panel=REQUEST_PANEL)
]
BaseOption = Annotated[
    str | None,
    BASE("Default: the base that most targets use.", panel=REQUEST_PANEL),
]
IndexOption = Annotated[
    list[str] | None,
    option(
        "--index",
        "Get this package from another index in the matrix. Can be repeated.",
        metavar="PACKAGE=INDEX",
        panel=REQUEST_PANEL,
    ),
]
NameOption = Annotated[
    str | None,
    option(
        "--name", "The name for the new row. Implies --solve.", metavar="NAME", panel=REQUEST_PANEL
    ),
]
SolveOption = Annotated[
    bool,
    SOLVE("Without this option, imgbuild solves only if no locked target satisfies the request."),
]
AllowOldOption = Annotated[
    bool,
    option(
        "--allow-old",
        "Accept versions that are more than a year older than the other versions.",
        panel=REQUEST_PANEL,
    ),
]
FullOption = Annotated[
    bool, FULL("Includes all packages, and all targets that satisfy the request.")
]
AgainOption = Annotated[bool, AGAIN("Applies to a request that was already solved today.")]


@create_verb
def resolve(
    requirements: RequirementsArgument = None,
    want: WantOption = None,
    files: RequirementsOption = None,
    have: HaveOption = None,
    cuda: CudaOption = None,
    arch: ArchOption = None,
    as_of: AsOfOption = None,
    python: PythonOption = None,
    base: BaseOption = None,
    index: IndexOption = None,
    name: NameOption = None,
    solve: SolveOption = False,
    allow_old: AllowOldOption = False,
    again: AgainOption = False,
    everything: FullOption = False,
    offline: Offline = False,
    matrix: MatrixFile = None,
) -> None:
    """Find targets that satisfy requirements, or solve for new versions.

    Prints the locked targets that satisfy the request: of the matrix, and in a project based on a
    published target, all published ones. If no target does, prints the nearest target and solves
    for new versions, as with --solve. Solving takes up to 6 minutes if the packages are not in the
    cache. The result is the requested packages and a row to add to matrix.yaml; --full lists every
    package with the reason for its version. The result is cached until the next day (UTC); --again
    solves again.

    Reads only metadata and Python code of wheels from the index, and downloads no complete wheel,
    with one exception: a package that is published only as an sdist, such as deepspeed, is built in
    the sandbox once, because only its build states its requirements. This downloads its build
    requirements, for deepspeed torch and its CUDA libraries (4 GB); the size is printed first.
    Shared objects (ELF, CUDA) are checked by `imgbuild lock`. Writes only to the cache.

    If there is no solution for an architecture, the reasons and suggestions are printed, and the
    exit status is 8. A set with a package that is more than a year older than the others is
    accepted only with --allow-old.

    Examples:

        imgbuild resolve vllm==0.9.2 trl --cuda 12.6 --arch x86_64,arm64

        imgbuild resolve --have torch==2.8.0 --want vllm,trl,verl --solve

        imgbuild resolve vllm==0.8.5.post1 trl --as-of 2025-06-20 --json

        imgbuild resolve --requirements requirements.txt
    """
    local = open_session(matrix, SessionOptions(offline=offline))
    session = _published_session(local)
    assigned = resolve_request.parse_index_words(index or [], session.matrix)
    places = [word for word in requirements or [] if _is_place(word)]
    words = [*(word for word in requirements or [] if word not in places), *(want or [])]
    places += map(str, files or [])
    requests: tuple[RequestedPackage, ...] = ()
    named: str | None = None
    if words or have or not places:
        requests, named = resolve_request.parse_requests(words, have or [], assigned)
    request = resolve_request.ResolveRequest(
        requests=requests,
        arches=resolve_request.requested_arches(arch or []),
        cuda=resolve_request.requested_cuda(cuda, named),
        as_of=parse_day(as_of),
        base=base,
        python=None if python is None else resolve_request.parse_python(python),
        indexes=assigned,
        name=name,
        allow_old=allow_old,
    )
    if places:
        request = _add_file_requirements(request, places, session)
        session = _add_indexes(session, request.index_rows)
    resolve_request.check_request(request, session.matrix)
    if not (solve or again or name):
        if locks := _satisfying_targets(request, local, session):
            resolved = answer_from_locks(request, session.matrix, locks)
            print_result(resolved, locked_lines(resolved, everything=everything))
            return
        _report_near(request, local, session, of_files=bool(places))
    learned = published.known_constraints(local.matrix, local.project.images)
    context = open_inputs(session).context
    with _suggest_similar_names(locked.similar_packages(request, session.project, session.matrix)):
        resolved = stored.cached_answer(
            request, session.project, session.matrix, learned, context, again=again
        )
    print_result(resolved, resolution_lines(resolved, everything=everything))
    if report_refusals(resolved):
        _report_notes(request, session)
        raise typer.Exit(NoSolution.exit_code)


def _published_session(local: Session) -> Session:
    """Return the session of the catalogue, with the indexes of a project that is based on it.

    The matrix of such a project has only the targets, bases and indexes that its rows use.
    """
    if not isinstance(local.matrix, ExtendedMatrix):
        return local
    project = project_paths.catalogue_project()
    matrix = published.load_matrix(project.matrix)
    matrix = msgspec.structs.replace(matrix, indexes={**matrix.indexes, **local.matrix.indexes})
    return msgspec.structs.replace(local, project=project, matrix=matrix)


def _satisfying_targets(
    request: ResolveRequest, local: Session, session: Session
) -> tuple[LockedTarget, ...]:
    """Return the targets of the project that satisfy the request, and then those published."""
    if not isinstance(local.matrix, ExtendedMatrix):
        return locked.satisfying_targets(request, session.project, session.matrix)
    rows = locked.satisfying_targets(request, local.project, local.matrix, ("imgbuild run {}",))
    based = {each.published.name: name for name, each in local.matrix.overlays.items()}
    names = {row.target for row in rows}
    targets = locked.satisfying_targets(
        request, session.project, session.matrix, (_move_command(local),)
    )
    unlocked = [
        msgspec.structs.replace(each, commands=(f"imgbuild lock {based[each.target]}",))
        for each in targets
        if each.target in based and based[each.target] not in names
    ]
    return (*rows, *unlocked, *(each for each in targets if each.target not in based))


def _move_command(local: Session) -> str:
    """Return the command that moves a project to the published target `{}`."""
    places = {each.origin for each in published.published_sources(local.project.matrix).values()}
    command = "imgbuild update --to {}"
    return command if places == {CATALOGUE_PLACE} else f"{command} --lock {CATALOGUE_PLACE}"


def _report_notes(request: ResolveRequest, session: Session) -> None:
    """Print the notes of the matrix on the request."""
    specs = {item.package: SpecifierSet(item.spec) for item in request.requests}
    for note in recorded.notes_on_requests(recorded.target_notes(session.matrix), specs):
        if request.cuda not in (None, session.matrix.targets[note.target].cuda):
            continue
        console.info(f"note of {note.target}: {note.text}")


def _report_exclusion(request: ResolveRequest, local: Session, session: Session) -> None:
    """Print which targets satisfy the request without packages that have no wheel, and a remedy."""
    names = [name for name in request.packages if source_only.is_source_project(name)]
    rest = tuple(each for each in request.requests if each.package not in names)
    if not names or not rest:
        return
    without = msgspec.structs.replace(request, requests=rest)
    if targets := _satisfying_targets(without, local, session):
        fitting = ", ".join(each.target for each in targets[:TARGETS])
        console.info(
            f"without {' and '.join(names)}, the request is satisfied by {fitting}; to use "
            f"{targets[0].target}, run {targets[0].commands[-1]}"
        )
    console.info(
        f"to exclude {' and '.join(names)} and compare the other requirements with every target, "
        "run imgbuild init in the folder of the project (exclude: in its matrix.yaml)"
    )


def _report_relaxed(request: ResolveRequest, local: Session, session: Session) -> None:
    """Print which targets satisfy the request without one of its options."""
    for field in ("python", "cuda", "as_of"):
        given = getattr(request, field)
        without = msgspec.structs.replace(request, **{field: None})
        targets = _satisfying_targets(without, local, session) if given else ()
        if targets:
            rows = [session.matrix.targets.get(each.target) for each in targets[:TARGETS]]
            pythons = [session.matrix.bases[row.base].python if row else "" for row in rows]
            named = ", ".join(
                f"{each.target} (Python {python}, CUDA {each.cuda})"
                for each, python in zip(targets, pythons, strict=False)
            )
            words = f"--{field.replace('_', '-')} {given}"
            console.info(f"without {words}, the request is satisfied by {named}")
        if targets and field == "python":
            used = resolve_request.requested_base(request, session.matrix)
            names = dict.fromkeys((used, *session.matrix.bases))
            bases = {name: session.matrix.bases[name].python for name in names}
            console.info(python_support.other_base_text(given, bases))


def _report_near(
    request: ResolveRequest, local: Session, session: Session, *, of_files: bool
) -> None:
    """Print what satisfies the request without packages that have no wheel, and the nearest target.

    Also print the duration of solving.
    """
    _report_exclusion(request, local, session)
    _report_relaxed(request, local, session)
    near = locked.nearest_target(request, session.project, session.matrix)
    in_project = isinstance(local.matrix, ExtendedMatrix)
    start = ""
    if near is not None:
        start = _move_command(local) if in_project else "imgbuild init --extends {}"
        start = start.format(near.target)
    if near is not None and near.missing:
        lacks = ", ".join(near.missing)
        addable = [name for name in near.missing if not source_only.is_source_project(name)]
        then = f", then imgbuild add {' '.join(addable)}" if addable else ""
        console.info(
            f"nearest locked target: {near.target} has everything except {lacks}; to extend this "
            f"target, run {start}{then}"
        )
    elif near is not None and near.others:
        has = ", ".join(
            f"{name} {has}, not {name}{spec}" for name, (has, spec) in near.others.items()
        )
        if of_files and not in_project:
            start = f"imgbuild init {' '.join(f'--relax {name}' for name in near.others)}"
        console.info(
            f"nearest locked target: {near.target} has {has}; to extend this target, run {start}"
        )
    if of_files and not in_project:
        console.info(
            "to compare the requirements with every target, also those to which packages must be "
            "added, run imgbuild init in the folder of the project"
        )
    for item in request.requests:
        if text := source_only.absence_text(item.package):
            console.info(f"{item.package}: {text}")
    console.info(
        "no locked target satisfies the request; solving takes up to 6 minutes if packages are "
        "not in the cache"
    )


def _is_place(word: str) -> bool:
    """Whether a word is the path of a file or folder instead of a package."""
    if "@" in word or "://" in word:
        return False
    return "/" in word or word in (".", "..") or Path(word).is_file()


def _add_indexes(session: Session, indexes: Mapping[str, PackageIndex]) -> Session:
    every = {**session.matrix.indexes, **indexes}
    matrix = msgspec.structs.replace(session.matrix, indexes=every)
    return msgspec.structs.replace(session, matrix=matrix)


def _add_file_requirements(
    request: ResolveRequest, places: Sequence[str], session: Session
) -> ResolveRequest:
    """Add the requirements and the indexes that files declare to `request`.

    Ignored requirements are reported.
    """
    matrix = session.matrix
    declared = declared_files.read_places(places)
    for line in declared_files.unread_entries(declared):
        console.info(f"not read: {line}")
    python = declared_requests.python_for_request(declared, request, matrix)
    request = msgspec.structs.replace(request, python=python)
    base = matrix.bases[resolve_request.requested_base(request, matrix)]
    tags = WheelTags(python=base.python, glibc=base.glibc, arch=request.arches[0])
    markers = tags.markers
    demands = declared_requests.split_demands(declared, markers)
    for item in demands.addressed:
        console.warn(f"{item} is ignored, because only versions on an index can be resolved")
    requests = declared_requests.combine_requests(
        request.requests, declared_requests.requested_packages(declared, request, matrix)
    )
    if not requests:
        message = f"{', '.join(declared.files) or 'the files'}: no requirements found"
        raise InputError(message, hint="specify a file that requires packages")
    names = {item.package for item in requests}
    bounds = [str(item) for item in demands.bounds if item.package not in names]
    if bounds:
        shown = join_first(bounds, BOUNDS)
        console.info(f"constraints on packages that no line requires are ignored: {shown}")
    releases = cuda_releases(declared, markers)
    cut_off = declared.cut_off.day if declared.cut_off is not None else None
    if declared.indexes:
        of_files = declared_files.find_indexes(
            declared.indexes,
            [item for item in demands.named if item.package not in request.indexes],
            matrix,
            tags,
            Context.open(console, offline=session.options.offline),
            published=locked.locked_packages(session.project),
        )
        assigned = {**of_files.packages, **request.indexes}
        request = msgspec.structs.replace(request, indexes=assigned, index_rows=of_files.indexes)
    return msgspec.structs.replace(
        request,
        requests=requests,
        cuda=request.cuda or (releases[0] if len(releases) == 1 else None),
        as_of=request.as_of or cut_off,
    )


@contextlib.contextmanager
def _suggest_similar_names(similar: Mapping[str, str]) -> Iterator[None]:
    """Suggest similar names for packages that no target has, as warnings and in an InputError."""
    questions = [
        f"no target has the package {package}; did you mean {near}?"
        for package, near in similar.items()
    ]
    for question in questions:
        console.warn(question)
    try:
        yield
    except InputError as error:
        if not questions:
            raise
        hint = f"{error.message}; {error.hint}"
        raise InputError(" ".join(questions), hint=hint) from error


COMMAND = create_command(resolve)
