"""Resolves the base of an image: Debian packages, or layers of an image in a registry."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

import msgspec

from imgbuild.cache.context import Context
from imgbuild.deb import apt
from imgbuild.errors import InputError
from imgbuild.lock.resolution import Deb, PythonArchive, RegistryLayer, Resolution
from imgbuild.matrix.model import Base, DebianBase, RegistryBase
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import FILES, LayerFile, TarEntry, TarReader, open_inflated
from imgbuild.registry import base_image
from imgbuild.registry.client import RegistryClient
from imgbuild.solve import standalone
from imgbuild.values import Arch, Digest

ACCOUNTS = ("etc/passwd", "etc/group")  # the image's user is added to these
LINKS = 40  # as Linux follows them
PYTHON = re.compile(r"(?:.*/)?bin/python(3\.\d+)")


class ResolvedBase(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved base on one architecture, with the same fields as `Resolution`."""

    debs: tuple[Deb, ...] = ()
    layers: tuple[RegistryLayer, ...] = ()
    manifest: Digest | None = None
    files: dict[str, str] = {}
    security: str | msgspec.UnsetType = msgspec.UNSET
    tools: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    python: PythonArchive | msgspec.UnsetType = msgspec.UNSET


class ImageContents(msgspec.Struct, frozen=True):
    """The paths of an image with the targets of symbolic links, and the account files."""

    paths: dict[str, str | None]
    accounts: dict[str, bytes]

    def resolve_links(self, path: str) -> str | None:
        """Resolve all symbolic links in `path`. Return None if the target does not exist."""
        here, left = "", [part for part in path.split("/") if part]
        for _ in range(LINKS * LINKS):
            if not left:
                return here
            here = posixpath.normpath(posixpath.join("/", here, left.pop(0))).strip("/")
            target = self.paths.get(here)
            if target is not None:
                left = [part for part in target.split("/") if part] + left
                here = "" if target.startswith("/") else posixpath.dirname(here)
            elif not left and here not in self.paths:
                return None
        return None


def resolve_base(base: Base, arch: Arch, context: Context) -> ResolvedBase:
    """Resolve `base` on `arch` to Debian packages, or to layers and accounts of a registry image.

    The archive of a standalone Python and the layers of a registry image are fetched and read.
    Raises the same errors as `standalone.fetch_archive` and `apt.resolve_debs`. Raises InputError
    if the base has no account files, or a Python other than the one in the matrix.
    """
    if isinstance(base, DebianBase):
        source = base.standalone_python
        archive = standalone.fetch_archive(source, arch, context) if source is not None else None
        chosen = apt.resolve_debs(base, arch, context)
        return ResolvedBase(
            debs=chosen.debs,
            security=chosen.security or msgspec.UNSET,
            tools=chosen.tools or msgspec.UNSET,
            python=archive or msgspec.UNSET,
        )
    client = RegistryClient(offline=context.http.offline)
    image = base_image.read_base_image(base.image, arch, client)
    base_image.fetch_layers(
        base.image, [layer.as_locked_file for layer in image.layers], context, client
    )
    blobs = ((context.store.blob(layer.digest), layer.diff_id) for layer in image.layers)
    merged = merge_contents(
        [LayerFile(path=path, diff_id=diff_id) for path, diff_id in blobs if path is not None]
    )
    refuse_other_python(base, merged)
    return ResolvedBase(
        layers=image.layers, manifest=image.manifest, files=read_accounts(base.image, merged)
    )


def read_accounts(image: str, image_contents: ImageContents) -> dict[str, str]:
    """Return the text of etc/passwd and etc/group.

    Raises InputError if a file is missing or not UTF-8.
    """
    hint = "choose a base with this file; imgbuild adds the image's user to it"
    texts = {}
    for path in ACCOUNTS:
        data = image_contents.accounts.get(path)
        if data is None:
            link = image_contents.paths.get(path)
            what = "is not a regular file" if path in image_contents.paths else "does not exist"
            what = f"is a link to {link}" if link else what
            message = f"{image}: /{path} {what}"
            raise InputError(message, hint=hint)
        try:
            texts[path] = data.decode()
        except UnicodeDecodeError as error:
            message = f"{image}: /{path} is not UTF-8: {data[error.start : error.start + 20]!r}"
            raise InputError(message, hint=hint) from error
    return texts


def refuse_other_python(base: RegistryBase, image_contents: ImageContents) -> None:
    """Raise InputError if the interpreter of `base` is missing or has the wrong version."""
    led = image_contents.resolve_links(base.interpreter)
    named = PYTHON.fullmatch(led or "")
    if led is not None and (named is None or named[1] == base.python):
        return
    what = "does not exist" if led is None else f"is /{led}, not Python {base.python}"
    message = f"{base.image}: interpreter {base.interpreter} {what}"
    others = sorted(f"/{path}" for path in image_contents.paths if PYTHON.fullmatch(path))
    hint = (
        f"the image has {', '.join(others)}"
        if others
        else "the image has no python3.N in a folder `bin`"
    )
    raise InputError(message, hint=f"{hint}; set `interpreter` and `python` accordingly")


def merge_contents(layers: Sequence[LayerFile]) -> ImageContents:
    """Merge the paths of `layers`, lowest first. Raises IntegrityError if a layer is damaged."""
    tree = MergedTree()
    texts: dict[tuple[int, int], bytes] = {}  # of accounts, by layer and member
    for number, layer in enumerate(layers, start=1):
        with open_inflated(layer) as stream:
            tree.add_headers(
                _members_with_accounts(TarReader(stream, str(layer.path)), number, texts)
            )
    paths = {path.strip("/"): node.target or None for path, node in tree.iterate_paths()}
    nodes = {path: tree.find_node(path) for path in ACCOUNTS}
    accounts = {
        path: texts[node.source]
        for path, node in nodes.items()
        if node is not None and node.source in texts
    }
    return ImageContents(paths=paths, accounts=accounts)


def _members_with_accounts(
    layer: TarReader, number: int, texts: dict[tuple[int, int], bytes]
) -> Iterator[TarEntry]:
    for member, entry in enumerate(layer, start=1):
        if posixpath.normpath(entry.path.lstrip("/")) in ACCOUNTS and entry.type in FILES:
            texts[number, member] = b"".join(layer.content())
        yield entry


def base_python(base: Base, resolved: ResolvedBase | Resolution) -> str:
    """Return the Python version of the base, such as "3.11.2", or "3.11" if no more is known."""
    if resolved.python:
        return resolved.python.version
    for deb in resolved.debs:
        if deb.package == f"python{base.python}":
            upstream = deb.version.split(":")[-1].split("-")[0].split("+")[0].split("~")[0]
            return upstream if upstream.startswith(f"{base.python}.") else base.python
    return base.python
