"""Tests the effect of sets of extras on a target, and invalid references."""

from __future__ import annotations

from imgbuild.lock.lock_file import requirements
from imgbuild.matrix.load import loads
from tests.support.matrix_text import FILE, RIGHT, check, only
from tests.support.rows import each_row

SETS = """\
extras:
  rl:
    peft: {reason: adapters for the trainers, spec: ">=0.18", source: [docs/extras.md]}
    trl: {reason: the trainers themselves, source: [docs/extras.md]}
    setuptools: {reason: another reason here, spec: "<80", source: [docs/extras.md]}
  unused:
    wandb: {reason: reports of the trainers, source: [docs/extras.md]}
layers:
"""
WITH = RIGHT.replace("layers:\n", SETS).replace(
    "    requires:\n      setuptools", "    extras: [rl]\n    requires:\n      setuptools"
)


def test_target_entries_override_its_extras() -> None:
    matrix = loads(WITH.encode(), FILE)
    target = matrix.targets["cu124-vllm"]
    assert {name: extra.spec for name, extra in matrix.requirements_of(target).items()} == {
        "peft": ">=0.18", "trl": "", "setuptools": "",
    }  # fmt: skip
    assert requirements(matrix, "cu124-vllm") == {
        "peft": ">=0.18", "pip": "", "setuptools": "", "torch": "==2.6.0", "trl": "==0.18.2",
        "vllm": "==0.8.5.post1",
    }  # fmt: skip


def test_target_without_extras_is_unchanged() -> None:
    plain, beside = loads(RIGHT.encode(), FILE), RIGHT.replace("layers:\n", SETS)
    assert requirements(loads(beside.encode(), FILE), "cu124-vllm") == requirements(
        plain, "cu124-vllm"
    )


@each_row(
    ("old", "new", "path", "message"),
    [
        ("extras: [rl]", "extras: [lr]", "targets.cu124-vllm.extras[0]", "unknown set of extras"),
        ("extras: [rl]", "extras: [rl, rl]", "targets.cu124-vllm.extras[1]", "rl is listed twice"),
        ('">=0.18"', '"0.18"', "extras.rl.peft.spec", "not a version specifier"),
        (", source: [docs/extras.md]}\n  unused", "}\n  unused", "extras.rl.setuptools", "source"),
    ],
)
def test_invalid_extras_error_has_location(old: str, new: str, path: str, message: str) -> None:
    assert old in WITH
    problem = only(WITH.replace(old, new))
    assert problem.path == path
    assert message in problem.message


def test_extras_reference_without_sets_is_refused() -> None:
    check(
        "    requires:\n      setuptools",
        "    extras: [§rl]\n    requires:\n      setuptools",
        (
            "targets.cu124-vllm.extras[0]", "unknown set of extras", "rl",
            "but none is defined", None,
        ),
    )  # fmt: skip
