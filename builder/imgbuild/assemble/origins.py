"""Defines the sources of inputs and published layers, and their order.

The sources of a lock's inputs are the user's files, the mirror, indexes and Debian archives, the
base image's registry, and builds of sdists. The sources of a published target's layers are its
layout, or the mirror and its registry. Offline, inputs that need a server are rejected before the
first request.
"""

# A separate module: one policy.
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from imgbuild.assemble.mirror import Mirror
from imgbuild.assemble.mirror_items import Input, inputs_by_hash, missing_inputs
from imgbuild.assemble.sources import LockSources, host_debs, host_python
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.lock import extension
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.model import LockedProject
from imgbuild.lock.published import TargetOverlay
from imgbuild.matrix.model import Matrix
from imgbuild.registry import base_image
from imgbuild.solve import direct
from imgbuild.system.amounts import format_count
from imgbuild.values import digest_of_file, sha256

# Adds available inputs to the store; FetchFailed or IntegrityError if a required one is
# missing.
Origin = Callable[[Sequence[Input]], object]


def fetch_from(items: Sequence[Input], origins: Iterable[Origin], store: Store) -> None:
    """Fetch missing `items` into `store`, from each of `origins` in turn until none is missing."""
    for origin in origins:
        items = missing_inputs(items, store)
        if not items:
            return
        origin(items)


class Origins:
    """The origins of a project's inputs. If the context is offline, `mirror` must be None."""

    def __init__(self, matrix: Matrix, context: Context, mirror: Mirror | None) -> None:
        self._matrix = matrix
        self._context = context
        self._store = context.store
        self._mirror = mirror

    def input_origins(self, lock: Lock) -> Iterator[Origin]:
        """Yield the origins for the inputs of `lock`, in order."""
        sources = LockSources(lock, self._matrix, self._context)
        yield partial(self._copy_added_files, lock)
        if lock.project is not None:
            yield partial(self._project_wheels, lock.project)
        if self._mirror is not None:
            yield partial(self._fetch_from_mirror, self._mirror, lock, sources)
        if self._context.http.offline or (self._mirror is not None and self._mirror.only):
            yield partial(self._refuse_servers, lock, sources)
        yield sources.fetch_files
        yield partial(self._fetch_from_image, lock.base.image)
        yield sources.rebuild_wheels

    def published_layer_origins(self, overlay: TargetOverlay) -> Iterator[Origin]:
        """Yield the origins for the published layers, if the matrix defines any."""
        target = overlay.published
        if overlay.published_layout is not None:
            yield partial(self._copy_from_layout, overlay.published_layout, target.name)
        elif target.image:
            place = f"{target.image.partition('@')[0]}@{target.digest}"
            if self._context.http.offline:
                yield partial(self._refuse_registry, place)
            if self._mirror is not None:
                title = f"layers of {target.name}"
                yield partial(self._mirror.fetch_missing, context=self._context, title=title)
            if self._mirror is None or not self._mirror.only:
                yield partial(self._fetch_from_image, place)

    def _copy_added_files(self, lock: Lock, items: Sequence[Input]) -> None:
        """Copy the user's files that `lock` adds. Raises IntegrityError if a file has changed."""
        files = lock.extends.files if lock.extends is not None else {}
        if {item.sha256 for item in items} & {file.sha256 for file in files.values()}:
            for path, data in extension.added_contents(lock, self._matrix).items():
                self._store.add_bytes(data, files[path].sha256)

    def _project_wheels(self, project: LockedProject, items: Sequence[Input]) -> None:
        hashes = {item.sha256 for item in items}
        for package, item in project.packages.items():
            _, data = direct.editable_wheel(package, item)
            if sha256(data) in hashes:
                self._store.add_bytes(data, sha256(data))

    def _fetch_from_mirror(
        self, mirror: Mirror, lock: Lock, sources: LockSources, items: Sequence[Input]
    ) -> None:
        """Fetch `items` from the mirror, and the inputs of wheels that must be built.

        Files in the user's folders are included, because other machines may not have these folders.
        """
        mirror.fetch_missing(items, self._context, title=lock.target)
        left = missing_inputs(items, self._store)
        parts = sources.locate({item.sha256 for item in left}).ingredients
        if parts:
            named = inputs_by_hash(lock)
            python = host_python(lock)
            root = (*host_debs(lock), *([python] if python is not None else []))
            every = sorted(parts | {file.sha256 for file in root})
            missing = missing_inputs((named[key] for key in every), self._store)
            mirror.fetch_missing(missing, self._context, title=f"build inputs of {lock.target}")

    def _fetch_from_image(self, image: str, items: Sequence[Input]) -> None:
        layers = [item.as_locked_file for item in items if item.layer]
        if layers:
            base_image.fetch_layers(image, layers, self._context)

    def _copy_from_layout(self, layout: Path, name: str, items: Sequence[Input]) -> None:
        for item in items:
            path = layout / "blobs/sha256" / item.sha256
            if not path.is_file():
                message = f"{layout} lacks the layer {item.digest} of {name}"
                hint = (
                    "set `image` to the layout of the published image, or remove `image` from "
                    "the matrix"
                )
                raise FetchFailed(message, hint=hint)
            with self._store.scratch() as scratch:
                copy = Path(shutil.copyfile(path, scratch / "blob"))
                with copy.open("rb") as file:
                    digest = digest_of_file(file)
                if digest != item.digest:
                    message = f"{path} is damaged: its digest is {digest}"
                    hint = "copy the image again"
                    raise IntegrityError(message, hint=hint)
                self._store.add_blob(copy, digest)

    def _refuse_registry(self, place: str, items: Sequence[Input]) -> None:
        message = f"{self._store.root} lacks {format_count(len(items), 'layer')} of {place}"
        raise FetchFailed(message, hint="run once without --offline")

    def _refuse_servers(self, lock: Lock, sources: LockSources, items: Sequence[Input]) -> None:
        """Raise FetchFailed if an input needs a server that is not allowed."""
        remote = sources.locate({item.sha256 for item in items if not item.layer}).remote
        far = [item for item in items if item.layer or item.sha256 in remote]
        if not far:
            return
        if self._mirror is None:
            message = f"{len(far)} inputs of {lock.target} are not in {self._store.root}"
            raise FetchFailed(message, hint="run once without --offline")
        names = sorted(item.file for item in far)
        some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        message = (
            f"the mirror {self._mirror.repository} lacks {len(far)} inputs of {lock.target} "
            f"({some}), and other sources are not allowed"
        )
        place = f"imgbuild registry mirror push {lock.target} {self._mirror.repository}"
        raise FetchFailed(
            message,
            hint=f"to fill the mirror on a machine with access to the indexes, run: {place}",
        )
