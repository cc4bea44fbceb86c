"""Tests the text of a pull request: changes and reasons as Markdown with escaped texts."""

from __future__ import annotations

import datetime
import re

from imgbuild.matrix.tried_updates import RefusedVersion
from imgbuild.show.image_diff import ArchDiff, ImageDiff, PackageChange
from imgbuild.update import lock_changes
from imgbuild.update.run import PinMove, RowUpdate
from imgbuild.values import Arch

HOSTILE = "@octocat fixes #1 </details> | `x` <script> [a](https://example.org) ![i](x) \n# head"
DAY = datetime.date(2026, 11, 28)


def row_update(text="1.16.0", reason="trl 1.16.0 requires torch<2.15"):
    part = ArchDiff(
        changes=(
            PackageChange(kind="wheel", package="trl", before="1.9.2", after=text),
            PackageChange(kind="deb", package="curl", before="", after="7.88"),
        ),
        layers=("trl",),
        pull=10_000_000,
        total=3_000_000_000,
    )
    refusal = RefusedVersion(package="torch", version="2.15.0", reasons=(reason,), tried=DAY)
    return RowUpdate(
        source="cu130-trl",
        row="cu130-trl1.16.0",
        moves=(PinMove(package="trl", before="1.9.2", after=text, fixes=("GHSA-1",)),),
        refused=(refusal,),
        diff=ImageDiff(target="cu130-trl1.16.0", before="cu130-trl", arch={Arch.X86_64: part}),
    )


def test_description_of_a_lock_change_has_versions_sizes_and_reasons():
    text = lock_changes.changes_markdown([row_update()])
    assert "## `cu130-trl1.16.0`" in text
    assert "| `trl` | `1.9.2` | `1.16.0` | `GHSA-1` |" in text
    assert "x86_64: 2 packages changed, 10.0 MB of 3.0 GB to pull" in text
    assert "| `curl (Debian)` |  | `7.88` |" in text
    assert "- `torch 2.15.0`\n  - `trl 1.16.0 requires torch<2.15`" in text


def test_untrusted_texts_in_a_lock_change_are_code_spans():
    text = lock_changes.changes_markdown([row_update(HOSTILE, HOSTILE)])
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    for mark in ("@", "#1", "<script>", "https:", "[a]"):
        assert mark not in outside
    assert outside.count("</details>") == outside.count("<details>") == 1
    assert not [line for line in text.splitlines() if line.startswith(("@", "# "))]
    columns = {
        line.count("|") - line.count("\\|") for line in text.splitlines() if "octocat" in line
    }
    assert columns <= {5, 4, 0}


def test_description_of_a_lock_change_explains_a_missing_new_row():
    item = RowUpdate(source="a", refused=row_update().refused)
    text = lock_changes.changes_markdown([item])
    assert text.startswith(lock_changes.NO_UPDATE_TEXT)
    assert "### `a`" in text


def test_long_description_of_a_lock_change_is_cut_at_a_line():
    refusal = RefusedVersion(package="torch", version="2.15.0", reasons=("x" * 900,) * 8, tried=DAY)
    text = lock_changes.changes_markdown([RowUpdate(source="a", refused=(refusal,) * 20)])
    assert len(text) <= 65_536
    assert text.endswith(lock_changes.OMISSION_NOTE)
    assert text.removesuffix(lock_changes.OMISSION_NOTE).endswith("`")
