"""Guards judged in a world."""

from __future__ import annotations

import pytest

from imgbuild.audit.facts import Guard
from imgbuild.audit.guards import ATTRIBUTE, IMPORT, MISSING, State, evaluate, judge
from tests.unit.small_world import SmallWorld

WORLD = SmallWorld(
    {
        "vllm 0.10.2": {"vllm/__init__.py": "", "vllm/envs.py": ""},
        "flash-attn 2.8.3+cu12": {"flash_attn/__init__.py": ""},
    }
)
RUNS, SKIPPED, UNKNOWN, HANDLED = State.RUNS, State.SKIPPED, State.UNKNOWN, State.HANDLED


@pytest.mark.parametrize(
    ("guard", "state"),
    [
        (Guard("version", "vllm", ">=0.10.1,<0.12"), RUNS),
        (Guard("version", "vllm", "<0.10"), SKIPPED),
        (Guard("version", "vllm", "<0.10.2.dev0"), SKIPPED),
        (Guard("version", "flash_attn", ">=2.8.3"), RUNS),
        (Guard("version", "torch", ">=2"), UNKNOWN),
        (Guard("version", "vllm", "what?"), UNKNOWN),
        (Guard("present", "vllm"), RUNS),
        (Guard("present", "vllm", ">=0.11"), SKIPPED),
        (Guard("present", "vllm.envs"), RUNS),
        (Guard("present", "vllm.worker"), SKIPPED),
        (Guard("present", "flash-attn"), RUNS),
        (Guard("present", "json"), RUNS),
        (Guard("present", "apex"), SKIPPED),
        (Guard("absent", "apex"), RUNS),
        (Guard("absent", "vllm"), SKIPPED),
        (Guard("absent", "vllm", ">=0.11"), RUNS),
        (Guard("python", "", ">=3.11"), RUNS),
        (Guard("python", "", "<3.9"), SKIPPED),
        (Guard("platform", "linux"), RUNS),
        (Guard("platform", "win32"), SKIPPED),
        (Guard("platform", "win32", "!"), RUNS),
        (Guard("platform", "xpu"), SKIPPED),
        (Guard("platform", "linux", "!"), SKIPPED),
        (Guard("platform", "aarch64"), SKIPPED),
        (Guard("platform", "amd64"), RUNS),
        (Guard("platform", "rocm"), UNKNOWN),
        (Guard("typing"), SKIPPED),
        (Guard("handled", "ImportError"), HANDLED),
        (Guard("unknown", "args.use_vllm"), UNKNOWN),
    ],
    ids=str,
)
def test_what_a_world_makes_of_a_guard(guard, state):
    assert evaluate(WORLD, guard) is state


def test_a_partial_world_does_not_know_what_is_absent():
    world = SmallWorld({"trl 1.0": {"trl/__init__.py": ""}}, partial=True)
    assert evaluate(world, Guard("present", "vllm")) is UNKNOWN
    assert evaluate(world, Guard("absent", "vllm")) is UNKNOWN
    assert evaluate(world, Guard("present", "trl")) is RUNS


def test_all_guards_must_hold():
    course = judge(WORLD, (Guard("present", "vllm"), Guard("python", "", "<3.9")))
    assert not course.runs
    assert judge(WORLD, ()).certain
    assert not judge(WORLD, (Guard("unknown", "x"), Guard("present", "vllm"))).certain


def test_who_catches_what():
    assert judge(WORLD, (Guard("handled", "ImportError"),)).catches(*IMPORT)
    assert not judge(WORLD, (Guard("handled", "ImportError"),)).catches(*ATTRIBUTE)
    assert judge(WORLD, (Guard("handled", "Exception"),)).catches(*ATTRIBUTE)
    assert judge(WORLD, (Guard("handled", ""),)).catches(*ATTRIBUTE)
    missing_only = judge(WORLD, (Guard("handled", "ModuleNotFoundError"),))
    assert missing_only.catches(*MISSING)
    assert not missing_only.catches(*IMPORT)
    both = judge(WORLD, (Guard("handled", "ImportError, AttributeError"),))
    assert both.catches(*IMPORT)
    assert both.catches(*ATTRIBUTE)


def test_hasattr_speaks_of_its_expression_only():
    course = judge(WORLD, (Guard("handled", "AttributeError", "vllm.envs.VLLM_USE_V1"),))
    assert course.asked == {"vllm.envs.VLLM_USE_V1"}
    assert not course.catches(*ATTRIBUTE)
