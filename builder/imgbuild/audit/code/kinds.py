"""`data/audit/code_kinds.yaml`: the kinds of findings in users' code, by their codes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from imgbuild.system import files, yaml_data


class FindingKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of finding: `title` in a few words, `text` as `imgbuild explain CODE` prints it."""

    title: str
    text: str


@lru_cache(maxsize=1)
def load() -> Mapping[str, FindingKind]:
    """Code → kind, in the order of the file."""
    return yaml_data.load(files.data("audit/code_kinds.yaml"), dict[str, FindingKind])
