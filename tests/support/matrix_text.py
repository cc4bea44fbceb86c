"""Provides a small valid matrix, breaks it in one place, and returns the reported problems."""

from __future__ import annotations

import pytest

from imgbuild.errors import InputError, InputProblem
from imgbuild.matrix.load import parse_matrix

MARK = "§"
FILE = "bad.yaml"
VALID_MATRIX = """\
version: 1
indexes:
  main: {}
  torch: {url: 'https://example.org/whl/{cuda_tag}/torch{torch}', upload_times: none}
default_index: main
bases:
  debian-12:
    kind: debian
    suite: bookworm
    python: "3.11"
    glibc: "2.36"
    packages: [python3, g++]
image:
  prefix: /opt/venv
  user: {name: imgbuild, uid: 1000, gid: 1000, home: /home/imgbuild}
  workdir: /workspace
  cache: /var/cache/imgbuild
  entrypoint: [/opt/entry]
  cmd: [bash]
  env:
    PATH: {value: '/opt/venv/bin:/bin', reason: commands come first}
    VIRTUAL_ENV: {value: /opt/venv, reason: pip looks for it}
  labels: {org.example.team: rl}
requires:
  pip: {reason: people add packages}
layers:
  own_from: 5000000
  named: [vllm, trl]
  groups: 4
  order: [nvidia-*, torch]
sdists:
  antlr4: {reason: it has no wheel, requires: [torch]}
targets:
  cu124-vllm:
    summary: an old image
    base: debian-12
    cuda: "12.4"
    arch: [x86_64]
    as_of: 2025-06-20
    gpu: ["9.0"]
    pins:
      torch: "2.6.0"
      vllm: "0.8.5.post1"
      trl: "0.18.2"
    requires:
      setuptools: {reason: triton imports it}
    flashinfer: {mode: "off", reason: there is no wheel}
    indexes: {torch: torch}
    exclude: {arm64: no wheel for aarch64}
    drop:
      - {package: trl, paths: [lib/a], reason: vllm ships it too}
    links:
      /opt/lib64: {to: lib, reason: linkers look for it}
    env:
      VLLM_USE_V1: {value: "1", reason: the newer engine}
"""


def break_matrix(old: str, new: str) -> tuple[str, int, int]:
    """The valid matrix with `old` replaced by `new`, and line and column of the mark in `new`."""
    assert VALID_MATRIX.count(old) == 1, (
        f"{old!r} occurs {VALID_MATRIX.count(old)} times in the valid matrix"
    )
    assert new.count(MARK) == 1, f"{new!r} must contain one {MARK}"
    text = VALID_MATRIX.replace(old, new)
    before = text[: text.index(MARK)]
    return text.replace(MARK, ""), before.count("\n") + 1, len(before) - before.rfind("\n")


def find_problems(text: str | bytes) -> tuple[InputProblem, ...]:
    """All problems of a rejected matrix."""
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(InputError) as caught:
        parse_matrix(data, FILE)
    assert caught.value.exit_code == 2
    return caught.value.problems


def only_problem(text: str | bytes) -> InputProblem:
    """The only problem of a matrix."""
    matrix_problems = find_problems(text)
    assert len(matrix_problems) == 1, [str(problem) for problem in matrix_problems]
    return matrix_problems[0]


def check_broken(old: str, new: str, result: tuple[str | None, ...]) -> None:
    """Break the valid matrix and check the fields of the only problem."""
    text, line, column = break_matrix(old, new)
    problem = only_problem(text)
    path, message, value, expected, nearest = result
    assert (problem.file, problem.line, problem.column) == (FILE, line, column), str(problem)
    assert message is not None
    assert message in problem.message
    assert problem.path == path
    assert problem.value == value
    assert problem.nearest == nearest
    if expected is None:
        assert problem.expected is None
    else:
        assert problem.expected is not None
        assert expected in problem.expected
