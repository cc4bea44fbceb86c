"""Reads the types of findings in users' code from `data/audit/code_kinds.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from imgbuild.system import files, yaml_data


class FindingKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A type of finding, which `imgbuild explain CODE` describes.

    `cure` is "" if each finding has its own. `earlier` are the codes that these findings had in
    earlier versions.
    """

    title: str
    text: str
    cure: str = ""
    example: str = ""
    earlier: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def load_finding_kinds() -> Mapping[str, FindingKind]:
    """Map each code to its type of finding, in the order of the data file."""
    return yaml_data.load_yaml_data(files.data("audit/code_kinds.yaml"), dict[str, FindingKind])
