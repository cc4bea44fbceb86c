"""Validates image settings in matrices and locks, after their types were checked."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from imgbuild.matrix.fields import FOLDER, LABEL, VARIABLE
from imgbuild.matrix.notes import ProblemNotes, ValuePath, nearest_choice

# Folders that are links in a Debian root, have a special mode, or are mount points at run time.
RESERVED_FOLDERS = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var/run", "/var/lock"),
    *("/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys"),  # noqa: S108  (nothing is written there)
    *("/root", "/var/mail", "/var/spool"),
)


def check_environment(notes: ProblemNotes, path: ValuePath, names: Iterable[str]) -> None:
    """Check the names of environment variables."""
    for name in names:
        here = (*path, name)
        notes.check_form(here, name, VARIABLE, "letters, digits and _, as in a shell", key=True)
        if name == "LD_LIBRARY_PATH":
            message = (
                "LD_LIBRARY_PATH would hide the driver libraries that the container runtime"
                " provides"
            )
            notes.note(
                here,
                message,
                key=True,
                expected="symbolic links (`links:`) instead of this variable",
            )


def environment_first(
    notes: ProblemNotes, path: ValuePath, prefix: str, variables: Mapping[str, str], *more: str
) -> None:
    """Check that PATH begins with the environment in `prefix`, and that VIRTUAL_ENV is `prefix`.

    Variables that are not set are not checked. `variables` maps names to values. `more` is the end
    of the path of a value in the file.
    """
    search, venv = variables.get("PATH"), variables.get("VIRTUAL_ENV")
    if prefix and search is not None and search.split(":")[0] != f"{prefix}/bin":
        message, expected = "the commands of the environment are not first", f"{prefix}/bin:…"
        notes.note((*path, "PATH", *more), message, value=search, expected=expected)
    if prefix and venv is not None and venv != prefix:
        message = "not the environment of the image"
        notes.note((*path, "VIRTUAL_ENV", *more), message, value=venv, expected=prefix)


def check_labels(notes: ProblemNotes, path: ValuePath, names: Iterable[str]) -> None:
    """Check the names of labels."""
    for name in names:
        here = (*path, name)
        notes.check_form(
            here, name, LABEL, "a reversed domain name, such as org.example.team", key=True
        )


def check_folder(notes: ProblemNotes, path: ValuePath, text: str) -> None:
    """Check that `text` is an absolute path of plain names."""
    expected = "an absolute path without . or .., such as /opt/venv"
    if {".", ".."} & set(text.split("/")):
        notes.note(path, "the path is not normalized", value=text, expected=expected)
    else:
        notes.check_form(path, text, FOLDER, expected)


def is_outside(source: str) -> bool:
    """Return whether `source` is outside of the folder of the matrix, to which it is relative."""
    return source.startswith("/") or posixpath.normpath(source).split("/")[0] == ".."


def check_place(notes: ProblemNotes, path: ValuePath, text: str) -> None:
    """Record a problem if an added file at a path in the image would damage existing files."""
    for taken in RESERVED_FOLDERS:
        if text == taken or text.startswith(f"{taken}/"):
            near = f"/usr{text}" if taken.startswith(("/bin", "/sbin", "/lib")) else None
            message = f"{taken} is not a plain folder of the image"
            expected = "a path such as /opt/team/train.sh"
            notes.note(path, message, key=True, value=text, expected=expected, near=near)


def check_relative(notes: ProblemNotes, path: ValuePath, text: str) -> None:
    """Check that `text` is a pattern for relative paths in a package."""
    if text.startswith(("/", "..")) or text != posixpath.normpath(text):
        expected = "a path below the prefix, without a leading /, . or .."
        normal = posixpath.normpath(text).lstrip("/")
        near = None if normal.startswith("..") else nearest_choice(text, [normal])
        notes.note(path, "not a path in the package", value=text, expected=expected, near=near)


def link_text(notes: ProblemNotes, path: ValuePath, link: str, to: str) -> None:
    """Check the target of the symbolic link at `link`."""
    if posixpath.normpath(posixpath.join(posixpath.dirname(link), to)) == link:
        notes.note(path, "the link refers to itself", value=to, expected="another path")
    elif to != posixpath.normpath(to) or any(ord(c) < 33 for c in to):
        expected = posixpath.normpath(to)
        notes.note(path, "the path is not normalized", value=to, expected=expected)
