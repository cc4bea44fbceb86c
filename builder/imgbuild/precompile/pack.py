"""Wheels of what was compiled ahead, and the row of a variant that is locked with one.

FlashInfer's kernels, Triton's kernels and bytecode are packed here, each with its own contents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from imgbuild.lock.lock import Lock
from imgbuild.matrix.model import Target, Variable
from imgbuild.values import Arch, Bytes, Sha256, sha256
from imgbuild.wheel import packed

INDEX = "wheels"  # the matrix's name for the folder of the wheels
DIGITS = 12
NONE: Mapping[str, bytes] = MappingProxyType({})


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """What the row of a variant has besides its target's, and besides the wheel.

    The variant is named TARGET-`suffix`. `pins` map packages to versions. `arch` and `gpus` ("9.0")
    are those that the wheel is for, None and empty if it is for all.
    """

    suffix: str
    pins: dict[str, str] = {}
    variables: dict[str, Variable] = {}
    arch: Arch | None = None
    gpus: tuple[str, ...] = ()


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """What a wheel is called and what it requires."""

    package: str
    version: str
    tag: str
    requires: tuple[str, ...] = ()


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel that was made for a target: its name, bytes and digest."""

    target: str
    arch: Arch
    package: str
    version: str
    file: str
    size: Bytes
    sha256: Sha256
    variant: Variant


def digits(text: str) -> str:
    """The part of a version that follows from `text`, which names all contents."""
    return sha256(text.encode())[:DIGITS]


def listed(contents: Mapping[str, bytes]) -> str:
    """A line with the digest of each of `contents`, as `digits` wants them."""
    return "".join(f"{name} {sha256(data)}\n" for name, data in contents.items())


def native(lock: Lock, arch: Arch) -> str:
    """The tag of a wheel with compiled code for `arch` and the C library of `lock`."""
    return f"py3-none-manylinux_{lock.base.glibc.replace('.', '_')}_{arch.wheel}"


def pack(
    lock: Lock,
    arch: Arch,
    name: Name,
    out: Path,
    *,
    variant: Variant,
    files: Mapping[str, bytes | Path] = NONE,
    modules: Mapping[str, bytes] = NONE,
) -> Packed:
    """Write a wheel for the target of `lock` to the folder `out`.

    `files` and `modules` are as in `wheel.packed.write`; InputError if they are too many.
    """
    wheel = packed.write(
        name.package, name.version, name.tag, files, out, modules=modules, requires=name.requires
    )
    content = wheel.read_bytes()
    return Packed(
        target=lock.target,
        arch=arch,
        package=name.package,
        version=name.version,
        file=wheel.name,
        size=len(content),
        sha256=sha256(content),
        variant=variant,
    )


def row(made: Packed, target: Target) -> str:
    """What the variant's row has besides the row `target`, as YAML to paste into the matrix."""
    variant = made.variant
    lines = [f"  {made.target}-{variant.suffix}:", f"    # the rest as in {made.target}"]
    if variant.arch is not None and tuple(target.arch) != (variant.arch,):
        lines.append(f"    arch: [{variant.arch}]")
    if variant.gpus:
        quoted = ", ".join(f'"{gpu}"' for gpu in variant.gpus)
        lines.append(f"    gpu: [{quoted}]")
    pins = {**target.pins, **variant.pins, made.package: made.version}
    lines += ["    pins:", *(f'      {package}: "{each}"' for package, each in pins.items())]
    indexes = {**target.indexes, made.package: INDEX}
    lines += ["    indexes:", *(f"      {package}: {index}" for package, index in indexes.items())]
    env = {**target.env, **variant.variables}
    lines += ["    env:"] if env else []
    for variable, each in env.items():
        value = json.dumps(msgspec.to_builtins(each), ensure_ascii=False)
        lines.append(f"      {variable}: {value}")
    return "\n".join(lines)
