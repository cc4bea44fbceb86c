"""`data/audit/renamed_parameters.yaml`: parameters with another name in newer versions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from imgbuild.system import files, yaml_data


@lru_cache(maxsize=1)
def _load() -> Mapping[str, Mapping[str, str]]:
    return yaml_data.load(files.data("audit/renamed_parameters.yaml"), dict[str, dict[str, str]])


def replacement(package: str, callee: str, parameter: str) -> str:
    """The name of a parameter in newer versions of `package`; "" if unknown.

    `callee` is a class or function without its module.
    """
    table = _load().get(package, {})
    return table.get(f"{callee}.{parameter}") or table.get(parameter, "")
