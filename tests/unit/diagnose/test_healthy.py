"""Tests that logs of successful runs have no finding, regardless of their words."""

from __future__ import annotations

import io
from pathlib import Path

from imgbuild.diagnose import rules
from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row

HEALTHY = sorted((Path(__file__).parents[2] / "data/diagnose/healthy").glob("*.log"))


@each_row("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_has_no_finding(path: Path) -> None:
    with path.open("rb") as stream:
        assert diagnose_log(stream, path.name).findings == ()


@each_row("path", HEALTHY, ids=lambda path: path.stem)
def test_failure_at_the_end_of_a_log_is_found(path: Path) -> None:
    """This test ensures that healthy logs are read to their end."""
    failure = next(rule for rule in rules.load_rules() if rule.code == "IMG504").example
    text = path.read_bytes() + failure.encode()
    assert diagnose_log(io.BytesIO(text), path.name).findings[0].code == "IMG504"


def test_concatenated_healthy_logs_have_no_finding() -> None:
    text = b"".join(path.read_bytes() for path in HEALTHY for _ in range(20))
    assert diagnose_log(io.BytesIO(text), "log").findings == ()
