"""Tests that versions with earlier incorrect findings have only correct findings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import prepared_program

pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def errors(cache: Path, *words: str) -> list[tuple[str, str]]:
    """The errors from an audit: message and location."""
    env = {**os.environ, "IMGBUILD_CACHE": str(cache)}
    done = prepared_program.run_prepared(("audit", *words, "--json"), cwd=cache, env=env)
    (report,) = json.loads(done.stdout)
    return [
        (finding["message"], finding["where"])
        for finding in report["findings"]
        if finding["severity"] == "error"
    ]


@pytest.mark.long  # reads two releases of torchvision
@pytest.mark.parametrize("torchvision", ["0.22.0", "0.22.1"])
def test_datasets_module_of_torchvision_is_not_the_datasets_package(
    cache: Path, torchvision: str
) -> None:
    pins = (f"torchvision=={torchvision}", "torchdata==0.11.0", "datasets==4.0.0")
    assert errors(cache, *pins, "--python", "3.11", "--select", "imports") == []


@pytest.mark.long  # reads all of transformers; unit/audit/checks/test_import_calls.py has the rules
def test_kernels_version_requirement_of_transformers_is_checked(cache: Path) -> None:
    words = ("transformers==5.8.1", "--python", "3.10", "--select", "support")
    problems = errors(cache, "kernels==0.15.1", *words)
    first = next(where for message, where in problems if "(kernels/layer/layer.py:76)" in message)
    assert first == "transformers 5.8.1 transformers/integrations/hub_kernels.py:89"
    assert all("raises ValueError when it is imported" in message for message, _ in problems)
    assert errors(cache, "kernels==0.12.3", *words) == []


@pytest.mark.parametrize(
    ("ray", "click", "python", "count"),
    [
        ("2.49.1", "8.3.0", "3.10", 1),
        ("2.49.1", "8.3.0", "3.11", 0),
        ("2.53.0", "8.3.0", "3.10", 0),
    ],
)
def test_ray_commands_with_incompatible_click_are_reported(
    cache: Path, ray: str, click: str, python: str, count: int
) -> None:
    words = (f"ray=={ray}", f"click=={click}", "--python", python, "--select", "rules")
    problems = errors(cache, *words)
    assert [where for _, where in problems] == ["ray 2.49.1 ray/scripts/scripts.py:2687"] * count
