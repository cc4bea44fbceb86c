"""Tests reading reasons from refused updates and from notes in the matrix."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet

from imgbuild.errors import InputError
from imgbuild.learn import recorded
from imgbuild.lock import published
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import Matrix

NAME = "cu130-verl0.9"


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return published.load_matrix(project_paths.catalogue_project().matrix)


def noted(matrix: Matrix, text: str) -> Matrix:
    """A matrix with a target of verl 0.9.1, trl 1.12.0 and vllm 0.26.0 with notes `text`."""
    target = msgspec.structs.replace(matrix.targets[NAME], tested=text, guide=())
    return msgspec.structs.replace(matrix, targets={NAME: target})


def on(matrix: Matrix, text: str, **requests: str) -> list[str]:
    specs = {name: SpecifierSet(spec) for name, spec in requests.items()}
    return [
        note.text
        for note in recorded.notes_on_requests(recorded.target_notes(noted(matrix, text)), specs)
    ]


@pytest.mark.parametrize(
    ("text", "requests", "expected"),
    [
        # Two requested packages, one of them in the target's version.
        ("TRL is the newest that verl imports.", {"verl": "==0.9.1", "trl": "==1.16.0"}, True),
        ("TRL is the newest that verl imports.", {"verl": "==0.8.0", "trl": "==1.16.0"}, False),
        ("TRL is the newest that verl imports.", {"verl": "==0.9.1", "vllm": "==0.33.0"}, False),
        ("TRL is the newest that verl imports.", {"verl": "==0.9.1"}, False),
        # A version in the sentence replaces the target's; a release has all of its patches.
        ("verl needs flash-attn.", {"verl": "==0.9.1", "flash-attn": ""}, True),
        ("vLLM 0.27 needs Python 3.12.", {"vllm": "==0.27.3"}, True),
        ("vLLM 0.27 needs Python 3.12.", {"vllm": "==0.27.*"}, True),
        ("vLLM 0.27 needs Python 3.12.", {"vllm": "==0.26.0"}, False),
        ("vLLM 0.2 needs Python 3.12.", {"vllm": "==0.27.3"}, False),
        ("TRL 1.16 warns of newer vLLM.", {"trl": "==1.12.0", "vllm": "==0.31.0"}, False),
        ("TRL runs, but not SGLang.", {"trl": "==1.12.0", "sglang": "==0.5.23"}, False),
        ("TRL and vLLM are installed.", {"trl": "", "vllm": ""}, False),
        # Neither a path nor a longer name is the package.
        ("It reads verl.trainer with trl/a.py.", {"verl": "==0.9.1", "trl": "==1.16.0"}, False),
        ("cu130-verl and TRL are there.", {"verl": "==0.9.1", "trl": "==1.16.0"}, False),
        # Records of test runs are no reasons.
        ("GRPO of TRL and verl passed.", {"verl": "==0.9.1", "trl": "==1.16.0"}, False),
    ],
)
def test_only_notes_about_the_requested_versions_apply(
    matrix: Matrix, text: str, requests: dict[str, str], expected: bool
) -> None:
    assert on(matrix, text, **requests) == ([text.rstrip(".")] if expected else [])


def test_sentence_of_a_note_is_kept_with_the_sentence_it_refers_to(matrix: Matrix) -> None:
    text = "verl 0.9.1 is new (docs/a.md). It needs Python below 3.13. TRL is old."
    assert on(matrix, text, verl="==0.9.1", python="==3.13.*") == [
        "verl 0.9.1 is new. It needs Python below 3.13"
    ]


def test_recorded_notes_explain_the_conflict_of_verl_with_newer_trl(matrix: Matrix) -> None:
    """An earlier version of the site showed no reason against these versions."""
    requests = {"verl": SpecifierSet("==0.9.1"), "trl": SpecifierSet("==1.16.0")}
    found = recorded.notes_on_requests(recorded.target_notes(matrix), requests)
    assert [note.target for note in found] == [NAME]
    learned = published.known_constraints(matrix, project_paths.catalogue_project().images)
    every = recorded.recorded_refusals(project_paths.catalogue_project().images, matrix, learned)
    assert "verl==0.9.1 needs trl<1.13.0" in [each.what for each in every]


def test_refused_updates_are_read_if_their_file_exists(matrix: Matrix, tmp_path: Path) -> None:
    without = recorded.recorded_refusals(tmp_path, matrix, ())
    assert not [each for each in without if each.source == "refused update"]
    entry = {"package": "vllm", "version": "0.34.0", "reasons": ["a", "b"], "tried": "2026-11-28"}
    content = {"version": 1, "rows": {}, "refused": {"cu130-vllm": [entry]}}
    (tmp_path / "updates.json").write_text(json.dumps(content))
    (found,) = [
        each
        for each in recorded.recorded_refusals(tmp_path, matrix, ())
        if each.source == "refused update"
    ]
    assert (found.what, found.reason, found.target) == (
        "vllm 0.34.0 in cu130-vllm", "a; b", "cu130-vllm",
    )  # fmt: skip
    (tmp_path / "updates.json").write_text('{"refused": {"cu130-vllm": 5}}')
    with pytest.raises(InputError, match=r"updates\.json"):
        recorded.recorded_refusals(tmp_path, matrix, ())
