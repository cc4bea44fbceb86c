"""Validates values of a lock, such as paths, labels and users.

A lock can be untrusted, and its strings are used in scripts, mounts and the user's matrix.
"""

# A separate module: only checks.
from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

import msgspec

from imgbuild.errors import InputError
from imgbuild.lock import addresses
from imgbuild.lock.model import Extends, Lock, LockedProject
from imgbuild.matrix import flashinfer, settings
from imgbuild.matrix.fields import GPU_LABEL, SDIST, STANDALONE_PREFIX, WHEEL
from imgbuild.matrix.notes import ProblemNotes, ValuePath

TAG = 128  # characters of a tag, which a target's name is


def refuse_invalid_lock(lock: Lock, file: str, *, hint: str) -> None:
    """Raise InputError, with `hint` and all problems, if `lock` is invalid.

    `file` is the file name in the message.
    """
    notes = ProblemNotes(file)
    if len(lock.target) > TAG:
        expected = f"at most {TAG} characters"
        notes.note(("target",), "the name is too long for a tag", expected=expected)
    for path, day in (
        (("as_of",), lock.as_of),
        *(
            (("arch", arch, "security"), resolution.security)
            for arch, resolution in lock.arch.items()
        ),
    ):
        _day(notes, path, day)
    _settings(notes, lock)
    for number, drop in enumerate(lock.drop):
        for place, pattern in enumerate(drop.paths):
            settings.check_relative(notes, ("drop", number, "paths", place), pattern)
    for arch, resolution in lock.arch.items():
        for number, built in enumerate(resolution.built):
            here = ("arch", arch, "built", number)
            notes.check_form(
                (*here, "sdist", "file"),
                built.sdist.file,
                SDIST,
                "file name of an sdist: .tar.gz or .zip",
            )
            notes.check_form(
                (*here, "wheel", "file"), built.wheel.file, WHEEL, "file name of a wheel"
            )
    _check_python(notes, lock)
    if lock.extends is not None:
        _check_extends(notes, lock.extends)
    if lock.project is not None:
        _project(notes, lock.project)
    if notes.problems:
        message = f"{file} is not a valid lock"
        raise InputError(message, problems=tuple(notes.problems), hint=hint)


def _check_python(notes: ProblemNotes, lock: Lock) -> None:
    base = lock.base
    urls = base.standalone or {}
    if urls and base.interpreter != f"{STANDALONE_PREFIX}/bin/python{base.python}":
        expected = f"{STANDALONE_PREFIX}/bin/python{base.python}"
        message = "the base has a standalone build of Python"
        notes.note(("base", "interpreter"), message, value=base.interpreter, expected=expected)
    for arch, resolution in lock.arch.items():
        here: ValuePath = ("arch", arch, "python")
        archive = resolution.python or None
        if (archive is not None) != (arch in urls):
            message = "the Python archive and its URL must be set together"
            notes.note(
                here, message, expected=f"a URL for {arch} in base.standalone, or no archive"
            )
        elif archive is not None and not archive.version.startswith(f"{base.python}."):
            message = "the archive contains a different Python version than the base"
            notes.note((*here, "version"), message, value=archive.version, expected=base.python)


def _day(notes: ProblemNotes, path: ValuePath, day: str | msgspec.UnsetType) -> None:
    if isinstance(day, str):
        try:
            datetime.date.fromisoformat(day)
        except ValueError:
            notes.note(path, "no such day", value=day, expected="a date as YYYY-MM-DD")


def _settings(notes: ProblemNotes, lock: Lock) -> None:
    image = lock.settings
    here: ValuePath = ("settings",)
    settings.check_folder(notes, (*here, "user", "home"), image.user.home)
    settings.check_environment(notes, (*here, "env"), image.env)
    settings.environment_first(notes, (*here, "env"), image.prefix, image.env)
    _check_equal(notes, (*here, "env"), image.env, {flashinfer.VARIABLE: lock.flashinfer})
    _check_equal(notes, (*here, "labels"), image.labels, {
        "org.opencontainers.image.title": lock.target,
        "dev.imgbuild.target": lock.target,
        "dev.imgbuild.base": lock.base.name,
        "dev.imgbuild.cuda": lock.cuda,
        "dev.imgbuild.python": lock.base.python,
        "dev.imgbuild.flashinfer": lock.flashinfer,
        "dev.imgbuild.as-of": lock.as_of,
    })  # fmt: skip
    gpu = image.labels.get(GPU_LABEL, "")
    if not re.fullmatch(r"([0-9]+\.[0-9]( [0-9]+\.[0-9])*)?", gpu):
        expected = 'compute capabilities, such as "9.0"'
        path = (*here, "labels", GPU_LABEL)
        notes.note(path, "the text does not have the expected format", value=gpu, expected=expected)
    for number, word in enumerate(image.entrypoint[:1]):
        settings.check_folder(notes, (*here, "entrypoint", number), word)
    for link, to in image.links.items():
        settings.link_text(notes, (*here, "links", link), link, to)


def _check_equal(
    notes: ProblemNotes, path: ValuePath, values: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    for name, text in expected.items():
        if values.get(name, text) != text:
            message = "is inconsistent with the rest of the lock"
            notes.note((*path, name), message, value=values[name], expected=text)


def _check_extends(notes: ProblemNotes, extends: Extends) -> None:
    for path, file in extends.files.items():
        here: ValuePath = ("extends", "files", path)
        settings.check_place(notes, here, path)
        if settings.is_outside(file.file):
            message = "the file is outside the repository"
            expected = "a path below the folder of matrix.yaml"
            notes.note((*here, "file"), message, value=file.file, expected=expected)
    for path, to in extends.links.items():
        settings.check_place(notes, ("extends", "links", path), path)
        settings.link_text(notes, ("extends", "links", path), path, to)


def _project(notes: ProblemNotes, project: LockedProject) -> None:
    for package, text in project.sources.items():
        here: ValuePath = ("project", "sources", package)
        expected = "a URL in the form that `imgbuild lock` writes"
        try:
            source = addresses.parse_address(text)
        except ValueError as error:
            notes.note(here, str(error), value=addresses.strip_secrets(text), expected=expected)
            continue
        if isinstance(source, addresses.GitAddress):
            if not addresses.is_commit(source.rev):
                notes.note(here, "is not a commit", value=text, expected=expected)
            if package not in project.trees:
                notes.note(here, "the tree of the package is missing from `trees`", value=text)
        elif package in project.trees:
            notes.note(
                ("project", "trees", package), "the source of the package is not a git repository"
            )
    for package, tree in project.trees.items():
        here = ("project", "trees", package)
        if not addresses.is_commit(tree):
            notes.note(here, "not a git hash", value=tree, expected="40 or 64 hex digits")
        if package not in project.sources:
            notes.note(here, "the source of the package is missing from `sources`")
