"""The audit of a user's files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support import audited_code
from tests.support.audited_code import Findings


@pytest.fixture
def audit(tmp_path: Path) -> Findings:
    """Audits files of a user, by path, against packages; the findings that are shown."""
    return partial(audited_code.findings, tmp_path)
