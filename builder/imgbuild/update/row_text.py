"""Adds a row to `matrix.yaml` below the row that the new row is based on.

The rest of the file, its comments and its order do not change.
"""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Container
from typing import Any

import msgspec

from imgbuild.errors import InputError
from imgbuild.matrix import load
from imgbuild.matrix.model import Base, Matrix, StandalonePython, Target
from imgbuild.resolve.edit_row import edit_yaml
from imgbuild.update.trial import MatrixRow

WIDTH = 96
DROPPED_KEYS = ("recommended", "retired")
BY_HAND_REMEDY = "write each target and each base on separate lines, or add the row by hand"


def insert_row(data: bytes, file: str, source: str, row: MatrixRow, base_of: str) -> bytes:
    """Insert `row` into the matrix `data` below `source`, the row that it is based on.

    A missing base is written below the base `base_of`. Raises InputError if the new text is not
    equivalent to the matrix with the new row.
    """
    before = load.parse_matrix(data, file)
    text = data.decode()
    target = before.targets[source]
    for name, base in row.bases.items():
        block = _block(text, "bases", base_of, file)
        written = _base_lines(_block_content(text, block), before.bases[base_of], base)
        text = _insert_lines(text, block, name, written)
    block = _block(text, "targets", source, file)
    written = _row_lines(_block_content(text, block), target, row.target)
    result = _insert_lines(text, block, row.name, written).encode()
    _require_same(before, row, result, file)
    return result


def _require_same(before: Matrix, row: MatrixRow, data: bytes, file: str) -> None:
    try:
        after = load.parse_matrix(data, file)
    except InputError as error:
        message = f"{file}: cannot add the row {row.name}: {error.message}"
        raise InputError(message, problems=error.problems, hint=BY_HAND_REMEDY) from error
    if after != row.add_to_matrix(before):
        message = f"{file}: cannot add the row {row.name} without changing other values"
        raise InputError(message, hint=BY_HAND_REMEDY)


def _block(text: str, section: str, name: str, file: str) -> tuple[int, int]:
    """Return the start and end offsets of the block `name` in a section."""
    start = re.search(rf"^{section}:[ ]*(#.*)?\n", text, re.MULTILINE)
    stop = re.search(r"^\S(?<!#)", text[start.end() :], re.MULTILINE) if start else None
    end = start.end() + stop.start() if start and stop else len(text)
    key = re.compile(rf"^( +)(['\"]?){re.escape(name)}\2:[ ]*(#.*)?\n", re.MULTILINE)
    match = key.search(text, start.end(), end) if start else None
    if match is None:
        message = f"{file}: {section}.{name} is not on separate lines"
        raise InputError(message, hint=BY_HAND_REMEDY)
    after = re.compile(rf"^ {{0,{len(match[1])}}}\S", re.MULTILINE).search(text, match.end(), end)
    last = after.start() if after else end
    return match.start(), match.start() + len(text[match.start() : last].rstrip()) + 1


def _block_content(text: str, block: tuple[int, int]) -> str:
    return textwrap.dedent(text[block[0] : block[1]].split("\n", 1)[1])


def _insert_lines(text: str, block: tuple[int, int], name: str, lines: str) -> str:
    start, end = block
    indent = re.match(r" *", text[start:])[0]  # type: ignore[index]
    inner = re.match(r" *", text[start:].split("\n", 1)[1])[0]  # type: ignore[index]
    body = textwrap.indent(lines.rstrip("\n") + "\n", inner)
    head = text[:end] if text[:end].endswith("\n") else text[:end] + "\n"
    return f"{head}\n{indent}{name}:\n{body}{text[end:]}"


def _row_lines(lines: str, before: Target, after: Target) -> str:
    def _edit_row(row: Any) -> None:
        for key in DROPPED_KEYS:
            row.pop(key, None)
        if after.summary != before.summary:
            row["summary"] = _folded_scalar(after.summary)
        if after.base != before.base:
            row["base"] = after.base
        row["as_of"] = after.as_of
        for package, version in after.pins.items():
            if before.pins[package] != version:
                row["pins"][package] = _quoted_scalar(version)
        if after.flashinfer != before.flashinfer:
            row["flashinfer"]["reason"] = _folded_scalar(after.flashinfer.reason)
        row["tested"] = _folded_scalar(after.tested)

    return edit_yaml(lines, _edit_row, "a row", hint=BY_HAND_REMEDY)


def _base_lines(lines: str, before: Base, after: Base) -> str:
    def _edit_base(base: Any) -> None:
        for field in msgspec.structs.fields(after):
            value = getattr(after, field.name)
            if value == getattr(before, field.name):
                continue
            if isinstance(value, StandalonePython):
                for key in ("archives", "sha256"):
                    base[field.encode_name][key] = {
                        str(arch): text for arch, text in getattr(value, key).items()
                    }
            else:
                base[field.encode_name] = [str(item) for item in value]

    return edit_yaml(lines, _edit_base, "a base", hint=BY_HAND_REMEDY)


def _quoted_scalar(text: str) -> Any:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    return DoubleQuotedScalarString(text)


def _folded_scalar(text: str) -> Any:
    """Format `text` as a scalar, on one line or folded (`>-`)."""
    from ruamel.yaml.scalarstring import FoldedScalarString

    words = " ".join(text.split())
    if len(words) <= WIDTH - 16:
        return words
    value = FoldedScalarString(words)
    places, position = [], 0
    for line in textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)[:-1]:
        position += len(line)
        places.append(position)
        position += 1
    value.fold_pos = places
    return value


def renew_texts(target: Target, source: str, row: MatrixRow, made: datetime.date) -> Target:
    """Set the texts of a new row: its changes, and a note that the image was not run."""
    moves = version_changes(target, row.target)
    words = ", ".join(f"{package} {before} to {after}" for package, before, after in moves)
    base = f"; on the base {row.target.base}" if row.target.base != target.base else ""
    arches = " and ".join(row.target.arch)
    tested = (
        f"The image was not run. Made of {source} by imgbuild update on {made}: {words}{base}. "
        f"The audit found no errors on {arches}."
    ).replace(": ;", ":")
    flashinfer = row.target.flashinfer
    if any(before in flashinfer.reason for _, before, _ in moves):
        reason = f"as in {source}: {flashinfer.reason}"
        flashinfer = msgspec.structs.replace(flashinfer, reason=reason)
    return msgspec.structs.replace(
        row.target,
        summary=_updated_summary(target.summary, moves),
        flashinfer=flashinfer,
        tested=tested,
        recommended="",
        retired="",
    )


def version_changes(before: Target, after: Target) -> list[tuple[str, str, str]]:
    """Return the package, old version and new version of each changed pin."""
    return [
        (package, version, after.pins[package])
        for package, version in before.pins.items()
        if after.pins.get(package, version) != version
    ]


def _updated_summary(text: str, moves: list[tuple[str, str, str]]) -> str:
    for package, before, after in moves:
        words = package.removesuffix("-python").replace("-", "[-_ ]?")

        def _renamed(match: re.Match[str], before: str = before, after: str = after) -> str:
            parts = match[2].split(".")
            if before.split(".")[: len(parts)] != parts:
                return match[0]
            return match[1] + ".".join(after.split(".")[: len(parts)])

        text = re.sub(rf"(?i)(\b{words} )(\d+(?:\.\w+)*)", _renamed, text)
    return text


def new_row_name(
    origin: str, former: Target, source: Target, row: MatrixRow, taken: Container[str]
) -> str:
    """Return an unused name for a new row, such as cu130-trl1.16.0 for a row based on cu130-trl.

    `source` is the name of the row to update, and `former` is the row. `origin` is the name of the
    original row from which `former` was derived. The version of the package at the end of `origin`
    is appended. If the name is taken, the changed packages are appended, too.
    """
    words = origin.rsplit("-", 1)
    stem = re.sub(r"(?<=[a-z])\d[\w.]*\Z", "", words[-1])
    head = f"{words[0]}-{stem}" if len(words) > 1 else stem
    after = row.target.pins
    named = next((package for package in after if package.partition("-")[0] == stem), None)
    is_moved = named is not None and after[named] != former.pins.get(named)
    name = f"{head}{_name_part(after[named])}" if named is not None and is_moved else origin
    if name in taken:
        moves = [f"{package.partition('-')[0]}{_name_part(version)}"
                 for package, _, version in version_changes(source, row.target)]  # fmt: skip
        bases = [base.rpartition("-")[2] for base in row.bases]
        name = "-".join([name, *(moves or bases)[:1]])
    unnumbered, number = name, 2
    while name in taken:
        name = f"{unnumbered}-{number}"
        number += 1
    return name


def _name_part(version: str) -> str:
    return re.sub(r"[^a-z0-9.]+", ".", version.lower())
