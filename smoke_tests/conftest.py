"""Runs the cases with pytest, as in `pytest smoke_tests --tier gpu --expect FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
OPTIONS = pytest.StashKey[Any]()
sys.path.insert(0, str(HERE))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of run.py."""
    group = parser.getgroup("smoke tests")
    group.addoption("--tier", default="static", help="static, cpu, gpu or multi-gpu")
    group.addoption("--expect", help="JSON file with the expected content")
    group.addoption("--model", help="folder of a real model, for the gpu tiers")
    group.addoption("--timeout-factor", default="1", help="multiplies all time limits")


def pytest_collection(session: pytest.Session) -> None:
    """Read the options. --expect is required."""
    import run

    config = session.config
    if not config.getoption("--expect"):
        message = "--expect FILE is required (see README.md)"
        raise pytest.UsageError(message)
    names = ("--tier", "--expect", "--timeout-factor")
    words = [f"{name}={config.getoption(name)}" for name in names]
    model = config.getoption("--model")
    try:
        options = run.read_options([*words, *([f"--model={model}"] if model else [])])
    except SystemExit:
        message = "invalid options; see the error above"
        raise pytest.UsageError(message) from None
    config.stash[OPTIONS] = options


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for each case of the tier."""
    from smoke_tiers import TIERS

    if "case" in metafunc.fixturenames:
        cases = TIERS[metafunc.config.getoption("--tier")]
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.fixture(scope="session", name="options")
def _options(pytestconfig: pytest.Config) -> Any:
    return pytestconfig.stash[OPTIONS]
