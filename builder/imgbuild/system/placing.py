"""Places a file of the cache in a folder as a hard link or as a copy."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from imgbuild.errors import IntegrityError
from imgbuild.system import known_hashes
from imgbuild.system.boundary import open_regular
from imgbuild.system.folder import OpenFolder, copy_and_hash, is_private
from imgbuild.system.reporter import Reporter
from imgbuild.values import Sha256


def place_file(
    folder: OpenFolder, name: str, source: Path, sha256: Sha256, reporter: Reporter, *, prefix: str
) -> None:
    """Check the hash of `source`, and link or copy the file to `name` in `folder`.

    The file is copied if it is on another file system, or if another user owns it or can write to
    it and could change a linked file later. The temporary name begins with `prefix`. Raises
    IntegrityError unless the hash of `source` is `sha256`.
    """
    temporary = f"{prefix}{secrets.token_hex(16)}"
    hashes = known_hashes.user_known_hashes()
    with open(source, "rb", opener=open_regular) as file:
        private = is_private(os.fstat(file.fileno()))
        if private and not hashes.matches_file(file, sha256):
            raise _damage_error(source)
        try:
            with hashes.relinking(file.fileno()):
                refusal = "other users can change the file"
                if private:
                    refusal = _link(folder, file.fileno(), temporary)
                if refusal:
                    reporter.detail(f"copying {source} to {folder.path / name}: {refusal}")
                    file.seek(0)
                    with folder.new_file(temporary) as target:
                        if copy_and_hash(file, target) != sha256:
                            raise _damage_error(source)
                        with contextlib.suppress(PermissionError):  # vfat has no modes
                            os.fchmod(target.fileno(), 0o444)  # as for the cache's files
                folder.rename(temporary, name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder.descriptor)


def _link(folder: OpenFolder, descriptor: int, name: str) -> str:
    """Link the open file as `name`. Returns the reason for a failure, or ""."""
    try:
        folder.create_link(descriptor, name)
    except OSError as error:  # another file system, no support for links, or too many links
        return error.strerror or str(error)
    return ""


def _damage_error(source: Path) -> IntegrityError:
    message = f"{source} is damaged: the content does not match its digest"
    return IntegrityError(message, hint="remove the file, and build the image again")
