"""Edits the additions of a row in a user's `matrix.yaml`, and preserves comments and order."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement

from imgbuild import codec
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.lock import published
from imgbuild.system import boundary
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package

KEYS_BEFORE = ("extends", "like", "summary", "requirements", "extras", "groups")
OFFSET = re.compile(r"^( *)[\w-]+:[^\n]*\n\1 +- ", re.MULTILINE)
WIDE_LINE = 1 << 20  # lines are not folded

Row = Any  # a mapping of ruamel.yaml


def add_to_row(
    path: Path, name: str, requirements: Sequence[Requirement], system: Sequence[str]
) -> list[str]:
    """Add `requirements` and Debian packages `system` to row `name`, and describe each change.

    `path` is the matrix. A requirement replaces an earlier one for the same package. Raises
    InputError, and leaves the matrix unchanged, if it would become invalid.
    """
    changes: list[str] = []

    def _edit_additions(row: Row) -> None:
        for requirement in requirements:
            package = normalize_package(requirement.name)
            former = _remove_addition(row, package)
            _append_value(row, "add", str(requirement))
            changes.append(
                f"{former} -> {requirement}" if former else f"{requirement} added to {name}"
            )
        for deb in system:
            if deb not in (row.get("packages") or ()):
                _append_value(row, "packages", deb)
                changes.append(f"Debian package {deb} added to {name}")

    _write_edited(path, name, _edit_additions)
    return changes


def remove_from_row(
    path: Path, name: str, packages: Sequence[str], system: Sequence[str]
) -> list[str]:
    """Remove `packages` and Debian packages `system` from row `name`, and describe each change.

    `path` is the matrix. Raises InputError if the row does not add a package.
    """
    changes: list[str] = []

    def _edit_removals(row: Row) -> None:
        for package in packages:
            former = _remove_addition(row, normalize_package(package))
            if former is None:
                message = f"{path}: {package} is not an addition of targets.{name}"
                raise InputError(message, hint=_row_additions(row))
            changes.append(f"{former} removed from {name}")
        for deb in system:
            debs = row.get("packages") or []
            if deb not in debs:
                message = f"{path}: the Debian package {deb} is not an addition of targets.{name}"
                raise InputError(message, hint=_row_additions(row))
            debs.remove(deb)
            _drop_empty(row, "packages")
            changes.append(f"Debian package {deb} removed from {name}")

    _write_edited(path, name, _edit_removals)
    return changes


def _row_additions(row: Row) -> str:
    names = [*_lines(row), *(row.get("requires") or ()), *(row.get("pins") or ())]
    debs = list(row.get("packages") or ())
    words = [f"the target adds {', '.join(names)}"] if names else []
    words += [f"Debian packages {', '.join(debs)}"] if debs else []
    hint = "; ".join(words) or "the target has no additions"
    return f"{hint}; to omit a requirement in the project's files, use `exclude:`"


def _lines(row: Row) -> list[str]:
    return [str(line) for line in row.get("add") or ()]


def _remove_addition(row: Row, package: str) -> str | None:
    """Return the text of the removed addition, or None if `row` does not add `package`."""
    former = None
    for place, line in reversed(list(enumerate(_lines(row)))):
        if normalize_package(parse_requirement(line).name) == package:
            former = line
            del row["add"][place]
    _drop_empty(row, "add")
    for key in ("requires", "pins"):
        if package in (row.get(key) or ()):
            value = row[key].pop(package)
            former = f"{package}=={value}" if key == "pins" else f"{package}{value.get('spec', '')}"
            _drop_empty(row, key)
    return former


def _drop_empty(row: Row, key: str) -> None:
    if key in row and not row[key]:
        del row[key]


def _append_value(row: Row, key: str, value: str) -> None:
    if row.get(key):
        row[key].append(value)
        return
    row.pop(key, None)
    above = KEYS_BEFORE if key == "add" else (*KEYS_BEFORE, "add")
    place = max((list(row).index(each) + 1 for each in above if each in row), default=0)
    row.insert(place, key, [value])


class RowMove(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that move from the published target `old` to `new`, whose copy is at `lock`.

    `rows` maps each row to its key, "extends" or "like". `forget` maps rows to keys to remove.
    `keep_old` means that other rows still use `old`, and `image` that the entry keeps its `image`.
    """

    rows: Mapping[str, str]
    old: str
    new: str
    lock: str
    origin: str
    forget: Mapping[str, Sequence[str]] = {}
    keep_old: bool = False
    image: bool = True


def apply_move(path: Path, data: bytes, move: RowMove) -> bytes:
    """Return the content `data` of the matrix `path` after `move`, without writing a file."""

    def _edit_move(document: Row) -> None:
        for name, form in move.rows.items():
            row = document["targets"][name]
            row[form] = move.new
            for key in move.forget.get(name, ()):
                row.pop(key, None)
        table = document["published"]
        if move.new in table or move.new == move.old:
            entry = table[move.new]
        elif move.keep_old:
            entry = {"lock": move.lock, "from": move.origin}
            table.insert(list(table).index(move.old) + 1, move.new, entry)
        else:
            place, entry = list(table).index(move.old), table[move.old]
            comment = table.ca.items.pop(move.old, None)
            del table[move.old]
            table.insert(place, move.new, entry)
            if comment is not None:
                table.ca.items[move.new] = comment
        entry["lock"], entry["from"] = move.lock, move.origin
        if not move.image:
            entry.pop("image", None)
        if move.new != move.old and not move.keep_old:
            table.pop(move.old, None)

    return _edit_document(path, data, _edit_move)


def _write_edited(path: Path, name: str, edit: Callable[[Row], None]) -> None:
    before = boundary.read_regular_file(path)
    codec.write_bytes(
        path, _edit_document(path, before, lambda whole: edit(whole["targets"][name]))
    )
    try:
        published.load_matrix(path)
    except ImgbuildError:
        codec.write_bytes(path, before)
        raise


def _edit_document(path: Path, data: bytes, edit: Callable[[Row], None]) -> bytes:
    text = data.decode()
    crlf = text.count("\r\n") * 2 > text.count("\n")
    text = text.replace("\r\n", "\n")
    indented = OFFSET.search(text) is not None
    changed = edit_yaml(text, edit, str(path), hint="edit the file by hand", indented=indented)
    return (changed.replace("\n", "\r\n") if crlf else changed).encode()


def edit_yaml(
    text: str, edit: Callable[[Any], None], what: str, *, hint: str, indented: bool = True
) -> str:
    """Return the YAML document `text` after `edit`, with its comments.

    `indented` means that items of lists are indented below the key. InputErrors contain `what`, the
    name of the file, and `hint`.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    editor = YAML()
    editor.preserve_quotes = True
    editor.width = WIDE_LINE
    editor.indent(mapping=2, sequence=4 if indented else 2, offset=2 if indented else 0)
    try:
        document = editor.load(text)
        edit(document)
    except YAMLError as error:
        message = f"{what} cannot be edited: {str(error).splitlines()[0]}"
        raise InputError(message, hint=hint) from error
    written = io.StringIO()
    editor.dump(document, written)
    return written.getvalue()
