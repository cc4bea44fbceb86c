"""The row of a variant: a target with wheels of what was compiled ahead.

Comes in: a target's own row, the wheels, the variables that they need. Goes out: what that row has
besides, as YAML to paste.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from imgbuild.matrix.model import Target, Variable

INDEX = "wheels"  # as the matrix calls the folder


def row(
    name: str, target: Target, wheels: Mapping[str, str], variables: Mapping[str, Variable]
) -> str:
    """What is added to the row `target`, which is called `name`: `wheels` by their versions."""
    pins = {**target.pins, **wheels}
    lines = [f"  {name}-fast:", f"    # the rest as in {name}", "    pins:"]
    lines += [f'      {package}: "{version}"' for package, version in pins.items()]
    indexes = {**target.indexes, **dict.fromkeys(wheels, INDEX)}
    lines += ["    indexes:", *(f"      {package}: {index}" for package, index in indexes.items())]
    lines.append("    env:")
    for variable, each in {**target.env, **variables}.items():
        value = json.dumps(msgspec.to_builtins(each), ensure_ascii=False)
        lines.append(f"      {variable}: {value}")
    return "\n".join(lines)
