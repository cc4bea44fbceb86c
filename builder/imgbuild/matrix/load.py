"""Reads `matrix.yaml`; one error has every problem in it.

Each problem has file, line, column, the path of the key, the value found, what was expected, and
the most similar valid name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from imgbuild.errors import InputError, Problem
from imgbuild.matrix.check import check_sdists, check_shared
from imgbuild.matrix.check_targets import check_targets
from imgbuild.matrix.model import Matrix, PackageIndex
from imgbuild.matrix.notes import Notes
from imgbuild.matrix.validate import UNKNOWN, type_info, walk
from imgbuild.matrix.yaml_nodes import YamlDocument, content, parse
from imgbuild.system.amounts import count

AnyMatrix = TypeVar("AnyMatrix", bound=Matrix)


def load(path: Path) -> Matrix:
    """Read the matrix at `path`; InputError with all problems, in the order of the file."""
    try:
        data = content(path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        hint = "run imgbuild where matrix.yaml is, or name it with --matrix"
        raise InputError(message, hint=hint) from error
    return located(loads(data, str(path)), path.resolve().parent)


def located(matrix: AnyMatrix, folder: Path) -> AnyMatrix:
    """The matrix with folders of wheels that it names relative to itself (`file:wheels`) found."""
    indexes = {name: _resolved_index(index, folder) for name, index in matrix.indexes.items()}
    return msgspec.structs.replace(matrix, indexes=indexes)


def _resolved_index(index: PackageIndex, folder: Path) -> PackageIndex:
    kind, _, rest = (index.url or "").partition(":")
    if kind != "file" or rest.startswith("/"):
        return index
    path = quote(os.fsencode(os.path.normpath(folder / rest)), safe="/{}")
    return msgspec.structs.replace(index, url=f"file://{path}/")


def loads(data: bytes, file: str) -> Matrix:
    """Read a matrix from `data`; `file` is its name in problems."""
    return of_document(parse(data, file))


def of_document(document: YamlDocument) -> Matrix:
    """The matrix that `document` holds; InputError with all problems."""
    file = document.file
    if document.root is None:
        raise refusal(file, document.problems, document.text)
    walked = walk(document.root, type_info(Matrix), file)
    notes = Notes(file, walked.keys, walked.places)
    if not walked.uncertain:
        check_shared(notes, walked.value)
        check_sdists(notes, walked.value)
        check_targets(notes, walked.value)
    problems = (*document.problems, *walked.problems, *notes.problems)
    if problems:
        raise refusal(file, problems, document.text)
    try:
        return msgspec.convert(walked.value, Matrix)
    except msgspec.ValidationError as error:  # a rule of the model that the walk does not know
        raise refusal(file, (Problem(file=file, message=str(error)),), "") from error


def refusal(file: str, problems: tuple[Problem, ...], text: str) -> InputError:
    """The error that holds `problems` of the file with `text`.

    Unknown keys come first, since others may follow from them, then all in the order of the file.
    """
    lines = text.splitlines()
    ordered = [
        msgspec.structs.replace(problem, source=lines[problem.line - 1])
        if problem.line is not None and problem.line <= len(lines)
        else problem
        for problem in sorted(
            problems,
            key=lambda problem: (
                problem.message != UNKNOWN,
                problem.line or 0,
                problem.column or 0,
            ),
        )
    ]
    message = f"{file} has {count(len(ordered), 'problem')}"
    return InputError(message, problems=tuple(ordered))
