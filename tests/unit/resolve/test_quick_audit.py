"""Tests constraints learned from one version, and their evidence."""

from __future__ import annotations

import pytest

from imgbuild.cache.context import Context
from imgbuild.http.client import HttpClient
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import ConflictRelation
from imgbuild.resolve.quick_audit import (
    QuickAudit,
    audit_requested,
    find_evidence,
    widen_constraints,
)
from imgbuild.system.console import console
from tests.support import release_index
from tests.support.local_index import LocalIndex
from tests.support.rows import each_row

CONFIGS = "transformers/models/auto/configuration_auto.py"
BEFORE = "CONFIG_MAPPING_NAMES = OrderedDict([])\nclass AutoConfig:\n    pass\n"
AFTER = 'CONFIG_MAPPING_NAMES = OrderedDict([("aimv2", "Config")])\nclass AutoConfig:\n    pass\n'
OTHER = {
    "transformers/__init__.py": "def make(a): pass\ndef build(a, *, size): pass\n",
    "transformers/models/__init__.py": "",
    "transformers/models/auto/__init__.py": "",
}
CALLS = """
import transformers
from transformers import AutoConfig
transformers.make(1, size=2)
transformers.build(1)
transformers.make(1, 2)
AutoConfig.register("aimv2", object)
"""
SILENT = {"vllm/__init__.py": "", "vllm/use.py": "import transformers\n"}
ASKING = {"vllm/__init__.py": "", "vllm/use.py": CALLS}


def index() -> LocalIndex:
    """An index with four releases of vllm, two of which have the calls, and transformers."""
    local_index = LocalIndex()
    release_index.publish_releases(local_index, "transformers", {"1.0": {**OTHER, CONFIGS: BEFORE}})
    release_index.publish_releases(local_index, "transformers", {"2.0": {**OTHER, CONFIGS: AFTER}})
    versions = {"0.1": SILENT, "0.2": ASKING, "0.3": ASKING, "0.4": SILENT}
    release_index.publish_releases(local_index, "vllm", versions)
    return local_index


def entry(
    name: str,
    *,
    check: str = "calls",
    line: int = 4,
    read_in: str = "0.2",
    against: str = "2.0",
) -> Constraint:
    return Constraint(
        package="vllm",
        versions="==0.2",
        needs="transformers<2.0",
        check=check,
        file="vllm/use.py",
        line=line,
        name=name,
        read_in=read_in,
        against=against,
    )


ENTRIES = [
    (entry("transformers.make(size)"), ConflictRelation.KEYWORD),
    (entry("transformers.build(size)", line=5), ConflictRelation.ARGUMENT),
    (entry("transformers.make(1)", line=6), ConflictRelation.ARGUMENT),
    (entry("transformers.AutoConfig.register(aimv2)", line=7), ConflictRelation.REGISTERED),
    (entry("transformers.make", line=4), ConflictRelation.ATTRIBUTE),
    (entry("transformers:make", line=4), ConflictRelation.NAME),
    (entry("transformers:AutoConfig", check="imports", line=3), ConflictRelation.NAME),
    (entry("transformers", check="imports", line=2), ConflictRelation.MODULE),
]


@each_row(("constraint", "relation"), ENTRIES, ids=[one.name for one, _ in ENTRIES])
def test_constraint_learned_by_a_quick_audit_has_evidence(tmp_path, constraint, relation):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        evidence = find_evidence(constraint, release_catalogue)
    assert evidence is not None
    assert evidence.relation is relation
    assert (evidence.package, evidence.version, evidence.subject) == (
        "vllm",
        "0.2",
        constraint.name,
    )
    assert (evidence.other, evidence.other_version) == ("transformers", "2.0")


@each_row(
    "constraint",
    [
        entry("transformers.made(size)"),  # that version has no such evidence
        entry("transformers.AutoConfig.register(llama)", line=7),
        entry("transformers.make(size)", read_in="9.9"),
        entry("transformers.make(size)", read_in=""),
        entry("transformers.make(size)", against="9.9"),
        entry("transformers.make(size)", against=""),
        entry("f(int)", check="elf"),
        entry("torch::f", check="elf"),
        entry("transformers<2", check="support"),
    ],
    ids=lambda one: f"{one.name} {one.read_in} {one.against}",
)
def test_constraint_whose_cause_cannot_be_located_has_no_evidence(tmp_path, constraint):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        assert find_evidence(constraint, release_catalogue) is None


TRL = {"trl/__init__.py": "from vllm import Gone\n\nclass GRPOTrainer: ...\n"}
VLLM = {"vllm/__init__.py": "class LLM: ...\n"}
STARRED = {"vllm/__init__.py": "from transformers import *\n\nclass LLM: ...\n"}


def looked(folder, *packages):
    """The result of `audit_requested` for `packages` at 1.0, three of which are on the index."""
    local_index = LocalIndex()
    release_index.publish_releases(local_index, "trl", {"1.0": TRL})
    release_index.publish_releases(
        local_index, "vllm", {"1.0": STARRED if "transformers" in packages else VLLM}
    )
    release_index.publish_releases(
        local_index, "transformers", {"1.0": {"transformers/__init__.py": "VALUE = 1\n"}}
    )
    with release_index.release_catalogue(folder, local_index) as (release_catalogue, _):
        versions = dict.fromkeys(packages, "1.0")
        context = Context(release_catalogue.store, HttpClient(attempts=1), console)
        return audit_requested(release_catalogue.catalogue, versions, (), context)


def test_quick_audit_does_not_print_learned_constraints(tmp_path, capsys):
    assert looked(tmp_path, "trl", "vllm").learned
    assert "learned:" not in capsys.readouterr().err


def test_a_quick_audit_names_the_packages_whose_code_it_read(tmp_path):
    seen = looked(tmp_path, "trl", "vllm", "absent")
    assert (seen.clashes, seen.read) == (True, {"trl", "vllm"})
    assert [constraint.needs for constraint in seen.learned] == ["vllm<0"]


def test_error_that_yields_no_constraint_is_a_conflict(tmp_path):
    # The name could come from the third package, so that no version of the second is excluded.
    seen = looked(tmp_path, "trl", "vllm", "transformers")
    assert (seen.clashes, seen.learned) == (True, ())
    assert seen.read == {"trl", "vllm", "transformers"}


@pytest.mark.parametrize("packages", [("trl",), ("trl", "absent"), ()])
def test_quick_audit_of_fewer_than_two_packages_reads_no_code(tmp_path, packages):
    assert looked(tmp_path, *packages) == QuickAudit()


@each_row("constraint", [entry for entry, _ in ENTRIES[:4]], ids=lambda entry: entry.name)
def test_learned_constraint_covers_all_releases_with_the_same_call(tmp_path, constraint):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        http = HttpClient(attempts=1)
        wide = widen_constraints(
            [constraint],
            {"vllm"},
            release_catalogue.catalogue,
            Context(release_catalogue.store, http),
        )
        assert [entry.versions for entry in wide] == [">=0.2,<=0.3"]
        assert widen_constraints(
            [constraint],
            {"trl"},
            release_catalogue.catalogue,
            Context(release_catalogue.store, http),
        ) == (constraint,)
