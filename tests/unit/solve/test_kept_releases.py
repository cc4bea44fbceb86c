"""Tests reporting frameworks with a later release than in the target of `like`."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.cache.context import Context
from imgbuild.solve.kept_releases import later_releases
from imgbuild.solve.problem import SolveProblem
from imgbuild.system.console import console
from imgbuild.values import Arch
from tests.support import extended, samples

LIKE = "  alike:\n    like: small\n    summary: as it\n    requirements: [requirements.txt]\n"
HAS = {"transformers": "4.57.6", "vllm": "0.11.2", "peft": "0.18.1"}


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SolveProblem:
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    wheels = [samples.wheel(name, version, 5000) for name, version in HAS.items()]
    path = extended.create_repository(
        tmp_path / "ours", extended.MATRIX + LIKE, extended.published_lock(*wheels)
    )
    (path.parent / "requirements.txt").write_text("trl\npeft>=0.19\n")
    return SolveProblem(extended.read_extended(path), "alike", Arch.X86_64, Context.open(console))


@pytest.mark.parametrize(
    ("chosen", "bounds"),
    [
        ({"transformers": "5.1.0"}, ["transformers<5"]),
        ({"transformers": "4.58.0", "vllm": "0.11.3"}, []),
        ({"transformers": "4.40.0"}, []),
        ({"vllm": "0.12.0"}, ["vllm<0.12"]),
        ({"peft": "0.19.0"}, []),  # the project does not accept the target's
        ({"trl": "1.0"}, []),  # the target has none
        ({"transformers": "5.0", "vllm": "1.0"}, ["transformers<5", "vllm<0.12"]),
    ],
)
def test_releases_excluded_by_bounds_are_reported(
    problem: SolveProblem, chosen: dict[str, str], bounds: list[str]
) -> None:
    assert [each.upper_bound for each in later_releases(problem, chosen)] == bounds


def test_extension_reports_no_changed_releases(problem: SolveProblem) -> None:
    extends = SolveProblem(problem.matrix, extended.OWN_TARGET, Arch.X86_64, problem.context)
    assert later_releases(extends, {"transformers": "5.1.0"}) == []
