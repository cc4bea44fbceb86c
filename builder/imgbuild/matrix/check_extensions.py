"""Validates a matrix that extends published targets, without their locks."""

from __future__ import annotations

import re

from imgbuild.matrix.check import check_index, check_mirrors, check_sdists, debian_packages
from imgbuild.matrix.check_targets import check_gpus, check_row
from imgbuild.matrix.extension import Extension, Extensions
from imgbuild.matrix.notes import ProblemNotes, ValuePath
from imgbuild.matrix.settings import check_folder, check_place, is_outside
from imgbuild.system.syntax import valid_requirement


def check_extensions(notes: ProblemNotes, matrix: Extensions) -> None:
    """Check everything that does not depend on the lock of a published target."""
    if not matrix.published:
        message = "no published target is listed"
        notes.note(("published",), message, expected="at least one published target")
    for name, published in matrix.published.items():
        _image(notes, ("published", name, "image"), published.image)
        _check_inside(notes, ("published", name, "lock"), published.lock, "folder")
    for name, index in matrix.indexes.items():
        if index.url is None:
            message = "url is missing (only the default index can omit it)"
            notes.note(("indexes", name), message, key=True, expected="url: https://…")
        check_index(notes, ("indexes", name), index)
    check_mirrors(notes, ("mirrors",), matrix.mirrors)
    check_sdists(notes, matrix.sdists)
    if not matrix.targets:
        notes.note(("targets",), "no target is defined", expected="at least one target")
    for name, row in matrix.targets.items():
        _row(notes, ("targets", name), row, matrix)


def _row(notes: ProblemNotes, path: ValuePath, row: Extension, matrix: Extensions) -> None:
    if path[-1] in matrix.published:
        message = "a published target already has this name"
        notes.note(path, message, key=True, expected="another name")
    forms = {"extends": row.extends, "like": row.like}
    for key, name in forms.items():
        if name is not None:
            here = (*path, key)
            notes.check_choice(here, name, matrix.published, "published target", of=("published",))
    if (row.extends is None) == (row.like is None):
        message = "a row must have exactly one of `extends` and `like`"
        notes.note(path, message, key=True, expected="extends: TARGET, or like: TARGET")
    if row.cuda is not None and row.extends is not None:
        message = "the CUDA release is already set by the published target"
        notes.note((*path, "cuda"), message, expected="no `cuda`, or `like` instead of `extends`")
    if row.gpu and row.extends is not None:
        message = "the GPUs are already set by the published target"
        notes.note((*path, "gpu"), message, expected="no `gpu`, or `like` instead of `extends`")
    check_gpus(notes, (*path, "gpu"), row.gpu)
    _check_requirements(notes, path, row)
    for package, index in row.indexes.items():
        here = (*path, "indexes", package)
        notes.check_choice(here, index, matrix.indexes, "index", of=("indexes",))
    check_row(notes, path, row)
    debian_packages(notes, (*path, "packages"), row.packages, example="rsync")
    _check_places(notes, path, row)
    for number, word in enumerate((row.entrypoint or ())[:1]):
        check_folder(notes, (*path, "entrypoint", number), word)


def _check_requirements(notes: ProblemNotes, path: ValuePath, row: Extension) -> None:
    for number, file in enumerate(row.requirements):
        _check_inside(notes, (*path, "requirements", number), file, "file")
    for number, line in enumerate(row.add):
        if valid_requirement(line) is None:
            expected = "a requirement, such as ray[default]>=2.45"
            message = "not a valid PEP 508 requirement"
            notes.note((*path, "add", number), message, value=line, expected=expected)
    for key, names in (("extras", row.extras), ("groups", row.groups)):
        if names and not row.requirements:
            message = f"`{key}` applies to the files listed in `requirements`"
            notes.note((*path, key), message, expected="requirements: [pyproject.toml]")


def _check_places(notes: ProblemNotes, path: ValuePath, row: Extension) -> None:
    files, links = row.files, row.links
    for added in (*files, *links):
        here = (*path, "links" if added in links else "files", added)
        if added not in links:
            check_folder(notes, here, added)
        check_place(notes, here, added)
        for other in (*files, *links):
            if added.startswith(f"{other}/"):
                what = "link" if other in links else "file"
                message = f"{other} is an added {what}, which cannot have files below it"
                notes.note(here, message, key=True, value=added, expected="another path")
    for added, file in files.items():
        if added in links:
            message = "a link has the same path"
            notes.note(
                (*path, "files", added), message, key=True, expected="only one of the two entries"
            )
        _check_inside(notes, (*path, "files", added, "from"), file.source, "file")


def _check_inside(notes: ProblemNotes, path: ValuePath, source: str, what: str) -> None:
    if is_outside(source):
        message = f"the {what} is outside the repository"
        if source.startswith("/"):
            message = "the path is absolute and may not exist on other machines"
        expected = f"a path below the folder of this file; copy the {what} there"
        notes.note(path, message, value=source, expected=expected)


def _image(notes: ProblemNotes, path: ValuePath, image: str) -> None:
    if not image or image.startswith("oci:"):
        return
    expected = "HOST/REPOSITORY, without a tag, or oci:FOLDER"
    if re.search(r":[^/]*$", image.partition("@")[0]):
        message = "a tag is not accepted, because the lock identifies the image"
        notes.note(path, message, value=image, expected=expected)
    else:
        form = r"[a-z0-9.\[\]:-]+(/[a-z0-9._-]+)+(@sha256:[0-9a-f]{64})?"
        notes.check_form(path, image, form, expected)
