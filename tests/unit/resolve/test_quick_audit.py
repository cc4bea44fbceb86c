"""Entries that were learned from one version, and what they were learned from."""

from __future__ import annotations

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.download import Http
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import Relation
from imgbuild.resolve.quick_audit import QuickAudit, audit_requested, evidence_of, widened
from imgbuild.system.console import console
from tests.support import shelves
from tests.support.local_index import LocalIndex

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
    """Four releases of vllm, of which the middle two make the calls; two of transformers."""
    made = LocalIndex()
    shelves.publish(made, "transformers", {"1.0": {**OTHER, CONFIGS: BEFORE}})
    shelves.publish(made, "transformers", {"2.0": {**OTHER, CONFIGS: AFTER}})
    versions = {"0.1": SILENT, "0.2": ASKING, "0.3": ASKING, "0.4": SILENT}
    shelves.publish(made, "vllm", versions)
    return made


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
    (entry("transformers.make(size)"), Relation.KEYWORD),
    (entry("transformers.build(size)", line=5), Relation.ARGUMENT),
    (entry("transformers.make(1)", line=6), Relation.ARGUMENT),
    (entry("transformers.AutoConfig.register(aimv2)", line=7), Relation.REGISTERED),
    (entry("transformers.make", line=4), Relation.ATTRIBUTE),
    (entry("transformers:make", line=4), Relation.NAME),
    (entry("transformers:AutoConfig", check="imports", line=3), Relation.NAME),
    (entry("transformers", check="imports", line=2), Relation.MODULE),
]


@pytest.mark.parametrize(("known", "relation"), ENTRIES, ids=[one.name for one, _ in ENTRIES])
def test_what_an_entry_was_learned_from(tmp_path, known, relation):
    with shelves.shelf(tmp_path, index()) as (shelf, _):
        evidence = evidence_of(known, shelf)
    assert evidence is not None
    assert evidence.relation is relation
    assert (evidence.package, evidence.version, evidence.subject) == ("vllm", "0.2", known.name)
    assert (evidence.other, evidence.other_version) == ("transformers", "2.0")


@pytest.mark.parametrize(
    "known",
    [
        entry("transformers.made(size)"),  # nothing in that version says so
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
def test_what_cannot_be_told(tmp_path, known):
    with shelves.shelf(tmp_path, index()) as (shelf, _):
        assert evidence_of(known, shelf) is None


TRL = {"trl/__init__.py": "from vllm import Gone\n\nclass GRPOTrainer: ...\n"}
VLLM = {"vllm/__init__.py": "class LLM: ...\n"}
STARRED = {"vllm/__init__.py": "from transformers import *\n\nclass LLM: ...\n"}


def looked(folder, *packages):
    """What a audit_requested at 1.0 of `packages` sees, of which the index has three."""
    made = LocalIndex()
    shelves.publish(made, "trl", {"1.0": TRL})
    shelves.publish(made, "vllm", {"1.0": STARRED if "transformers" in packages else VLLM})
    shelves.publish(made, "transformers", {"1.0": {"transformers/__init__.py": "VALUE = 1\n"}})
    with shelves.shelf(folder, made) as (shelf, _):
        versions = dict.fromkeys(packages, "1.0")
        context = Context(shelf.store, Http(attempts=1), console)
        return audit_requested(shelf.catalogue, versions, (), context)


def test_what_is_learned_is_said_once_with_the_reasons_of_a_refusal(tmp_path, capsys):
    assert looked(tmp_path, "trl", "vllm").learned
    assert "learned:" not in capsys.readouterr().err


def test_a_glance_says_whose_code_it_read(tmp_path):
    seen = looked(tmp_path, "trl", "vllm", "absent")
    assert (seen.clashes, seen.read) == (True, {"trl", "vllm"})
    assert [one.needs for one in seen.learned] == ["vllm<0"]


def test_an_error_that_teaches_nothing_is_a_clash_too(tmp_path):
    # The name could come from the third package, so that no version of the second is to blame.
    seen = looked(tmp_path, "trl", "vllm", "transformers")
    assert (seen.clashes, seen.learned) == (True, ())
    assert seen.read == {"trl", "vllm", "transformers"}


@pytest.mark.parametrize("packages", [("trl",), ("trl", "absent"), ()])
def test_of_fewer_than_two_nothing_is_read(tmp_path, packages):
    assert looked(tmp_path, *packages) == QuickAudit()


@pytest.mark.parametrize("known", [one for one, _ in ENTRIES[:4]], ids=lambda one: one.name)
def test_an_entry_is_widened_to_the_releases_that_make_the_same_call(tmp_path, known):
    with shelves.shelf(tmp_path, index()) as (shelf, _):
        http = Http(attempts=1)
        wide = widened([known], {"vllm"}, shelf.catalogue, Context(shelf.store, http))
        assert [one.versions for one in wide] == [">=0.2,<=0.3"]
        assert widened([known], {"trl"}, shelf.catalogue, Context(shelf.store, http)) == (known,)
