"""The `matrix.yaml` of a user's own repository: published targets, and what is added to them.

A row has only what it adds; everything else is the published target's, from its lock (see
`imgbuild.lock.published`). The JSON Schema is generated from these types.
"""

from __future__ import annotations

import datetime
import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from imgbuild.matrix.accepted import AcceptedCves, Waivers
from imgbuild.matrix.check import DEBIAN_PACKAGE, Notes, folder, mirrors, table, texts
from imgbuild.matrix.check_targets import configuration, versions
from imgbuild.matrix.fields import Form, Name, Package, Version
from imgbuild.matrix.model import (
    Drops,
    Labels,
    Link,
    PackageIndex,
    Registry,
    Sdists,
    Tested,
    Variable,
    Wanted,
)
from imgbuild.matrix.validate import Path
from imgbuild.values import Arch

# Folders that are links in a Debian root, that have a mode of their own, or that a runtime covers.
TAKEN = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var/run", "/var/lock"),
    *("/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys"),  # noqa: S108  (nothing is written there)
    *("/root", "/var/mail", "/var/spool"),
)


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all values here: keyword-only, unknown keys are errors."""


class PublishedSource(_Strict, frozen=True, rename={"origin": "from"}):
    """A target that others published: what it is, and where its layers are."""

    lock: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="folder with its lock.json and digests.json, relative to this file",
        ),
    ]
    origin: Annotated[
        str,
        msgspec.Meta(
            description="where that folder was copied from: an address, a path, or `catalogue`"
            " (comes with imgbuild); `imgbuild init --refresh` copies it again"
        ),
    ] = ""
    image: Annotated[
        str,
        msgspec.Meta(
            description="where its layers are: HOST/REPOSITORY, or oci:FOLDER; without it they are"
            " made again from the lock, byte for byte"
        ),
    ] = ""


class FileToAdd(_Strict, frozen=True, rename={"source": "from"}):
    """A file of the user's repository that is put into the image; it belongs to root."""

    source: Annotated[
        str, msgspec.Meta(min_length=1, description="path of the file, relative to this file")
    ]
    mode: Annotated[
        str, msgspec.Meta(pattern="^0[0-7]{3}$", description='permissions, in quotes: "0755"')
    ] = "0644"


class Extension(_Strict, frozen=True):
    """One row: a published target and what is added on top of it."""

    extends: Annotated[Name, msgspec.Meta(description="a target of `published`")]
    summary: Annotated[str, msgspec.Meta(description="one line for tables")]
    arch: Annotated[
        tuple[Arch, ...], msgspec.Meta(description="empty: all that the published target has")
    ] = ()
    as_of: Annotated[
        datetime.date | None,
        msgspec.Meta(
            description="what is added was uploaded before this day, 00:00 UTC;"
            " by default the day of the published target"
        ),
    ] = None
    pins: Annotated[
        dict[Package, Version], msgspec.Meta(description="added packages and exact versions")
    ] = {}
    requires: Annotated[
        dict[Package, Wanted], msgspec.Meta(description="added packages, and why")
    ] = {}
    packages: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="added Debian packages; their dependencies follow"),
    ] = ()
    files: Annotated[
        dict[str, FileToAdd], msgspec.Meta(description="added files, by absolute path in the image")
    ] = {}
    links: Annotated[
        dict[str, Link], msgspec.Meta(description="added symbolic links, by absolute path")
    ] = {}
    indexes: Annotated[
        dict[Package, Name],
        msgspec.Meta(description="added packages that come from another index than the default"),
    ] = {}
    drop: Drops = ()
    env: Annotated[
        dict[str, Variable], msgspec.Meta(description="variables that are added or changed")
    ] = {}
    labels: Labels = {}
    entrypoint: Annotated[
        tuple[str, ...] | None, msgspec.Meta(description="instead of the published target's")
    ] = None
    cmd: Annotated[
        tuple[str, ...] | None, msgspec.Meta(description="instead of the published target's")
    ] = None
    waive: Waivers = ()
    accept_cves: AcceptedCves = ()
    tested: Tested = ""


class Extensions(_Strict, frozen=True):
    """The whole of a `matrix.yaml` that extends published targets."""

    version: Form
    published: Annotated[
        dict[Name, PublishedSource], msgspec.Meta(description="the targets that others published")
    ]
    targets: Annotated[
        dict[Name, Extension], msgspec.Meta(description="a row for each of your images")
    ]
    indexes: Annotated[
        dict[Name, PackageIndex],
        msgspec.Meta(description="indexes beside the default one, which is this machine's"),
    ] = {}
    mirrors: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Debian archives tried after the machine's own apt mirror"),
    ] = ()
    sdists: Sdists = {}
    registry: Registry = None


def check_extensions(notes: Notes) -> None:
    """Check what needs no lock of a published target."""
    matrix = table(notes.walked.value)
    if "published" in matrix and matrix["published"] == {}:
        message = "no published target is named"
        notes.note(("published",), message, expected="at least one published target")
    for name, published in table(matrix.get("published")).items():
        _image(notes, ("published", name, "image"), table(published).get("image"))
    for name, index in table(matrix.get("indexes")).items():
        if isinstance(index, dict) and not index.get("url"):
            message = "url is missing (only the default index may omit it)"
            notes.note(("indexes", name), message, key=True, expected="url: https://…")
    mirrors(notes, ("mirrors",), matrix.get("mirrors"))
    for name, row in table(matrix.get("targets")).items():
        if isinstance(row, dict):
            _row(notes, ("targets", name), row, matrix)


def _row(notes: Notes, path: Path, row: Mapping[str, Any], matrix: Mapping[str, Any]) -> None:
    if len(str(path[-1])) > 128:
        expected = "at most 128 letters"
        notes.note(path, "the name is too long for a tag", key=True, expected=expected)
    if path[-1] in table(matrix.get("published")):
        message = "a published target has this name already"
        notes.note(path, message, key=True, expected="another name")
    published = table(matrix.get("published"))
    notes.known((*path, "extends"), row.get("extends"), published, "published target")
    notes.once((*path, "arch"), row.get("arch"))
    for package, index in table(row.get("indexes")).items():
        here = (*path, "indexes", package)
        notes.known(here, index, table(matrix.get("indexes")), "index")
    versions(notes, path, row)
    configuration(notes, path, row)
    notes.once((*path, "packages"), row.get("packages"))
    for number, package in enumerate(texts(row.get("packages"))):
        expected = "a Debian package name, such as rsync"
        notes.form((*path, "packages", number), package, DEBIAN_PACKAGE, expected)
    _places(notes, path, table(row.get("files")), table(row.get("links")))
    for number, word in enumerate(texts(row.get("entrypoint"))[:1]):
        folder(notes, (*path, "entrypoint", number), word)


def _places(notes: Notes, path: Path, files: Mapping[str, Any], links: Mapping[str, Any]) -> None:
    """Note invalid and conflicting paths of the image, and invalid sources of files."""
    for place in (*files, *links):
        here = (*path, "links" if place in links else "files", place)
        _place(notes, here, place)
        for other in (*files, *links):
            if place.startswith(f"{other}/"):
                what = "link" if other in links else "file"
                message = f"{other} is an added {what}, which cannot have files below it"
                notes.note(here, message, key=True, value=place, expected="another path")
    for place, file in files.items():
        if place in links:
            message = "a link has the same path"
            notes.note((*path, "files", place), message, key=True, expected="one of the two")
        source = table(file).get("from")
        if isinstance(source, str) and leads_out(source):
            message = "the file is outside the repository"
            if source.startswith("/"):
                message = "the path is absolute, so it may not exist on another machine"
            expected = "a path below the folder of this file: copy the file there"
            notes.note((*path, "files", place, "from"), message, value=source, expected=expected)


def leads_out(source: str) -> bool:
    """Whether a path relative to a matrix's folder leaves that folder."""
    return source.startswith("/") or posixpath.normpath(source).split("/")[0] == ".."


def _place(notes: Notes, path: Path, place: str) -> None:
    """Note a path of the image where an added layer would damage what is there."""
    if path[-2] == "files":
        folder(notes, path, place)
    for taken in TAKEN:
        if place == taken or place.startswith(f"{taken}/"):
            near = f"/usr{place}" if taken.startswith(("/bin", "/sbin", "/lib")) else None
            message = f"{taken} is not a plain folder of the image"
            expected = "a path such as /opt/team/train.sh"
            notes.note(path, message, key=True, value=place, expected=expected, near=near)


def _image(notes: Notes, path: Path, image: Any) -> None:
    if not isinstance(image, str) or not image or image.startswith("oci:"):
        return
    expected = "HOST/REPOSITORY, without a tag, or oci:FOLDER"
    if re.search(r":[^/]*$", image.partition("@")[0]):
        message = "the lock identifies the image, so a tag is not needed"
        notes.note(path, message, value=image, expected=expected)
    else:
        form = r"[a-z0-9.\[\]:-]+(/[a-z0-9._-]+)+(@sha256:[0-9a-f]{64})?"
        notes.form(path, image, form, expected)
