"""Tests that calls in module bodies whose arguments another package rejects are reported."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks.refusals import import_refusals
from imgbuild.audit.main_path.closure import main_path
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules, rules

LIB = """
import dataclasses
from dataclasses import dataclass, field, InitVar
from typing import ClassVar, Generic, TypeVar
DEFAULT = {default}
T = TypeVar("T")

class R:
    def __init__(self, name, *, version=DEFAULT, revision=None):
        if version is None and revision is None:
            raise ValueError("Either a revision or a version must be specified.")
        self.name = name

class Sub(R):
    KIND = None
    def __init__(self, name, **more):
        super().__init__(name, **more)

class Deep(Sub, Generic[T]):
    def __init__(self, name="a", *args, **more):
        super(Deep, self).__init__(name, *args, **more)

class Inherits(Sub): ...

class Checks:
    LIMIT = DEFAULT
    def __init__(self, name, version=None):
        self.version = version or DEFAULT
        self.check()
    def check(self):
        if self.version is None: raise ValueError("no version")
    @property
    def ready(self):
        return self.version is not None
    @classmethod
    def of(cls, name):
        return cls(name)
    @staticmethod
    def plain(version=DEFAULT):
        assert version is not None, "no version"
        return version

class Ready(Checks):
    def check(self):
        if not self.ready:
            raise RuntimeError("not ready")

class New:
    def __new__(cls, version=DEFAULT):
        if version is None:
            raise TypeError("no version")
        return super().__new__(cls)

@dataclass
class Data:
    name: str
    version: int | None = DEFAULT
    items: list = field(default_factory=list)
    KIND: ClassVar[int] = 3
    def __post_init__(self):
        if self.version is None:
            raise ValueError("no version")

@dataclasses.dataclass(frozen=True)
class MoreData(Data):
    extra: InitVar[int] = 0
    def __post_init__(self, extra):
        super().__post_init__()

class Open:
    KIND = None
    STATE = None
    @classmethod
    def start(cls):
        cls.STATE = 1
    def __init__(self, name, **more):
        self.version = None
        {change}
        if self.version is None:
            raise ValueError("no version")

def make(name, version=DEFAULT):
    if version is None: raise ValueError("no version")
    return name

def through(name):
    return make(name)

def register(name, version=DEFAULT):
    make(name, version)
    def decorate(target):
        return target
    return decorate

def late(version=DEFAULT):
    def decorate(target):
        if version is None:
            raise ValueError("no version")
        return target
    return decorate

def guarded(version=DEFAULT):
    try:
        make("a", version)
    except ValueError:
        return None

class Caller:
    def __init__(self, version=DEFAULT):
        self.version = version
    def __call__(self, target):
        if self.version is None:
            raise ValueError("no version")
        return target
"""


def refusal_lines(
    source: str, default: object = None, change: str = "pass", **more: str
) -> list[str]:
    packages = {
        "user 1": {"user/__init__.py": source, **{f"user/{k}.py": v for k, v in more.items()}},
        "lib 2": {
            "lib/__init__.py": "from lib.core import *\n",
            "lib/core.py": LIB.format(default=default, change=change),
        },
    }
    modules = SourceModules(packages)
    return [
        f"{refusal.place.file}:{refusal.place.line} {refusal.raised} {refusal.cause}"
        for refusal in import_refusals(modules, main_path(modules, rules("user")))
    ]


@each_row(
    ("call", "error"),
    [
        ('R("a")', "ValueError"),
        ('Sub("a")', "ValueError"),
        ("Deep()", "ValueError"),
        ('Inherits(name="a")', "ValueError"),
        ('Checks("a")', "ValueError"),
        ('Checks.of("a")', "ValueError"),
        ("Checks.plain()", "AssertionError"),
        ('Ready("a")', "RuntimeError"),
        ("New()", "TypeError"),
        ('Data("a")', "ValueError"),
        ('Data(name="a", version=None)', "ValueError"),
        ('MoreData("a", extra=1)', "ValueError"),
        ('make("a")', "ValueError"),
        ('through("a")', "ValueError"),
    ],
)
def test_call_at_import_without_a_required_argument_is_reported(call: str, error: str) -> None:
    line = [f"user/__init__.py:2 {error} lib"]
    imports = "from lib import *\n"
    assert refusal_lines(f"{imports}X = {call}\n") == line
    assert refusal_lines(f"{imports}{call}\n") == line
    assert refusal_lines(f"import lib\nX = {{'a': [lib.{call}]}}\n") == line
    assert refusal_lines(f"{imports}X: dict = dict(a=({call}, 1))\n") == line
    assert refusal_lines(f"{imports}X = {call}\n", default=1) == [] or "None" in call


R = "from lib import R, Caller, guarded, late, make, register\n"


@each_row(
    ("source", "count"),
    [
        # where it runs
        ('class C:\n    x = R("a")\n', 1),
        ('class C:\n    class D:\n        x = [R("a")]\n', 1),
        ('def f(x=R("a")): ...\n', 1),
        ('def f(*, x=R("a")): ...\n', 1),
        ('class C(make("a")): ...\n', 1),
        ('class C:\n    def f(self, x=R("a")): ...\n', 1),
        ('X = [R(n) for n in ("a", "b")]\n', 1),
        ('X = {n: R(n) for n in ["a"]}\n', 1),
        ('X = {}\nfor n in ("a", "b"):\n    X[n] = R(n)\n', 1),
        ('X = R("a") if True else None\n', 1),
        ('import sys\nif sys.version_info >= (3, 8):\n    X = R("a")\n', 1),
        ('import sys\nif sys.platform == "linux":\n    X = R("a")\n', 1),
        ('def build():\n    return R("a")\nX = build()\n', 1),
        ('class Own(R):\n    def __init__(self):\n        super().__init__("a")\nX = Own()\n', 1),
        # where it does not
        ('def f():\n    return R("a")\n', 0),
        ('class C:\n    def f(self):\n        return R("a")\n', 0),
        ('X = lambda: R("a")\n', 0),
        ('X = (R(n) for n in ("a",))\n', 0),
        ("X = [R(n) for n in ()]\n", 0),
        ("X = [R(n) for n in names()]\n", 0),
        ("for n in ():\n    R(n)\n", 0),
        ("for n in names():\n    R(n)\n", 0),
        ('import sys\nif sys.platform == "win32":\n    X = R("a")\n', 0),
        ('import sys\nif sys.version_info < (3, 8):\n    X = R("a")\n', 0),
        ('from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    X = R("a")\n', 0),
        ('if __name__ == "__main__":\n    R("a")\n', 0),
        ('import os\nif os.environ.get("A"):\n    R("a")\n', 0),
        ('import os\nX = os.environ.get("A") and R("a")\n', 0),
        ('import torch\nX = R("a") if torch.cuda.is_available() else None\n', 0),
        # what catches it
        ('try:\n    X = R("a")\nexcept ImportError:\n    X = None\n', 1),
        ('try:\n    X = R("a")\nexcept (ImportError, KeyError):\n    X = None\n', 1),
        ('try:\n    X = R("a")\nfinally:\n    Y = 1\n', 1),
        ('try:\n    X = R("a")\nexcept ValueError:\n    X = None\n', 0),
        ('try:\n    X = R("a")\nexcept (KeyError, ValueError):\n    X = None\n', 0),
        ('try:\n    X = R("a")\nexcept Exception:\n    X = None\n', 0),
        ('try:\n    X = R("a")\nexcept:\n    X = None\n', 0),
        ('import contextlib\nwith contextlib.suppress(ValueError):\n    X = R("a")\n', 0),
        ("X = guarded()\n", 0),
        (
            'def f():\n    try:\n        R("a")\n    except ValueError:\n        ...\nX = f()\n',
            0,
        ),
        # what decides it
        ('X = R("a", version=1)\n', 0),
        ('X = R("a", revision="main")\n', 0),
        ('X = R("a", **more())\n', 0),
        ('import os\nX = R("a", version=os.environ.get("A"))\n', 0),
        ('import os\nV = os.environ.get("A")\nX = R("a", version=V)\n', 0),
        ('MORE = {"version": 1}\nX = R("a", **MORE)\n', 0),
        ('from functools import partial\nX = partial(R, "a")\n', 0),
        (
            'class Own(R):\n    def __init__(self): super().__init__("a", version=1)\nX = Own()\n',
            0,
        ),
        ("class Own(R):\n    def __init__(self): ...\nX = Own()\n", 0),
        ('@decorated\nclass Own(R): ...\nX = Own("a")\n', 0),
        ('class Own(R, metaclass=Meta): ...\nX = Own("a")\n', 0),
        ('class Own(R, Unknown): ...\nX = Own("a")\n', 0),
        (
            'try:\n    from no import R\nexcept ImportError:\n    def R(n): ...\nX = R("a")\n',
            0,
        ),
        # decorators
        ('@register("a")\ndef f(): ...\n', 1),
        ('@register("a")\nclass C: ...\n', 1),
        ('@register(name="a", version=1)\nclass C: ...\n', 0),
        ("@late()\ndef f(): ...\n", 1),
        ("@late()\nclass C: ...\n", 1),
        ("class C:\n    @late()\n    def f(self): ...\n", 1),
        ("@late(version=1)\nclass C: ...\n", 0),
        ("def outer():\n    @late()\n    def f(): ...\n", 0),
        ("@Caller()\ndef f(): ...\n", 1),
        ("@Caller(version=1)\ndef f(): ...\n", 0),
    ],
)
def test_only_calls_that_certainly_run_at_import_are_reported(source: str, count: int) -> None:
    names = [line.partition(" ")[0] for line in refusal_lines(R + source)]
    assert len(names) == count
    assert refusal_lines(R + source, default=1) == []


def test_explicit_none_argument_is_treated_as_the_default_none() -> None:
    source = R + 'N = None\nX = R("a", version=N)\n'
    assert (
        refusal_lines(source)
        == refusal_lines(source, default=1)
        == ["user/__init__.py:3 ValueError lib"]
    )


def test_repeated_failing_calls_are_reported_once_at_the_first_line() -> None:
    assert refusal_lines(R + 'X = {"a": R("a"),\n  "b": R("b")}\nY = R("c")\n') == [
        "user/__init__.py:2 ValueError lib"
    ]


@each_row(
    ("importer", "count"),
    [
        ("from user import part\n", 1),
        ("import user.part\n", 1),
        ("from .part import X\n", 1),
        ("try:\n    from .part import X\nexcept ImportError:\n    X = None\n", 1),
        ("try:\n    from .part import X\nexcept Exception:\n    X = None\n", 0),
        ("try:\n    from .part import X\nexcept (ImportError, ValueError):\n    X = None\n", 0),
        ("def f():\n    from .part import X\n", 0),
        ("import sys\nif sys.platform == 'win32':\n    from .part import X\n", 0),
        ("import os\nif os.environ.get('A'):\n    from .part import X\n", 0),
        ("try:\n    from .part import X\nexcept ValueError:\n    X = 1\nfrom .two import Y\n", 1),
        ("_TABLE = {'part': ['X']}\nfrom .two import Z\n", 1),
    ],
)
def test_only_modules_that_are_certainly_imported_are_checked_for_calls(
    importer: str, count: int
) -> None:
    part = 'from lib import R\nX = R("a")\n'
    assert len(refusal_lines(importer, part=part, two="from .part import X\nY = Z = 1\n")) == count


LAZY = """
import sys
_import_structure = {"part": ["X"], "other": ["Y"]}
if unknown():
    _import_structure["more"] = ["Z"]
sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], _import_structure)
"""


@pytest.mark.parametrize(("name", "count"), [("X", 1), ("Y", 0), ("Z", 0)])
def test_use_of_a_lazily_imported_name_imports_its_module(name: str, count: int) -> None:
    part = 'from lib import R\nX = Z = R("a")\n'
    packages = {
        "user 1": {
            "user/__init__.py": "",
            "user/main.py": f"from .lazy import {name}\n",
            "user/lazy/__init__.py": LAZY,
            "user/lazy/part.py": part,
            "user/lazy/more.py": part,
            "user/lazy/other.py": "Y = 1\n",
        },
        "lib 2": {"lib/__init__.py": LIB.format(default=None, change="pass")},
    }
    modules = SourceModules(packages)
    assert len(list(import_refusals(modules, main_path(modules, rules("user.main"))))) == count


@each_row(
    ("change", "count"),
    [
        ("pass", 1),
        ("self.name = name", 1),
        ("self.__dict__.update(more)", 0),
        ("vars(self)['version'] = 1", 0),
        ("setattr(self, 'version', 1)", 0),
        ("object.__setattr__(self, 'version', 1)", 0),
        ("object.__setattr__(self, 'name', 1)", 1),
        ("super().__setattr__('version', 1)", 0),
        ("unknown(self)", 0),
        ("if self.KIND is None: raise ValueError", 1),
        ("if self.KIND is None: return", 0),
        ("unknown(self)\n        if self.KIND is None: raise ValueError", 0),
        ("if self.STATE is None: raise ValueError\n        return", 0),
        ("unknown([dict(a=self)])", 0),
        ("unknown([{'a': self}])", 0),
        ("unknown(lambda: setattr(self, 'version', 1))", 0),
        ("self.unknown()", 0),
        ("self()", 0),
        ("for self.version in unknown(): pass", 0),
        ("self.version = more.get('version')", 1),
        ("self.version = unknown()", 0),
        ("self.version, self.name = 1, 2", 0),
        ("self.version: int = 1", 0),
        ("self.items = [self]", 1),
        ("def set(): self.version = 1\n        set()", 0),
        ("def set(): self.version = 1", 1),
        ("if unknown(): self.version = 1", 0),
        ("if name == 'a': self.version = 1", 0),
        ("if name == 'b': self.version = 1", 1),
        ("if unknown(): return", 0),
        ("with unknown(): raise ValueError", 0),
        ("try: raise ValueError\n        except ValueError: return", 0),
        ("while unknown(): self.version = 1", 0),
    ],
)
def test_calls_of_an_object_that_other_code_changes_are_not_checked(
    change: str, count: int
) -> None:
    assert len(refusal_lines('from lib import Open\nX = Open("a")\n', change=change)) == count
