"""Tests reading the parameters of functions and constructors."""

from __future__ import annotations

import pytest

from imgbuild.audit.names import classes, signatures
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import CallSignature
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules

MODULES = SourceModules(
    {
        "pkg 1.0": {
            "pkg/__init__.py": """
                import dataclasses
                import functools
                import msgspec
                import pydantic
                from dataclasses import dataclass, field
                from typing import ClassVar, NamedTuple
                from pydantic.dataclasses import dataclass as checked
                from transformers import deprecate_kwarg

                def plain(a, b=1, *, c=2): ...
                def open_(a, **kwargs): ...
                @functools.lru_cache(maxsize=None)
                def cached(a): ...
                @strange
                def decorated(a): ...
                @deprecate_kwarg("old", new_name="a", version="5")
                def renamed(a): ...
                def on(a, **kwargs):
                    kwargs.pop("gone")
                    return plain(1, **kwargs)
                def onto_open(**kwargs): return open_(**kwargs)

                class Empty: ...
                class Own:
                    def __init__(self, a, /, b): ...
                    def method(self, x): ...
                    @staticmethod
                    def static(x): ...
                    @classmethod
                    def of(cls, x): ...
                class Child(Own): ...
                class Stranger(Unknown): ...
                class Known(Unknown):
                    def __init__(self, a): ...
                class New:
                    def __new__(cls, a): ...
                class Made(metaclass=Meta):
                    def __init__(self, a): ...

                @dataclass
                class Data:
                    a: int
                    b: int = 1
                    c: ClassVar[int] = 2
                    d: int = field(init=False)
                    e = 3
                @dataclasses.dataclass(frozen=True)
                class More(Data):
                    f: int = field(default_factory=list)
                class Undecorated(Data):
                    g: int = 1
                @checked
                class Ignoring:
                    a: int
                @dataclass(init=False)
                class Bare:
                    a: int
                class Model(pydantic.BaseModel):
                    a: int
                class Struct(msgspec.Struct, kw_only=True):
                    a: int
                    b: int = 1
                class Mixin:
                    m: int
                class Substruct(Mixin, Struct):
                    c: int = 1
                class Pair(NamedTuple):
                    left: int
                    right: int = 2

                Alias = Data
                if something():
                    class Either:
                        def __init__(self, a): ...
                else:
                    class Either:
                        def __init__(self, b): ...
                """
        }
    }
)


def signature(name: str, *, bound: bool = True) -> CallSignature | None:
    first, _, member = name.partition(".")
    lookup_result = look_up(MODULES, "pkg", first)
    if member:
        lookup_result = classes.find_member(MODULES, lookup_result, member)
    return signatures.find_signature(MODULES, lookup_result, bound=bound)


@each_row(
    ("name", "takes"),
    [
        ("plain", ["a", "b", "c"]),
        ("cached", ["a"]),
        ("renamed", ["a", "old"]),
        ("on", ["a", "gone", "b", "c"]),
        ("Empty", []),
        ("Own", ["a", "b"]),
        ("Child", ["a", "b"]),
        ("Known", ["a"]),
        ("Own.method", ["x"]),
        ("Own.static", ["x"]),
        ("Own.of", ["x"]),
        ("Data", ["a", "b"]),
        ("More", ["a", "b", "f"]),
        ("Undecorated", ["a", "b"]),
        ("Alias", ["a", "b"]),
        ("Bare", []),
        ("Struct", ["a", "b"]),
        ("Substruct", ["a", "b", "c"]),
        ("Pair", ["left", "right"]),
    ],
)
def test_parameters_of_callables_are_read(name, takes):
    call_signature = signature(name)
    assert call_signature is not None
    assert [parameter.name for parameter in call_signature.parameters] == takes
    assert not call_signature.varkw


@each_row(
    "name",
    ["decorated", "Stranger", "New", "Made", "Ignoring", "Model", "Either"],
)
def test_signatures_that_cannot_be_determined_are_unknown(name):
    assert signature(name) is None


@pytest.mark.parametrize("name", ["open_", "onto_open"])
def test_signature_with_variable_keyword_arguments_accepts_any_keyword(name):
    call_signature = signature(name)
    assert call_signature is not None
    assert call_signature.accepts_keyword("anything")


def test_positional_only_parameters_are_not_accepted_as_keywords():
    call_signature = signature("Own")
    assert call_signature is not None
    assert not call_signature.accepts_keyword("a")
    assert call_signature.accepts_keyword("b")


def test_signature_of_a_method_accessed_on_its_class_includes_self():
    call_signature = signature("Own.method", bound=False)
    assert call_signature is not None
    assert [parameter.name for parameter in call_signature.parameters] == ["self", "x"]


def test_required_dataclass_fields_have_no_default_in_the_signature():
    call_signature = signature("More")
    assert call_signature is not None
    assert [parameter.default for parameter in call_signature.parameters] == [False, True, True]
