"""Reads an image in a layout, with its configuration and lock, to convert it to a SIF or squashfs.

All files that are added to the image are computed from a `SifSource`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from imgbuild import codec
from imgbuild.errors import IntegrityError
from imgbuild.oci.layout import Layout
from imgbuild.oci.tar import END, LayerMember, member_header, padding_size, sort_key
from imgbuild.values import Arch, Digest


class RuntimeSettings(msgspec.Struct, frozen=True, rename="pascal"):
    """The runtime settings of an image, with the field names of the OCI image specification."""

    env: tuple[str, ...] | None = ()
    entrypoint: tuple[str, ...] | None = ()
    cmd: tuple[str, ...] | None = ()
    labels: dict[str, str] | None = None
    volumes: dict[str, object] | None = None
    working_dir: str = ""


class _ConfigDocument(msgspec.Struct, frozen=True):
    config: RuntimeSettings = RuntimeSettings()
    created: str = "1970-01-01T00:00:00Z"


class SifSource(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one architecture. `time` is its creation time, in seconds since 1970."""

    name: str
    arch: Arch
    digest: Digest
    settings: RuntimeSettings
    time: int
    config: bytes
    lock: bytes = b""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that the image sets."""
        return dict(item.partition("=")[::2] for item in self.settings.env or ())

    @property
    def command(self) -> tuple[str, ...]:
        """The default command."""
        entrypoint, command = self.settings.entrypoint or (), self.settings.cmd or ()
        return command if entrypoint or command else ("/bin/sh",)


def read_sif_source(layout: Layout, arch: Arch, lock: bytes = b"") -> SifSource:
    """Read the image of `layout` for `arch`.

    Raises IntegrityError if its configuration is invalid.
    """
    stored = layout.image(arch)
    config = stored.config_data
    document = codec.decode(config, _ConfigDocument, file=f"{layout.path}: {stored.config.digest}")
    try:
        # Python 3.11 parses at most six fractional digits of a time in Go's format.
        created = datetime.datetime.fromisoformat(document.created[:19]).replace(
            tzinfo=datetime.UTC
        )
    except ValueError as error:
        message = f"{layout.path}: invalid creation time for {arch}: {document.created!r}"
        raise IntegrityError(message, hint="build or pull the image again") from error
    return SifSource(
        name=layout.name or "image",  # not the folder's: bytes follow from the image
        arch=arch,
        digest=stored.manifest.digest,
        settings=document.config,
        time=max(0, int(created.timestamp())),
        config=config,
        lock=lock,
    )


def layer_archive(members: Sequence[LayerMember]) -> bytes:
    """Return a layer of `members`, which are small and sorted, as an uncompressed tar."""
    parts = []
    for member in sorted(members, key=sort_key):
        data = member.content if isinstance(member.content, bytes) else b""
        parts += [member_header(member), data, bytes(padding_size(len(data)))]
    return b"".join([*parts, END])
