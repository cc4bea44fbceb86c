"""Tests findings about objects, keywords and values that reach a call indirectly."""

from __future__ import annotations

from imgbuild.report import Severity
from tests.support.audited_code import PACKAGES, Findings, finding_places
from tests.support.rows import each_row

FILES = {
    "engines/__init__.py": """
from dataclasses import dataclass
from typing import Literal, Protocol, Union
from .kinds import Kind, Mode

Cache = Literal["auto", "fp8"]
Sizes = Literal["auto", Cache]


class Log(Protocol):
    def note(text): ...


class Output:
    def __init__(self):
        self.text = ""


class Engine:
    def __init__(self, model, size=1):
        self.model = model

    def generate(self, prompt) -> list[Output]:
        return []

    def copy(self) -> "Engine":
        return self

    def __len__(self):
        return 0


class Other:
    def copy(self) -> "Other":
        return self

    def stop(self):
        return None


def load(path) -> Union[Engine, Other]:
    return Engine(path)


def logger() -> Log:
    return None


def losses(a, b) -> tuple[int, str]:
    return a, b


def parts(a):
    return a, a, a


def maybe(a):
    if a:
        return a, a
    return a


@dataclass
class Config:
    name: str = ""
    kind: Union[Kind, str] = "a"
    mode: Union[Mode, str] = "x"
    bias: Literal["none", "all"] = "none"
    start: bool | Literal["fast"] = True
    runner: Literal["auto", Cache] = "auto"
    size: Sizes = "auto"
    algorithm: str = "plain"
    cache: Cache = "auto"

    def __post_init__(self):
        self.kind = Kind(self.kind)


def create(**options):
    return Config(**options)


def run(config):
    if config.algorithm == "plain":
        return 1
    elif config.algorithm in ("fast", "slow"):
        return 2
    else:
        raise ValueError(config.algorithm)
""",
    "engines/kinds.py": """
from enum import Enum


class Kind(str, Enum):
    A = "a"
    B = "b"


class Mode(str, Enum):
    X = "x"
""",
    "engines/decorated.py": """
def attach(wrapped, original):
    inner = wrapped

    def call(*args, **kwargs):
        return inner(*args, **kwargs)

    if original:
        return call
    return wrapped


def api(func=None, *, trace=None):
    if func is None:
        return lambda f: attach(f, f)
    return attach(func, func)


def registered(name):
    return lambda f: f


@api(trace=1)
@registered("norm")
def norm(x, eps=1e-6):
    return x
""",
}
SET = {**PACKAGES, "engines==1.0": FILES}
START = "from engines import *\nimport engines\nfrom functools import partial\n"


@each_row(
    ("code", "places"),
    [
        ("def make():\n    return Engine('m')\nmake().halt()", ["IMG104 6:1"]),
        ("def make():\n    e = Engine('m')\n    return e\ne = make()\ne.halt()", ["IMG104 8:1"]),
        ("def make(a):\n    if a:\n        return\n    return Engine('m')\nmake(1).halt()",
         ["IMG104 8:1"]),
        ("def make(a):\n    return Engine('m') if a else 3\ne = make(1)\ne.halt()", []),
        ("def make(a):\n    yield 1\n    return Engine('m')\ne = make(1)\ne.halt()", []),
        ("def a():\n    return b()\ndef b():\n    return a()\ne = a()\ne.halt()", []),
        (("class Run:\n    def make(self):\n        return Engine('m')\n    def go(self):\n"
         "        e = self.make()\n        e.halt()"), ["IMG104 9:9"]),
        (("class Run:\n    def make(self):\n        return Engine('m')\n    def go(self):\n"
         "        e = self.make()\n        e.halt()\nclass More(Run):\n    def make(self):\n"
         "        return 3"), []),
        ("e = Engine('m')\ndef go():\n    e.halt()\n    e.generate('a')", ["IMG104 6:5"]),
        ("e = Engine('m')\ndef go():\n    print(e.halt)", ["IMG104 6:11"]),
        ("e = Engine('m')\ndef go(e):\n    e.halt()", []),
        ("e = Engine('m')\ndef go():\n    global e\n    e = 3\n    e.halt()", []),
        ("log = logger()\ndef go():\n    log.note('a')\n    log.other()", []),
        ("e = Engine('m')\nfor out in e.generate('a'):\n    print(out.text, out.score)",
         ["IMG104 6:21"]),
        ("e = Engine('m')\nout = 1\nfor out in e.generate('a'):\n    print(out.score)", []),
        ("e = load('m')\nf = e.copy()\nf.halt()\nf.stop()", ["IMG104 6:1"]),
    ],
)  # fmt: skip
def test_members_of_objects_are_checked_through_functions_and_loops(
    audit: Findings, code: str, places: list[str]
) -> None:
    assert finding_places(audit({"a.py": START + code + "\n"}, SET)) == places


@each_row(
    ("code", "places"),
    [
        ("make = partial(Config, name='a')\nmake(color=1)", ["IMG102 5:6"]),
        ("make = partial(Config, name='a')\nmake(kind='b')", []),
        ("def go(make):\n    make(color=1)\nmake = partial(Config, name='a')", []),
        ("make = partial(Config)\nmake = partial(dict)\nmake(color=1)", []),
        ("TABLE = {'a': Config, 'b': dict}\nTABLE['a'](color=1)\nTABLE['b'](color=1)",
         ["IMG102 5:12"]),
        ("k = {'name': 'a'}\nk |= {'color': 1}\nConfig(**k)", ["IMG102 6:1"]),
        ("A = {'name': 'a'}\nB = {'color': 1}\nConfig(**(A | B))", ["IMG102 6:1"]),
        ("def more():\n    return {'color': 1}\nConfig(name='a', **more())", ["IMG102 6:1"]),
        ("def more():\n    return {'color': 1}\nk = more()\nConfig(**k)", ["IMG102 7:1"]),
        ("def more(a):\n    if a:\n        return {}\n    return {'x': 1}\nConfig(**more(1))", []),
        (("def make(**more):\n    k = dict(name='a')\n    k.update(more)\n    return Config(**k)\n"
         "make(color=1)"), ["IMG102 8:6"]),
        (("def make(**more):\n    k = dict(name='a')\n    k.update(more)\n    k.pop('color')\n"
         "    return Config(**k)\nmake(color=1)"), []),
        ("def make(**more):\n    return Config(**{'name': 'a', **more})\nmake(color=1)",
         ["IMG102 6:6"]),
        ("from engines.decorated import norm\nnorm(1, epsilon=2)\nnorm(1, eps=2)",
         ["IMG102 5:9 eps"]),
    ],
)  # fmt: skip
def test_keywords_are_checked_behind_partial_tables_and_dictionaries(
    audit: Findings, code: str, places: list[str]
) -> None:
    assert finding_places(audit({"a.py": START + code + "\n"}, SET)) == places


@each_row(
    ("code", "places"),
    [
        ("Config(kind='c')\nConfig(kind='b')", ["IMG112 4:8"]),
        ("Config(mode='y')", []),  # the class does not convert it
        ("Config(bias='some')\nConfig(bias='all')\nConfig(start='slow')", ["IMG112 4:8"]),
        ("create(cache='fp4')\ncreate(cache='fp8')", ["IMG112 4:8"]),
        ("create(runner='fp8')\ncreate(size='fp8')", []),
        ("register('fp4', print)\ncreate(cache='fp4')\ncreate(cache='fp2')", ["IMG112 6:8"]),
        ("N = 'fp4'\n@register_cache(N)\nclass A: pass\ncreate(cache='fp4')", []),
        ("CACHES['fp4'] = print\ncreate(cache='fp4')\ncreate(cache='fp2')", ["IMG112 6:8"]),
        ("Config(algorithm='quick')\nConfig(algorithm='slow')\nConfig(name='x')", ["IMG112 4:8"]),
        ("a, b, c = losses(1, 2)\na, b = losses(1, 2)\na, *b = losses(1, 2)", ["IMG111 4:11"]),
        ("a, b = parts(1)\na, b, c = parts(1)\nx = parts(1)", ["IMG111 4:8"]),
        ("a, b, c = maybe(1)", []),
    ],
)
def test_strings_and_numbers_of_results_are_checked(
    audit: Findings, code: str, places: list[str]
) -> None:
    assert finding_places(audit({"a.py": START + code + "\n"}, SET)) == places


def test_strings_are_errors_only_if_the_class_converts_them(audit: Findings) -> None:
    code = START + "Config(kind='c')\nConfig(bias='c')\nConfig(algorithm='c')\n"
    severities = [each.severity for each in audit({"a.py": code}, SET)]
    assert severities == [Severity.ERROR, Severity.WARNING, Severity.WARNING]


BASE = """
class PreTrainedTokenizerBase:
    def __getattr__(self, key):
        raise AttributeError(key)
class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, name):
        return cls
"""
LOADED = """
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("a")
tokenizer.batch_encode_plus([])
tokenizer.pad_texts([])
"""


@each_row(
    ("more", "severity"),
    [
        ("", Severity.ERROR),
        ("class Old(PreTrainedTokenizerBase):\n    def batch_encode_plus(self): ...\n",
         Severity.WARNING),
    ],
)  # fmt: skip
def test_member_of_a_loaded_object_is_an_error_only_if_no_subclass_has_it(
    audit: Findings, more: str, severity: Severity
) -> None:
    packages = {
        "transformers==5.24.0": {
            "transformers/__init__.py": "from .tokenization_utils_base import *\n",
            "transformers/tokenization_utils_base.py": BASE + more,
        }
    }
    findings = audit({"a.py": LOADED}, packages)
    assert [(each.line, each.severity) for each in findings] == [(4, severity)]


def test_methods_of_former_releases_are_reported_for_all_possible_results(audit: Findings) -> None:
    frame = "class DataFrame:\n    def __getattr__(self, name):\n        return self[name]\n"
    readers = (
        "from .frame import DataFrame\nclass Reader:\n    pass\n"
        "def read_csv(path) -> DataFrame | Reader:\n    return DataFrame()\n"
    )
    packages = {"pandas==3.1": {"pandas/__init__.py": readers, "pandas/frame.py": frame}}
    code = "import pandas\nd = pandas.read_csv('a')\nd.append(1)\nd.column(1)\nprint(d.append)\n"
    assert finding_places(audit({"a.py": code}, packages)) == ["IMG104 3:1"]
