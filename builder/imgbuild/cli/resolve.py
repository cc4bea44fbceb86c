"""`imgbuild resolve`: worlds that are no target yet, from requirements to a row of the matrix."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError, NoSolution

ASK = "What is asked for"


Wanted = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[REQUIREMENT]...",
        help="What the world must have: vllm==0.9.2, 'trl>=0.18', verl.",
        show_default=False,
    ),
]
Want = Annotated[
    list[str] | None,
    typer.Option(
        "--want",
        metavar="LIST",
        help="The same as positional requirements, with commas between; repeatable.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
Have = Annotated[
    list[str] | None,
    typer.Option(
        "--have",
        metavar="LIST",
        help="Exact versions that are there already and must stay; repeatable.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
Cuda = Annotated[
    str | None,
    typer.Option(
        "--cuda",
        metavar="RELEASE",
        help="The CUDA release, such as 12.6. By default that of the torch that fits.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
ArchList = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        metavar="LIST",
        help="x86_64, arm64 or both, with a comma between. By default this machine's.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="DATE",
        help="Only files uploaded before this day, 00:00 UTC. By default all until now.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="X.Y",
        help="The Python; a base of the matrix must have it.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="NAME",
        help="A base of the matrix. By default the one of most targets.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
Assigned = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        metavar="PACKAGE=INDEX",
        help="Take a package from another index of the matrix; repeatable.",
        rich_help_panel=ASK,
        show_default=False,
    ),
]
RowName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What the row is called.", show_default=False),
]


def resolve(
    wanted: Wanted = None,
    want: Want = None,
    have: Have = None,
    cuda: Cuda = None,
    arch: ArchList = None,
    as_of: AsOf = None,
    python: Python = None,
    base: Base = None,
    index: Assigned = None,
    name: RowName = None,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Find a world that holds what you ask for: its packages, why each version, a row to paste.

    No wheel is downloaded: METADATA and Python code are judged where they lie, shared objects (ELF,
    CUDA) are not; `imgbuild lock` of the row reads these too. Writes nothing but the cache. An
    architecture on which the world is impossible is said to be, with the reasons and the nearest
    possible worlds; the exit status is 8 then. Pages of indexes are never kept, so that `--offline`
    refuses whatever has to be looked up.

    Examples:

        imgbuild resolve vllm==0.9.2 trl --cuda 12.6 --arch x86_64,arm64

        imgbuild resolve --have torch==2.8.0 --want vllm,trl,verl

        imgbuild resolve vllm==0.8.5.post1 trl --as-of 2025-06-20 --json
    """
    from imgbuild.cli import _resolve_lines as words
    from imgbuild.matrix import constraints
    from imgbuild.pipeline import targets
    from imgbuild.resolve import answer, request

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    session = targets.open_session(matrix, targets.Options(offline=offline))
    assigned = request.indexes_of(index or [], session.matrix)
    asked, named = request.read([*(wanted or []), *(want or [])], have or [], assigned)
    ask = request.ResolveRequest(
        requests=asked,
        arches=request.arches_of(arch or []),
        cuda=request.cuda_of(cuda, named),
        as_of=_day(as_of),
        base=base,
        python=None if python is None else request.python_of(python),
        indexes=assigned,
        name=name,
    )
    inputs = session.inputs()
    learned = constraints.read(session.project.images)
    found = answer.answer(ask, session.matrix, learned, inputs.context)
    _options.answer(found, words.lines(found), json=json)
    if words.say_refusals(found):
        raise typer.Exit(NoSolution.exit_code)


def _day(text: str | None) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        message = f"--as-of {text} is no day"
        raise InputError(message, hint="--as-of 2025-06-20") from error
