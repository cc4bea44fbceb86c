"""`matrix.yaml` to a `Matrix`, or to one error that holds every problem in it.

Comes in: a path. Goes out: the frozen matrix. Each problem has file, line, column, the path of the
key, the value found, what was expected, and the nearest right name.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import inspect

from imgbuild.errors import InputError, Problem
from imgbuild.matrix.check import Notes, check_shared
from imgbuild.matrix.document import parse
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.targets import check_targets
from imgbuild.matrix.walk import walk


def load(path: Path) -> Matrix:
    """Read the matrix at `path`; InputError with all problems, in the order of the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        hint = "run imgbuild where matrix.yaml is, or name it with --matrix"
        raise InputError(message, hint=hint) from error
    return loads(data, str(path))


def loads(data: bytes, file: str) -> Matrix:
    """Read a matrix from `data`; `file` is its name in problems."""
    document = parse(data, file)
    if document.root is None:
        raise _refusal(file, document.problems)
    walked = walk(document.root, inspect.type_info(Matrix), file)
    notes = Notes(walked, file)
    check_shared(notes)
    check_targets(notes)
    problems = (*document.problems, *walked.problems, *notes.problems)
    if problems:
        raise _refusal(file, problems)
    try:
        return msgspec.convert(walked.value, Matrix)
    except msgspec.ValidationError as error:  # a rule of the model that the walk does not know
        raise _refusal(file, (Problem(file=file, message=str(error)),)) from error


def _refusal(file: str, problems: tuple[Problem, ...]) -> InputError:
    ordered = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
    count = f"{len(ordered)} problem" + "s" * (len(ordered) != 1)
    return InputError(f"{file} has {count}", problems=tuple(ordered))
