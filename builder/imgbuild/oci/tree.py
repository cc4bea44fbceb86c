"""Resolves the paths of an image inside a root folder, even for malicious links.

Folders are opened one component at a time without following links. Links are resolved inside the
root folder.
"""

from __future__ import annotations

import collections
import contextlib
import os
import stat
from pathlib import Path
from typing import NoReturn, Self

from imgbuild.errors import IntegrityError
from imgbuild.system.folder import remove_folder

LINK_LIMIT = 40  # the same as the kernel's
OPEN_FOLDERS = 64
FOLDER_MODE = 0o755
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RootFolder:
    """A folder that is the root of an image, for use by a single thread."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: collections.OrderedDict[tuple[str, ...], int] = collections.OrderedDict()
        self._places: dict[tuple[str, ...], tuple[str, ...]] = {}  # of the open folders

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_descriptors()
        os.close(self._root)

    def path_parts(self, path: str) -> tuple[str, ...]:
        """Return the components of `path`. Raises IntegrityError if a component is `..`."""
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if ".." in parts or "\0" in path:
            self._refuse_path(path, "points outside the image")
        return parts

    def folder(self, parts: tuple[str, ...], *, make: bool = True) -> int:
        """Return a file descriptor of the folder at `parts`, which is valid until the next call.

        A missing folder is created (0755), or raises FileNotFoundError if `make` is False. Raises
        IntegrityError if the path is not a folder.
        """
        if not parts:
            return self._root
        cached = self._open.get(parts)
        if cached is not None:
            self._open.move_to_end(parts)
            return cached
        descriptor = self._walk_to_folder(parts, make=make)
        self._open[parts] = descriptor
        if len(self._open) > OPEN_FOLDERS:
            oldest, unused = self._open.popitem(last=False)
            os.close(unused)
            self._places.pop(oldest, None)
        return descriptor

    def place(self, parts: tuple[str, ...], *, make: bool = True) -> tuple[str, ...]:
        """Return the path `parts` with links resolved in its folders.

        A link in the last component is not resolved.
        """
        above = parts[:-1]
        descriptor = self.folder(above, make=make)
        if (place := self._places.get(above)) is None:
            folder = Path(f"/proc/self/fd/{descriptor}").readlink()
            root = Path(f"/proc/self/fd/{self._root}").readlink()
            place = self._places[above] = folder.relative_to(root).parts
        return (*place, *parts[-1:])

    def is_folder(self, parts: tuple[str, ...]) -> bool:
        """Return whether `parts` is a folder, and not a link to a folder."""
        parent = self.folder(parts[:-1], make=False)
        return stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode)

    def remove(self, parts: tuple[str, ...], *, make: bool = True) -> bool:
        """Remove the file or folder at `parts`. Returns whether it was a folder."""
        parent, name = self.folder(parts[:-1], make=make), parts[-1]
        kind = 0
        with contextlib.suppress(FileNotFoundError):
            kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                remove_folder(name, parent)
            else:
                os.unlink(name, dir_fd=parent)
            if stat.S_ISDIR(kind) or stat.S_ISLNK(kind):
                self._close_descriptors()
        return stat.S_ISDIR(kind)

    def names(self, parts: tuple[str, ...]) -> list[str]:
        """Return the names in the folder at `parts`, or [] if the folder does not exist."""
        try:
            folder = self.folder(parts, make=False)
        except FileNotFoundError:
            return []
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            return os.listdir(readable)  # noqa: PTH208  (a descriptor has no Path)
        finally:
            os.close(readable)

    def _walk_to_folder(self, parts: tuple[str, ...], *, make: bool) -> int:
        stack = [os.open(".", _WALK, dir_fd=self._root)]
        todo = collections.deque(parts)
        links = 0
        try:
            while todo:
                part = todo.popleft()
                if part == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    continue
                try:
                    stack.append(self._enter_folder(part, stack[-1], make=make))
                except NotADirectoryError:
                    links += 1
                    target = self._target(part, stack[-1], parts)
                    if links > LINK_LIMIT:
                        self._refuse_path("/".join(parts), "has too many levels of symbolic links")
                    if target.startswith("/"):
                        while len(stack) > 1:
                            os.close(stack.pop())
                    todo.extendleft(
                        piece for piece in reversed(target.split("/")) if piece not in ("", ".")
                    )
            return stack.pop()
        finally:
            for descriptor in stack:
                os.close(descriptor)

    def _enter_folder(self, name: str, parent: int, *, make: bool) -> int:
        try:
            return os.open(name, _WALK, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
        os.chmod(name, FOLDER_MODE, dir_fd=parent)  # regardless of the umask
        return os.open(name, _WALK, dir_fd=parent)

    def _target(self, name: str, parent: int, parts: tuple[str, ...]) -> str:
        try:
            return os.readlink(name, dir_fd=parent)
        except OSError:
            self._refuse_path("/".join(parts), f"has the parent {name}, which is a file")

    def _refuse_path(self, path: str, text: str) -> NoReturn:
        message = f"{self.path}: {path!r} {text}"
        raise IntegrityError(message, hint="the image is damaged or malicious")

    def _close_descriptors(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._places.clear()
