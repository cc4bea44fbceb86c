"""The `matrix.yaml` of a user's own repository: published targets, and what is added to them.

A row has only what it adds; everything else is the published target's, from its lock (see
`imgbuild.lock.published`). The JSON Schema is generated from these types.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from imgbuild.matrix.accepted import AcceptedCves, Waivers
from imgbuild.matrix.check import mirrors
from imgbuild.matrix.check_targets import configuration, versions
from imgbuild.matrix.fields import (
    DEBIAN_PACKAGE,
    NAME,
    Form,
    Line,
    Name,
    Package,
    Prose,
    Reason,
    Version,
)
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
from imgbuild.matrix.notes import Notes, Path, table, texts
from imgbuild.matrix.settings import folder, leads_out, place
from imgbuild.values import Arch


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all values here: keyword-only, unknown keys are errors."""


class PublishedSource(_Strict, frozen=True, rename={"origin": "from"}):
    """A target that others published: what it is, and where its layers are."""

    lock: Annotated[
        Line,
        msgspec.Meta(
            min_length=1,
            description="folder with its lock.json and digests.json, relative to this file",
        ),
    ]
    origin: Annotated[
        Line,
        msgspec.Meta(
            description="where that folder was copied from: an address, a path, or `catalogue`"
            " (comes with imgbuild); `imgbuild init --refresh` copies it again"
        ),
    ] = ""
    image: Annotated[
        Line,
        msgspec.Meta(
            description="where its layers are: HOST/REPOSITORY, or oci:FOLDER; without it they are"
            " made again from the lock, byte for byte"
        ),
    ] = ""


class FileToAdd(_Strict, frozen=True, rename={"source": "from"}):
    """A file of the user's repository that is put into the image; it belongs to root."""

    source: Annotated[
        Line, msgspec.Meta(min_length=1, description="path of the file, relative to this file")
    ]
    mode: Annotated[
        str, msgspec.Meta(pattern=r"^0[0-7]{3}\Z", description='permissions, in quotes: "0755"')
    ] = "0644"


class Relaxed(_Strict, frozen=True, kw_only=True):
    """A package of which another version is taken than the project's files demand."""

    version: Annotated[str, msgspec.Meta(description="the version that was taken instead")] = ""
    reason: Reason


class Extension(_Strict, frozen=True, kw_only=True):
    """One row: a published target and what is added on top of it."""

    extends: Annotated[
        str,
        msgspec.Meta(
            pattern=rf"^({NAME})?\Z",
            description="a target of `published`, of which no version changes",
        ),
    ] = ""
    like: Annotated[
        str,
        msgspec.Meta(
            pattern=rf"^({NAME})?\Z",
            description="instead of `extends`: a target of `published` whose base, settings and"
            " indexes are used, and whose versions are preferred",
        ),
    ] = ""
    requirements: Annotated[
        tuple[Line, ...],
        msgspec.Meta(description="files of the project that say what it needs"),
    ] = ()
    extras: Annotated[
        tuple[Line, ...], msgspec.Meta(description="extras of the project that are installed")
    ] = ()
    groups: Annotated[
        tuple[Line, ...],
        msgspec.Meta(description="dependency groups of the project that are installed"),
    ] = ()
    add: Annotated[
        tuple[Line, ...],
        msgspec.Meta(description="requirements beside those of the files, as PEP 508 has them"),
    ] = ()
    exclude: Annotated[
        dict[Package, Reason],
        msgspec.Meta(description="packages that are left out, and why"),
    ] = {}
    relax: Annotated[
        dict[Package, Relaxed],
        msgspec.Meta(description="packages of which any version is taken"),
    ] = {}
    cuda: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([0-9]+\.[0-9]+)?\Z",
            description="with `like`: the CUDA release, if it is not that target's",
        ),
    ] = ""
    summary: Annotated[Prose, msgspec.Meta(description="one line for tables")]
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
        tuple[Line, ...] | None, msgspec.Meta(description="instead of the published target's")
    ] = None
    cmd: Annotated[
        tuple[Line, ...] | None, msgspec.Meta(description="instead of the published target's")
    ] = None
    waive: Waivers = ()
    accept_cves: AcceptedCves = ()
    tested: Tested = ""

    @property
    def below(self) -> str:
        """The published target that the row is based on."""
        return self.extends or self.like


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
        tuple[Line, ...],
        msgspec.Meta(description="Debian archives tried after the machine's own apt mirror"),
    ] = ()
    sdists: Sdists = {}
    registry: Registry = None


def check_extensions(notes: Notes, value: Any) -> None:
    """Check what needs no lock of a published target."""
    matrix = table(value)
    if "published" in matrix and matrix["published"] == {}:
        message = "no published target is named"
        notes.note(("published",), message, expected="at least one published target")
    for name, published in table(matrix.get("published")).items():
        _image(notes, ("published", name, "image"), table(published).get("image"))
        _inside(notes, ("published", name, "lock"), table(published).get("lock"), "folder")
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
    named = [key for key in ("extends", "like") if row.get(key)]
    if len(named) != 1:
        message = "exactly one of `extends` and `like` is expected"
        notes.note(path, message, key=True, expected="extends: TARGET, or like: TARGET")
    for key in named:
        notes.choice((*path, key), row.get(key), published, "published target")
    notes.once((*path, "arch"), row.get("arch"))
    for package, index in table(row.get("indexes")).items():
        here = (*path, "indexes", package)
        notes.choice(here, index, table(matrix.get("indexes")), "index")
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
    for added in (*files, *links):
        here = (*path, "links" if added in links else "files", added)
        if added not in links:
            folder(notes, here, added)
        place(notes, here, added)
        for other in (*files, *links):
            if added.startswith(f"{other}/"):
                what = "link" if other in links else "file"
                message = f"{other} is an added {what}, which cannot have files below it"
                notes.note(here, message, key=True, value=added, expected="another path")
    for added, file in files.items():
        if added in links:
            message = "a link has the same path"
            notes.note((*path, "files", added), message, key=True, expected="one of the two")
        _inside(notes, (*path, "files", added, "from"), table(file).get("from"), "file")


def _inside(notes: Notes, path: Path, source: Any, what: str) -> None:
    """Note a path that leaves the folder of the matrix."""
    if isinstance(source, str) and leads_out(source):
        message = f"the {what} is outside the repository"
        if source.startswith("/"):
            message = "the path is absolute, so it may not exist on another machine"
        expected = f"a path below the folder of this file: copy the {what} there"
        notes.note(path, message, value=source, expected=expected)


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
