"""Writes an OCI or Docker archive as one tar stream, for `docker load` and for copying images.

The stream is produced in pieces, without temporary files, and depends only on the image and the
tag. Formats:

- `oci-archive`: an OCI layout with one or all architectures;
- `docker-archive`: one architecture, readable by `podman load` and by `docker load` since Docker
  1.10. The archive is also an OCI layout, like the output of `docker save` since Docker 25, so
  engines that store OCI documents keep the image digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, get_args

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.layout import MARKER, MARKER_TEXT, REF_NAME, Layout, index_file, read_layout
from imgbuild.oci.storage import BLOBS, CHUNK, INDEX_FILE, blob_name
from imgbuild.oci.tar import END, LayerMember, MemberKind, member_header, padding_size
from imgbuild.system import files
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Bytes, Digest

Format = Literal["oci-archive", "docker-archive"]
CONTAINERD_NAME = "io.containerd.image.name"
HUB = "docker.io"


def archive_chunks(
    layout: Layout,
    arch: Arch | None,
    form: Format,
    *,
    tag: str | None = None,
    without: Collection[Digest] = (),
) -> Iterator[bytes]:
    """Yield the archive of `layout`, without the blobs in `without`, in pieces of at most 1 MiB.

    If `arch` is None, the archive contains all architectures. `tag` (NAME or NAME:TAG) is the image
    name in the engine. The default is the name in the layout. Raises InputError if a
    `docker-archive` would contain several architectures.
    """
    documents, blobs = _contents(layout, arch, form, tag or layout.name)
    yield b"".join(
        [
            _file(MARKER, MARKER_TEXT),
            *(_file(name, data) for name, data in documents.items()),
            *(
                member_header(LayerMember(path=path, kind=MemberKind.FOLDER, mode=0o755))
                for path in ("blobs", BLOBS)
            ),
        ]
    )
    for digest, size in sorted(blobs.items()):
        if digest in without:
            continue
        yield member_header(LayerMember(path=blob_name(digest), size=size))
        yield from _pieces(layout.blob(digest), size)
        yield bytes(padding_size(size))
    yield END


def archive_size(layout: Layout, arch: Arch | None, form: Format) -> Bytes:
    """Return the total size of the blobs in the archive."""
    return sum(_contents(layout, arch, form, layout.name)[1].values())


def write_archive(
    folder: Path,
    out: Path,
    form: str,
    tag: str,
    *,
    reporter: Reporter = SILENT_REPORTER,
) -> None:
    """Atomically write an archive of the layout in `folder` to the file `out`.

    Raises InputError if `form` is unknown or `out` cannot be written.
    """
    if form not in get_args(Format):
        message = f"invalid archive format: {form!r} (expected {' or '.join(get_args(Format))})"
        raise InputError(message)
    kind: Format = "oci-archive" if form == "oci-archive" else "docker-archive"
    layout = read_layout(folder)
    try:
        with (
            files.replace_file(out) as file,
            reporter.progress(f"writing {out.name}", archive_size(layout, None, kind)) as bar,
        ):
            for chunk in archive_chunks(layout, None, kind, tag=tag):
                file.write(chunk)
                bar.advance(len(chunk))
    except OSError as error:
        raise files.convert_os_error(
            error, out, hint="choose another file with --output"
        ) from error


def complete_reference(tag: str) -> str:
    """Return `tag` (NAME or NAME:TAG), with `:latest` appended if it has no tag."""
    name = tag.rpartition("/")[2]
    return tag if ":" in name else f"{tag}:latest"


def full_reference(tag: str) -> str:
    """Return `tag` with the registry host and namespace, as in Docker and containerd."""
    named = complete_reference(tag)
    host, slash, _ = named.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return named
    return f"{HUB}/{named}" if slash else f"{HUB}/library/{named}"


def _contents(
    layout: Layout, arch: Arch | None, form: Format, tag: str
) -> tuple[dict[str, bytes], dict[Digest, Bytes]]:
    chosen = dict(layout.images) if arch is None else {arch: layout.image(arch)}
    if form == "docker-archive" and len(chosen) > 1:
        message = f"a docker-archive has one architecture; {layout.path} has {', '.join(chosen)}"
        raise InputError(message, hint="select one with --arch, or use oci-archive")
    stored = next(iter(chosen.values()))
    whole = form == "oci-archive" and len(chosen) == len(layout.images)
    top = layout.top if whole else stored.manifest
    blobs = {top.digest: top.size}
    for image in chosen.values():
        for descriptor in (image.manifest, image.config, *image.layers):
            blobs[descriptor.digest] = descriptor.size
    if form == "oci-archive":
        return {INDEX_FILE: index_file(top, {REF_NAME: tag})}, blobs
    listing = {
        "Config": blob_name(stored.config.digest),
        "RepoTags": [complete_reference(tag)],
        "Layers": [blob_name(layer.digest) for layer in stored.layers],
    }
    annotations = {
        CONTAINERD_NAME: full_reference(tag),
        REF_NAME: complete_reference(tag).rpartition(":")[2],
    }
    return {
        INDEX_FILE: index_file(top, annotations),
        "manifest.json": codec.encode_compact([listing]),
    }, blobs


def _file(path: str, data: bytes) -> bytes:
    return (
        member_header(LayerMember(path=path, size=len(data)))
        + data
        + bytes(padding_size(len(data)))
    )


def _pieces(path: Path, size: Bytes) -> Iterator[bytes]:
    """Yield the content of a blob.

    Raises IntegrityError if it is missing or shorter than `size`.
    """
    left = size
    hint = "build the image again"
    with files.require_readable(path, IntegrityError, hint=hint), path.open("rb") as file:
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
    if left:
        message = f"{path} is {left} bytes shorter than its size in the manifest"
        raise IntegrityError(message, hint=hint)
