"""Tests the effect of sets of extras on a target, and invalid references."""

from __future__ import annotations

from imgbuild.lock.lock_file import required_specifiers
from imgbuild.matrix.load import parse_matrix
from tests.support.matrix_text import FILE, VALID_MATRIX, check_broken, only_problem
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
WITH = VALID_MATRIX.replace("layers:\n", SETS).replace(
    "    requires:\n      setuptools", "    extras: [rl]\n    requires:\n      setuptools"
)


def test_requirements_of_a_target_override_its_extras() -> None:
    matrix = parse_matrix(WITH.encode(), FILE)
    target = matrix.targets["cu124-vllm"]
    assert {name: extra.spec for name, extra in matrix.requirements_of(target).items()} == {
        "peft": ">=0.18", "trl": "", "setuptools": "",
    }  # fmt: skip
    assert required_specifiers(matrix, "cu124-vllm") == {
        "peft": ">=0.18", "pip": "", "setuptools": "", "torch": "==2.6.0", "trl": "==0.18.2",
        "vllm": "==0.8.5.post1",
    }  # fmt: skip


def test_requirements_of_a_target_without_extras_are_unchanged() -> None:
    plain, beside = (
        parse_matrix(VALID_MATRIX.encode(), FILE),
        VALID_MATRIX.replace("layers:\n", SETS),
    )
    assert required_specifiers(
        parse_matrix(beside.encode(), FILE), "cu124-vllm"
    ) == required_specifiers(plain, "cu124-vllm")


@each_row(
    ("old", "new", "path", "message"),
    [
        ("extras: [rl]", "extras: [lr]", "targets.cu124-vllm.extras[0]", "unknown set of extras"),
        ("extras: [rl]", "extras: [rl, rl]", "targets.cu124-vllm.extras[1]", "rl is listed twice"),
        ('">=0.18"', '"0.18"', "extras.rl.peft.spec", "not a version specifier"),
        (", source: [docs/extras.md]}\n  unused", "}\n  unused", "extras.rl.setuptools", "source"),
    ],
)
def test_error_for_invalid_extras_has_a_location(
    old: str, new: str, path: str, message: str
) -> None:
    assert old in WITH
    problem = only_problem(WITH.replace(old, new))
    assert problem.path == path
    assert message in problem.message


def test_reference_to_extras_is_refused_if_no_extras_are_defined() -> None:
    check_broken(
        "    requires:\n      setuptools",
        "    extras: [§rl]\n    requires:\n      setuptools",
        (
            "targets.cu124-vllm.extras[0]", "unknown set of extras", "rl",
            "but none is defined", None,
        ),
    )  # fmt: skip
