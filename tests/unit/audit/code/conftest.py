"""Provides the fixture that audits a user's files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support import audited_code
from tests.support.audited_code import Findings


@pytest.fixture
def audit(tmp_path: Path) -> Findings:
    """A function that audits a user's files, by path, with packages, and returns the findings."""
    return partial(audited_code.audit_files, tmp_path)
