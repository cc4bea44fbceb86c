#!/usr/bin/env python3
"""Puts an image together from carried parts: a root folder, each layer checked by its diff id.

    python3 gpu_unpack.py images/cu124-vllm.json parts/ root/

Runs as root on a machine that has Python 3.10 and no network. zstd comes from Python 3.14's own
module, the package zstandard, its wheel beside this file or in --wheels, or the command. Layers are
applied in order; those whose parts are not all there yet wait for the next run, which goes on where
this one stopped. Status 0 if the image is whole, 3 if parts are missing. --beside is what gpu_pack
was given: where this machine's own files are that were not carried.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import queue
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

CHUNK = 1 << 20
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
MISSING = 3


def main(arguments: list[str]) -> int:
    """Apply every layer that can be applied."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("image", type=Path, help="images/TARGET.json of gpu_pack")
    parser.add_argument("parts", type=Path, help="folder below which the parts lie")
    parser.add_argument("root", type=Path, help="the root folder to make")
    parser.add_argument("--wheels", type=Path, default=Path(__file__).parent)
    parser.add_argument("--beside", type=Path, help="sha256sum of files that this machine has")
    options = parser.parse_args(arguments)
    image = json.loads(options.image.read_text("utf-8"))
    there = {path.name: path for path in options.parts.rglob("*") if path.is_file()}
    own = read_beside(options.beside)
    done_file = options.root.with_name(options.root.name + ".layers")
    done = done_file.read_text("ascii").split() if done_file.exists() else []
    if done != [layer["diff_id"] for layer in image["layers"]][: len(done)]:
        sys.exit(f"{done_file}: {options.root} holds layers of another image; remove both")
    options.root.mkdir(parents=True, exist_ok=True)
    options.root.chmod(0o755)
    inflate = inflater(options.wheels)
    for layer in image["layers"][len(done) :]:
        lacking = [part["name"] for part in layer["parts"] if part["name"] not in there]
        if lacking:
            print(f"{len(done)} of {len(image['layers'])} layers; next is needed: {lacking[0]}")
            return MISSING
        for gap in layer.get("beside", []):
            path = own.get(gap["sha256"])
            if path is None or not path.is_file() or path.stat().st_size != gap["size"]:
                sys.exit(f"{path or gap['sha256']} is not here, or another: carry it, too")
        started = time.monotonic()
        files = [there[part["name"]] for part in layer["parts"]]
        size = apply(layer["diff_id"], content(layer, inflate(files), own), options.root)
        done.append(layer["diff_id"])
        done_file.write_text("\n".join(done) + "\n", "ascii")
        print(f"{layer['diff_id'][:19]} {size / 1e6:8.1f} MB {time.monotonic() - started:5.1f} s")
    print(f"{image['target']}: {len(done)} layers, each of its diff id")
    return 0


def read_beside(listed: Path | None) -> dict[str, Path]:
    """The machine's own files by their sha256, from sha256sum's lines."""
    rows = listed.read_text("utf-8").splitlines() if listed else []
    return {row[:64]: Path(row[66:]) for row in rows}


def content(
    layer: dict[str, Any], carried: Iterator[bytes], own: dict[str, Path]
) -> Iterator[bytes]:
    """The tar of a layer: what was carried, and between it the machine's own files."""
    at, rest = 0, b""
    for gap in layer.get("beside", []):
        while at < gap["offset"]:
            rest = rest or next(carried)
            piece, rest = rest[: gap["offset"] - at], rest[gap["offset"] - at :]
            at += len(piece)
            yield piece
        with own[gap["sha256"]].open("rb") as stream:
            yield from chunks(stream)
        at += gap["size"]
    if rest:
        yield rest
    yield from carried


class Joined(io.RawIOBase):
    """Files as one stream, one after another."""

    def __init__(self, files: list[Path]) -> None:
        self._files = list(files)
        self._open: BinaryIO | None = None

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with what comes next; 0 at the end of the last file."""
        while True:
            if self._open is None:
                if not self._files:
                    return 0
                self._open = self._files.pop(0).open("rb")
            data = self._open.read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._open.close()
            self._open = None


def inflater(wheels: Path) -> Callable[[list[Path]], Iterator[bytes]]:
    """A function that gives the content of zstd files that were cut into parts."""
    with contextlib.suppress(ImportError):
        own = importlib.import_module("compression.zstd")
        return lambda files: chunks(own.ZstdFile(io.BufferedReader(Joined(files), CHUNK)))
    module = foreign(wheels)
    if module is not None:
        found = module

        def _package(files: list[Path]) -> Iterator[bytes]:
            reader = found.ZstdDecompressor(max_window_size=1 << 31)
            return chunks(reader.stream_reader(Joined(files), CHUNK, read_across_frames=True))

        return _package
    if shutil.which("zstd") is None:
        sys.exit("no zstd: put a wheel of zstandard for this Python beside this file")
    return by_command


def foreign(wheels: Path) -> Any:
    """The package zstandard, installed or from a wheel; None if there is none for this Python."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("zstandard")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for wheel in sorted(wheels.glob(f"zstandard-*-{tag}-{tag}-*.whl")):
        folder = tempfile.mkdtemp(prefix="zstandard-")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)  # noqa: S202  # carried by the caller
        sys.path.insert(0, folder)
        with contextlib.suppress(ImportError):
            return importlib.import_module("zstandard")
    return None


def by_command(files: list[Path]) -> Iterator[bytes]:
    """The content, by the command zstd."""
    with subprocess.Popen(
        ["zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        source = io.BufferedReader(Joined(files), CHUNK)
        target = cast("BinaryIO", process.stdin)

        def _feed() -> None:
            with target:
                shutil.copyfileobj(source, target, CHUNK)

        feeding = threading.Thread(target=_feed)
        feeding.start()
        yield from chunks(cast("BinaryIO", process.stdout))
        feeding.join()
    if process.returncode != 0:
        sys.exit(
            f"zstd ended with status {process.returncode}: {files[0]} and its like are damaged"
        )


def chunks(stream: Any) -> Iterator[bytes]:
    """What a stream holds."""
    while data := stream.read(CHUNK):
        yield data


class Piped(io.RawIOBase):
    """Chunks that another thread makes, as a stream that is hashed while it is read."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._failed: BaseException | None = None
        self._queue: queue.Queue[bytes] = queue.Queue(64)
        self._rest = memoryview(b"")
        self._ended = False
        threading.Thread(target=self._fill, args=(source,), daemon=True).start()

    def _fill(self, source: Iterator[bytes]) -> None:
        try:
            for chunk in source:
                self.digest.update(chunk)
                self._queue.put(chunk)
        except BaseException as error:  # noqa: BLE001  # told to the thread that reads
            self._failed = error
        self._queue.put(b"")

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with what comes next."""
        if not self._rest and not self._ended:
            self._rest = memoryview(self._queue.get())
            self._ended = not self._rest
            if self._failed is not None:
                raise OSError(str(self._failed)) from self._failed
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self.size += count
        return count


def apply(diff_id: str, source: Iterator[bytes], root: Path) -> int:
    """Write one layer over what lies in `root`; the bytes of its tar. Ends if it is another one."""
    piped = Piped(source)
    stream = io.BufferedReader(piped, CHUNK)
    folders: dict[str, tarfile.TarInfo] = {}
    own: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            path = os.path.normpath("/" + member.name).lstrip("/")
            if os.path.basename(path).startswith(WHITEOUT):
                white_out(root, path, own)
                continue
            own.add(path)
            write(archive, member, root, path)
            if member.isdir():
                folders[path] = member
    for _ in chunks(stream):  # what follows the end of the tar is part of its digest
        pass
    for path, member in sorted(folders.items(), reverse=True):
        (root / path).chmod(member.mode & 0o7777)
        os.utime(root / path, (member.mtime, member.mtime))
    found = f"sha256:{piped.digest.hexdigest()}"
    if found != diff_id:
        sys.exit(f"a layer is {found}, the image says {diff_id}: carry its parts again")
    return piped.size


def white_out(root: Path, path: str, own: set[str]) -> None:
    """Remove what a whiteout hides, but not what the same layer brings."""
    parent, name = os.path.split(path)
    folder = root / parent
    hidden = [name.removeprefix(WHITEOUT)]
    if name == OPAQUE:
        hidden = [child.name for child in folder.iterdir()] if folder.is_dir() else []
    for child in hidden:
        if os.path.join(parent, child) not in own:
            remove(folder / child)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path, path: str) -> None:
    """Write one member in the place of what lies there, with owner, mode and time."""
    place = root / path
    if path and not inside(root, place.parent):
        sys.exit(f"{member.name} would be written outside of {root}")
    if member.isdir():
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        place.mkdir(exist_ok=True)
        os.chown(place, member.uid, member.gid)
        return
    remove(place)
    if member.islnk():
        os.link(
            root / os.path.normpath("/" + member.linkname).lstrip("/"), place, follow_symlinks=False
        )
        return
    if member.issym():
        place.symlink_to(member.linkname)
    elif member.isfile():
        content = cast("BinaryIO", archive.extractfile(member))
        with place.open("xb") as stream:
            shutil.copyfileobj(content, stream, CHUNK)
    else:
        sys.exit(f"{member.name} is neither a file, a folder nor a link")
    os.chown(place, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        place.chmod(member.mode & 0o7777)
    os.utime(place, (member.mtime, member.mtime), follow_symlinks=False)


def inside(root: Path, folder: Path) -> bool:
    """Whether no link leads from `folder` out of `root`."""
    top, real = os.path.realpath(root), os.path.realpath(folder)
    return real == top or real.startswith(top + os.sep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
