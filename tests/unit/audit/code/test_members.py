"""Tests what the audit of a user's Python code reports as missing: members and arguments."""

from __future__ import annotations

import pytest

from imgbuild.report import Severity
from tests.support.audited_code import Findings, finding_places

TOKENIZER = """
class PreTrainedTokenizerBase:
    def __init__(self, **names):
        self.__dict__.update(names)

    def __call__(self, text):
        return text

    def __getattr__(self, key):
        if key in self.tokens:
            return self.tokens[key]
        raise AttributeError(key)
"""
TRAINER = """
class Trainer:
    def __init__(self, model, processing_class=None):
        self.processing_class = processing_class
"""
SCRIPT = "from transformers import PreTrainedTokenizerBase\ntokenizer = PreTrainedTokenizerBase()\n"
SUBCLASS = """
from transformers import Trainer
class Mine(Trainer):
    def pad(self, inputs):
        return self.tokenizer.pad(inputs)
trainer = Mine(None)
"""


@pytest.mark.parametrize(
    ("package", "use", "places"),
    [
        (TOKENIZER, "tokenizer.batch_encode_plus([])", ["IMG104 3:1"]),
        (TOKENIZER, "print(tokenizer.batch_encode_plus)", []),
        (TOKENIZER, "tokenizer.pad_texts([])", []),
        (TOKENIZER + "NAMES = ['batch_encode_plus']\n", "tokenizer.batch_encode_plus([])", []),
        (
            TOKENIZER.replace("self.tokens[key]", "getattr(self.backend, key)"),
            "tokenizer.batch_encode_plus([])",
            [],
        ),
    ],
)
def test_removed_method_of_a_class_with_getattr_is_reported_if_called(
    audit: Findings, package: str, use: str, places: list[str]
) -> None:
    packages = {"transformers==5.24.0": {"transformers/__init__.py": package}}
    assert finding_places(audit({"a.py": SCRIPT + use}, packages)) == places


@pytest.mark.parametrize(
    ("more", "places"),
    [
        (
            "print(trainer.tokenizer)",
            ["IMG104 5:16 processing_class", "IMG104 7:7 processing_class"],
        ),
        ("trainer.tokenizer = 1", []),
        ("class Other(Mine):\n    def set(self):\n        self.tokenizer = 1", []),
        ("print(trainer.other)", ["IMG104 5:16 processing_class"]),
    ],
)
def test_removed_member_is_reported_in_a_subclass_of_the_user(
    audit: Findings, more: str, places: list[str]
) -> None:
    packages = {"transformers==5.24.0": {"transformers/__init__.py": TRAINER}}
    found = audit({"a.py": SUBCLASS + more}, packages)
    assert finding_places(found) == places


def test_members_of_created_and_returned_objects_are_checked(audit: Findings) -> None:
    source = """
class Table:
    @classmethod
    def from_rows(cls, rows):
        return cls.from_dict({"rows": rows})

    @classmethod
    def from_dict(cls, columns):
        if not columns:
            raise ValueError
        return cls(columns)

    def __init__(self, columns):
        self.columns = columns

    def __getstate__(self):
        return self.__dict__

    def __setstate__(self, state):
        self.__dict__.update(state)

    def shuffle(self):
        return self

class Tables(dict):
    def shuffle(self):
        return self

class Wide(Table):
    def widen(self):
        print(self.narrower)

def load(path) -> Table | Tables:
    return Table({})
"""
    use = """
from tables import Table, load
table = Table.from_rows([])
table.shuffle()
table.narrower()
table.widen()
both = load("a")
both.shuffle()
both.suffle()
both.widen()
both.keys()
"""
    found = audit({"a.py": use}, {"tables==1.0": {"tables/__init__.py": source}})
    assert finding_places(found) == [
        "IMG104 5:1",
        "IMG104 6:1",
        "IMG104 9:1 shuffle",
    ]


def test_missing_arguments_of_a_call_are_one_finding(audit: Findings) -> None:
    (finding,) = audit(
        {"run.py": "from trl import load\nload()\n"},
        {"trl": {"trl.py": "def load(path, name, *, kind, seed=0): ...\n"}},
    )
    assert finding.message == "calls trl.load without path, name, kind, which trl 1.0 requires"


ALIASES = """
def add_names(kind):
    for name, value in list(vars(kind).items()):
        {change}


class Processor:
    def Load(self, path):
        return self


add_names(Processor)
"""


@pytest.mark.parametrize(
    ("change", "places"),
    [("setattr(kind, name.lower(), value)", []), ("print(name, value)", ["IMG104 3:1 Load"])],
)
def test_attributes_that_a_function_sets_on_a_class_are_known_to_exist(
    audit: Findings, change: str, places: list[str]
) -> None:
    packages = {"words==1": {"words.py": ALIASES.format(change=change)}}
    source = "from words import Processor\nprocessor = Processor()\nprocessor.load('x')\n"
    assert finding_places(audit({"a.py": source}, packages)) == places


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        ("optimizer = Optimizer()\nprint(optimizer.scale)", Severity.ERROR),
        ("def run(optimizer: Optimizer):\n    print(optimizer.scale)", Severity.WARNING),
    ],
)
def test_parameter_may_be_of_a_subclass_with_more_attributes(
    audit: Findings, lines: str, severity: Severity
) -> None:
    packages = {"sums==1": {"sums.py": "class Optimizer:\n    def step(self): ...\n"}}
    (finding,) = audit({"a.py": f"from sums import Optimizer\n{lines}\n"}, packages)
    assert finding.severity is severity
