"""An OCI layout as one tar stream, for engines and for people who move files.

Comes in: a layout. Goes out: the bytes of an archive, piece by piece, the same for the same image
and tag; nothing is written to disk on the way. Two forms:

- `oci-archive`: the layout itself, all architectures or one;
- `docker-archive`: one architecture, read by any `docker load` since 1.10 and by `podman load`. It
  is an OCI layout too, as `docker save` writes it since 25, so that an engine with OCI documents in
  its store keeps the image's own digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.layout import (
    BLOBS,
    CHUNK,
    INDEX_FILE,
    MARKER,
    MARKER_TEXT,
    REF_NAME,
    Layout,
    index_file,
    read,
)
from imgbuild.oci.tar import END, Kind, Member, header, padding
from imgbuild.system.console import console
from imgbuild.values import Arch, Bytes, Digest

Format = Literal["oci-archive", "docker-archive"]
CONTAINERD_NAME = "io.containerd.image.name"
HUB = "docker.io"


def chunks(
    layout: Layout, arch: Arch | None, form: Format, *, tag: str | None = None
) -> Iterator[bytes]:
    """The archive of `layout` in pieces of at most a MiB.

    `tag` names the image to the engine, NAME or NAME:TAG; the layout's own name if it is None.
    InputError if `docker-archive` is asked for and neither `arch` nor the layout says which one.
    """
    documents, blobs = _contents(layout, arch, form, tag or layout.name)
    yield b"".join(
        [
            _file(MARKER, MARKER_TEXT),
            *(_file(name, data) for name, data in documents.items()),
            *(header(Member(path=path, kind=Kind.FOLDER, mode=0o755)) for path in ("blobs", BLOBS)),
        ]
    )
    for digest, size in sorted(blobs.items()):
        yield header(Member(path=_path(digest), size=size))
        yield from _pieces(layout.blob(digest), size)
        yield bytes(padding(size))
    yield END


def size(layout: Layout, arch: Arch | None, form: Format) -> Bytes:
    """How many bytes of blobs the archive holds: the measure of the work."""
    return sum(_contents(layout, arch, form, layout.name)[1].values())


def write(folder: Path, out: Path, form: str, tag: str, *, arch: Arch | None = None) -> None:
    """Write the archive of the layout `folder` to the file `out`, in one step (a rename)."""
    if form not in get_args(Format):
        message = f"no archive is called {form!r}"
        raise InputError(message, hint=f"choose one of {', '.join(get_args(Format))}")
    kind: Format = "oci-archive" if form == "oci-archive" else "docker-archive"
    layout = read(folder)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with (
            temporary.open("wb") as file,
            console.progress(f"writing {out.name}", size(layout, arch, kind)) as bar,
        ):
            for chunk in chunks(layout, arch, kind, tag=tag):
                file.write(chunk)
                bar.advance(len(chunk))
        temporary.replace(out)
    except OSError as error:
        message = f"cannot write {out}: {error.strerror}"
        raise InputError(message, hint="name another file with --output") from error
    finally:
        temporary.unlink(missing_ok=True)


def reference(tag: str) -> str:
    """NAME or NAME:TAG with its tag written out: `latest` unless it says another."""
    name = tag.rpartition("/")[2]
    return tag if ":" in name else f"{tag}:latest"


def full_reference(tag: str) -> str:
    """`tag` with host and namespace, as Docker and containerd spell it in full."""
    named = reference(tag)
    host, slash, _ = named.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return named
    return f"{HUB}/{named}" if slash else f"{HUB}/library/{named}"


def _contents(
    layout: Layout, arch: Arch | None, form: Format, tag: str
) -> tuple[dict[str, bytes], dict[Digest, Bytes]]:
    """The documents at the top of the archive, and the blobs in it with their sizes."""
    chosen = dict(layout.images) if arch is None else {arch: layout.image(arch)}
    if form == "docker-archive" and len(chosen) > 1:
        message = f"a docker-archive holds one architecture, {layout.path} has {', '.join(chosen)}"
        raise InputError(message, hint="name one with --arch, or use oci-archive")
    stored = next(iter(chosen.values()))
    whole = form == "oci-archive" and len(chosen) == len(layout.images)
    top = layout.top if whole else stored.manifest
    blobs = {top.digest: top.size}
    for one in chosen.values():
        for descriptor in (one.manifest, one.config, *one.layers):
            blobs[descriptor.digest] = descriptor.size
    named = codec.to_builtins(top)
    if form == "oci-archive":
        return {INDEX_FILE: index_file(named, {REF_NAME: tag})}, blobs
    listing = {
        "Config": _path(stored.config.digest),
        "RepoTags": [reference(tag)],
        "Layers": [_path(layer.digest) for layer in stored.layers],
    }
    annotations = {
        CONTAINERD_NAME: full_reference(tag),
        REF_NAME: reference(tag).rpartition(":")[2],
    }
    return {
        INDEX_FILE: index_file(named, annotations),
        "manifest.json": codec.compact([listing]),
    }, blobs


def _path(digest: Digest) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def _file(path: str, data: bytes) -> bytes:
    return header(Member(path=path, size=len(data))) + data + bytes(padding(len(data)))


def _pieces(path: Path, size: Bytes) -> Iterator[bytes]:
    """A blob of `size` bytes; IntegrityError if the file is gone or shorter by now."""
    left = size
    try:
        with path.open("rb") as file:
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise IntegrityError(message, hint="build the image again") from error
    if left:
        message = f"{path} is {left} bytes shorter than its manifest says"
        raise IntegrityError(message, hint="build the image again")
