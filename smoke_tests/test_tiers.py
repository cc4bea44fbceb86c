"""Runs each case of a tier as a pytest test. conftest.py defines the options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_case(case: Any, options: Any, tmp_path: Path) -> None:
    """Check that the case and all results that it reports pass."""
    import run

    packages = json.loads(options.expect.read_text("utf-8"))["packages"]
    lacking = [name for name in case.needs if name not in packages]
    if lacking:
        pytest.skip(f"the lock has no {', '.join(lacking)}")
    ended = run.run_case(case, options, tmp_path)
    failed = [
        f"{result['name']}: {result['message']}"
        for result in ended
        if result["outcome"] == "failed"
    ]
    assert not failed, "\n".join([*failed, ended[-1]["log"]])
    if ended[-1]["outcome"] == "skipped":
        pytest.skip(ended[-1]["message"])
