"""Tests that values of wrong types do not hide other problems of a matrix."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from imgbuild.ci.settings import CiFile
from imgbuild.matrix import constraints, convert
from imgbuild.matrix.extension import Extensions
from imgbuild.matrix.model import Matrix
from tests.support.matrix_text import VALID_MATRIX, find_problems
from tests.support.rows import each_row

TARGET = "targets.cu124-vllm"
BASES = VALID_MATRIX[VALID_MATRIX.index("bases:\n") : VALID_MATRIX.index("image:\n")]
INDEXES = VALID_MATRIX[VALID_MATRIX.index("indexes:\n") : VALID_MATRIX.index("default_index:")]
SAMPLER = "      VLLM_USE_FLASHINFER_SAMPLER: {reason: a sampler of our own}\n"

# The replaced text, its replacement, and the only problem: its path and message. Each would cause
# others if an empty value were checked like any other.
CONSEQUENCES = {
    "no bases": (BASES, "bases: []\n", "bases", "not a mapping"),
    "no key bases": (BASES, "", None, "key bases is missing"),
    "no indexes": (INDEXES, "indexes: []\n", "indexes", "not a mapping"),
    "no CUDA": ('cuda: "12.4"', "cuda: {}", f"{TARGET}.cuda", "not text"),
    "no prefix": ("prefix: /opt/venv", "prefix: []", "image.prefix", "not text"),
    "no PATH": (
        "PATH: {value: '/opt/venv/bin:/bin', reason: commands come first}",
        "PATH: /bin",
        "image.env.PATH",
        "not a mapping",
    ),
    "no index": ("main: {}", "main: {}\n  other:", "indexes.other", "not a mapping"),
    "no layers": (
        "groups: 4\n",
        "groups: four\n",
        "layers.groups",
        "not a whole number",
    ),
    "no value": (
        "    env:\n      VLLM_USE_V1",
        f"    env:\n{SAMPLER}      VLLM_USE_V1",
        f"{TARGET}.env.VLLM_USE_FLASHINFER_SAMPLER",
        "key value is missing",
    ),
    "no version": (
        'trl: "0.18.2"',
        "trl: []",
        f"{TARGET}.pins.trl",
        "not text",
    ),
}


@each_row("name", CONSEQUENCES)
def test_consequences_of_an_invalid_value_are_not_reported(name: str) -> None:
    old, new, path, message = CONSEQUENCES[name]
    assert VALID_MATRIX.count(old) == 1
    (problem,) = find_problems(VALID_MATRIX.replace(old, new))
    assert problem.path == path
    assert problem.message.startswith(message)


def test_other_values_of_an_invalid_row_are_still_checked() -> None:
    text = (
        VALID_MATRIX.replace('cuda: "12.4"', "cuda: {}")
        .replace("base: debian-12", "base: debian-13")
        .replace('vllm: "0.8.5.post1"', "vllm: 0.8.x")
        .replace("      - {package: trl", "      - [trl]\n      - {package: trl")
        .replace("paths: [lib/a]", "paths: [../a]")
    )
    assert [(problem.path, problem.message) for problem in find_problems(text)] == [
        (f"{TARGET}.base", "unknown base"),
        (f"{TARGET}.cuda", "not text"),
        (f"{TARGET}.pins.vllm", "not a version"),
        (f"{TARGET}.drop[0]", "not a mapping"),
        (f"{TARGET}.drop[1].paths[0]", "not a path in the package"),
    ]


def test_security_archive_url_with_credentials_is_refused() -> None:
    address = "https://me:hunter2@example.org/security"
    text = VALID_MATRIX.replace("g++]", f"g++]\n    security: ['{address}']")
    (problem,) = find_problems(text)
    assert problem.path == "bases.debian-12.security[0]"
    assert problem.message == "the URL contains a username or password"
    assert "hunter2" not in str(problem)


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and the types of its parts."""
    yield kind
    match kind:
        case inspect.Metadata():
            yield from _parts(kind.type)
        case inspect.StructType():
            for field in kind.fields:
                yield from _parts(field.type)
        case inspect.DictType():
            yield from (*_parts(kind.key_type), *_parts(kind.value_type))
        case inspect.VarTupleType():
            yield from _parts(kind.item_type)
        case inspect.UnionType():
            for option in kind.types:
                yield from _parts(option)


RULES = ("min_length", "max_length", "pattern", "ge", "gt", "le", "lt", "multiple_of")
READ = {
    inspect.StrType: {"pattern", "min_length"},
    inspect.IntType: {"ge", "le"},
    inspect.VarTupleType: {"min_length"},
}
STRUCTURE = (inspect.Metadata, inspect.StructType, inspect.UnionType, inspect.NoneType)


@each_row("kind", [Matrix, Extensions, CiFile, constraints._ConstraintsFile])
def test_matrix_reader_checks_all_constraints_of_the_types(kind: type) -> None:
    for part in _parts(inspect.type_info(kind)):
        assert type(part) in {*convert._SCALARS, *STRUCTURE, inspect.DictType, inspect.VarTupleType}
        used = {rule for rule in RULES if getattr(part, rule, None) is not None}
        assert used <= READ.get(type(part), set()), part
