#!/usr/bin/env python3
"""Packs the layers of built images into small loads, to carry them to a machine without a network.

    tools/gpu_pack.py carry cu124-vllm cu130-vllm

Each layer becomes one zstd file, made once and named by its diff id, so that images share it; it is
cut into parts, and the parts fill numbered folders (loads) of at most --load bytes. A part stays in
the load that it came to first: a later image adds loads of what it needs besides. What a machine
needs to put an image together is carry/images/TARGET.json; tools/gpu_unpack.py does it, and
tools/gpu_proof.py runs the smoke tests there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from imgbuild import codec, lock, smoke
from imgbuild.oci import layout
from imgbuild.oci.unpack import CHUNK, inflated
from imgbuild.values import Arch

ROOT = Path(__file__).resolve().parent.parent
LOAD = 60_000_000
PART = 10_000_000  # bytes of a part at most: what a load may lack to be full
NAME = 20  # characters of a diff id in the names of its parts
BESIDE = 1 << 18  # bytes: smaller files are carried, whether the machine has them or not


def main(arguments: list[str]) -> int:
    """Pack every target that is named; print the loads that each of them needs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the loads; kept between runs")
    parser.add_argument("targets", nargs="+", help="targets that lie built in build/")
    parser.add_argument("--arch", default="x86_64")
    parser.add_argument("--layouts", type=Path, default=ROOT / "build")
    parser.add_argument("--images", type=Path, default=ROOT / "images", help="folder of the locks")
    parser.add_argument("--level", type=int, default=9, help="zstd's, 1 to 19")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--load", type=int, default=LOAD, help="bytes of a load at most")
    parser.add_argument("--beside", type=Path, help="sha256sum of files that the machine has")
    options = parser.parse_args(arguments)
    options.there = there(options.beside)
    for folder in ("zst", "loads", "images"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    for target in options.targets:
        image = describe(target, options)
        for layer in image["layers"]:
            layer.update(parts(layer, options))
        path = options.out / "images" / f"{target}.json"
        path.write_text(json.dumps(image, indent=1) + "\n", "utf-8")
        needed = sorted({part["load"] for layer in image["layers"] for part in layer["parts"]})
        size = sum(part["size"] for layer in image["layers"] for part in layer["parts"])
        print(
            f"{target}: {len(image['layers'])} layers, {size / 1e6:.0f} MB in {len(needed)} loads:"
        )
        print(" ".join(needed), flush=True)
    return 0


def describe(target: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the bare machine is told of an image, its parts aside."""
    arch = Arch.parse(options.arch)
    built = layout.read(options.layouts / target)
    stored = built.image(arch)
    locked = lock.read_lock(options.images, target)
    expected = smoke.expectation(locked, arch)
    return {
        "format": 1,
        "target": target,
        "arch": str(arch),
        "manifest": stored.manifest.digest,
        "config": stored.config.digest,
        "settings": stored.settings,
        "user": msgspec.to_builtins(locked.settings.user),
        "expect": json.loads(codec.encode(expected)),
        "layers": [
            {"diff_id": diff_id, "blob": str(built.blob(layer.digest))}
            for layer, diff_id in zip(stored.layers, stored.diff_ids, strict=True)
        ],
    }


def there(listed: Path | None) -> frozenset[str]:
    """The sha256 of the files that the machine has, from sha256sum's lines."""
    rows = listed.read_text("utf-8").splitlines() if listed else []
    return frozenset(row.partition(" ")[0] for row in rows)


def parts(layer: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The parts of a layer, each in its load, and the files that lie beside them.

    The layer is compressed if it has not been.
    """
    name = layer["diff_id"].removeprefix("sha256:")[:NAME]
    listed = options.out / "zst" / f"{name}.json"
    blob = Path(layer.pop("blob"))
    if not listed.exists():
        found = beside(blob, options.there) if options.there else []
        packed = compressed(blob, layer["diff_id"], found, options)
        cut = []
        for number, data in enumerate(pieces(packed, min(PART, options.load))):
            part = f"{name}-{number:03}"
            load = place(part, data, options)
            cut.append({"name": part, "size": len(data), "load": load})
        packed.unlink()
        made = {"parts": cut, "beside": found}
        listed.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    kept: dict[str, Any] = json.loads(listed.read_text("utf-8"))
    return kept


def beside(blob: Path, known: frozenset[str]) -> list[dict[str, Any]]:
    """Where in the tar of a layer the machine's own files are, in their order."""
    found = []
    with inflated(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not member.isfile() or member.size < BESIDE:
                continue
            content = cast("BinaryIO", archive.extractfile(member))
            digest = hashlib.sha256()
            while chunk := content.read(CHUNK):
                digest.update(chunk)
            if digest.hexdigest() in known:
                place = {"offset": member.offset_data, "size": member.size}
                found.append({**place, "sha256": digest.hexdigest()})
    return found


def compressed(
    blob: Path, diff_id: str, left_out: list[dict[str, Any]], options: argparse.Namespace
) -> Path:
    """The tar of a layer, but for what is left out, as a zstd file; checked against its diff id."""
    path: Path = options.out / "zst" / diff_id.removeprefix("sha256:")[:NAME]
    digest = hashlib.sha256()
    command = ["zstd", "--quiet", "--force", f"-{options.level}", f"-T{options.threads}",
               "-o", str(path), "-"]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process, inflated(blob) as stream:
        target = cast("BinaryIO", process.stdin)
        at = 0
        for gap in [*left_out, {"offset": sys.maxsize, "size": 0}]:
            for end, kept in ((gap["offset"], True), (gap["offset"] + gap["size"], False)):
                while chunk := stream.read(min(CHUNK, end - at)):
                    at += len(chunk)
                    digest.update(chunk)
                    if kept:
                        target.write(chunk)
        target.close()
    if process.returncode != 0:
        message = f"zstd ended with status {process.returncode}"
        raise SystemExit(message)
    if f"sha256:{digest.hexdigest()}" != diff_id:
        message = f"{blob}: its content is sha256:{digest.hexdigest()}, the image says {diff_id}"
        raise SystemExit(message)
    return path


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """The file in pieces of `size` bytes, the last one shorter."""
    with path.open("rb") as stream:
        while data := stream.read(size):
            yield data


def place(name: str, data: bytes, options: argparse.Namespace) -> str:
    """Write a part into the first load that has room; the load's name.

    Loads that are not the newest are closed: they may have been carried already.
    """
    loads = sorted(path for path in (options.out / "loads").iterdir() if path.is_dir())
    last: Path | None = loads[-1] if loads else None
    held = sum(path.stat().st_size for path in last.iterdir()) if last else options.load
    if last is None or held + len(data) > options.load:
        last = options.out / "loads" / f"{len(loads):03}"
        last.mkdir()
    (last / name).write_bytes(data)
    return last.name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
