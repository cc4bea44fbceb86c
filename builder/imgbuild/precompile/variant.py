"""The row of a variant: a target with wheels of what was compiled ahead.

Comes in: a target's own row, the wheels, the variables that they need. Goes out: what that row has
besides, as YAML to paste.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from imgbuild.matrix.model import Target, Variable
from imgbuild.values import Arch

INDEX = "wheels"  # as the matrix calls the folder


def row(
    name: str,
    of: str,
    target: Target,
    wheels: Mapping[str, str],
    *,
    pins: Mapping[str, str] = MappingProxyType({}),
    variables: Mapping[str, Variable] = MappingProxyType({}),
    arch: Arch | None = None,
    gpus: Sequence[str] = (),
) -> str:
    """What the row `name` has besides `target`, the row `of`.

    `wheels`, which come from the folder of wheels, and `pins` are packages by their versions.
    `arch` and `gpus` are those that the wheels are for, if they are not for all.
    """
    lines = [f"  {name}:", f"    # the rest as in {of}"]
    if arch is not None and tuple(target.arch) != (arch,):
        lines.append(f"    arch: [{arch}]")
    if gpus:
        quoted = ", ".join(f'"{gpu}"' for gpu in gpus)
        lines.append(f"    gpu: [{quoted}]")
    lines.append("    pins:")
    lines += [
        f'      {package}: "{each}"' for package, each in {**target.pins, **pins, **wheels}.items()
    ]
    indexes = {**target.indexes, **dict.fromkeys(wheels, INDEX)}
    lines += ["    indexes:", *(f"      {package}: {index}" for package, index in indexes.items())]
    env = {**target.env, **variables}
    lines += ["    env:"] if env else []
    for variable, each in env.items():
        value = json.dumps(msgspec.to_builtins(each), ensure_ascii=False)
        lines.append(f"      {variable}: {value}")
    return "\n".join(lines)
