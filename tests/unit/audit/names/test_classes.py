"""Tests resolving expressions to definitions, and listing members and attributes of classes."""

from __future__ import annotations

import pytest

from imgbuild.audit.names import classes, receivers
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.source.facts import Class, ModuleFacts, OpaqueModule
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules

MODULES = SourceModules(
    {
        "pkg 1.0": {
            "pkg/__init__.py": "from .a import Derived\nfrom . import a\n",
            "pkg/a.py": """
                from abc import ABC
                from typing import Generic, NamedTuple
                import msgspec

                class Base(ABC, Generic[T]):
                    shared: int = 1
                    def run(self): self.made = 1
                    @property
                    def prop(self): ...

                class Derived(Base[int]):
                    class Inner: ...
                    @classmethod
                    def of(cls, x): return cls()
                    @classmethod
                    def other(cls, x) -> "Free": ...
                    @staticmethod
                    def plain(x): ...

                class Free:
                    def __getattr__(self, name): ...

                class Strange(Unknown): ...
                class Made(metaclass=Meta): ...
                class Pair(NamedTuple):
                    left: int
                class Struct(msgspec.Struct):
                    field: int = 1
                class Failure(ValueError): ...
                class Under(Free): ...
                @wrapped
                class Wrapped: ...

                class AutoModel: ...
                def make() -> Derived: ...
                def guess(): ...
                Alias = Derived
                Loop = Loop
                """,
        },
        "user 1.0": {
            "user/__init__.py": """
                import pkg.a as a
                from typing import TYPE_CHECKING
                if TYPE_CHECKING:
                    from pkg import Derived

                def own(): ...
                class Same:
                    def own(self): return own()

                def f():
                    from pkg.a import make
                    def inner(): ...
                """
        },
    }
)


def facts(name: str) -> ModuleFacts:
    module_facts = MODULES.module(name)
    assert isinstance(module_facts, ModuleFacts)
    return module_facts


def resolved(expression: str, module: str = "user", scope: str = "") -> LookupResult:
    return classes.resolve_expression(MODULES, facts(module), expression, scope=scope)


@each_row(
    ("expression", "scope", "expected"),
    [
        ("a.Derived", "", "Derived"),
        ("a.Derived.of", "", "Derived.of"),
        ("a.Derived.run", "", "Base.run"),
        ("a.Derived.Inner", "", "Derived.Inner"),
        ("a.Derived[int]", "", "Derived"),
        ("a.Alias.of", "", "Derived.of"),
        ("Derived", "", "Derived"),
        ("make", "f", "make"),
        ("make", "f.inner", "make"),
        ("inner", "f", "f.inner"),
        ("own", "Same.own", "own"),
    ],
)
def test_callee_is_resolved_to_its_definition(expression, scope, expected):
    lookup_result = resolved(expression, scope=scope)
    assert lookup_result.definition is not None
    assert getattr(lookup_result.definition, "name", "") == expected


@each_row(
    ("expression", "state"),
    [
        ("make", "unknown"),
        ("print", "unknown"),
        ("a.gone", "absent"),
        ("a.Derived.gone", "absent"),
        ("a.Derived.made", "defined"),
        ("a.Derived.shared", "defined"),
        ("a.Derived.__subclasses__", "unknown"),
        ("a.Free.gone", "unknown"),
        ("a.make.gone", "unknown"),
        ("a.Loop.gone", "unknown"),
    ],
)
def test_unresolvable_callee_is_unknown(expression, state):
    assert resolved(expression).state == state


@each_row(
    ("name", "has"),
    [
        ("Derived", {"run", "prop", "made", "shared", "of", "Inner", "__class__"}),
        ("Pair", {"left", "_asdict"}),
        ("Struct", {"field"}),
        ("Failure", {"args"}),
    ],
)
def test_instance_attributes_are_listed(name, has):
    attributes = classes.instance_attributes(MODULES, look_up(MODULES, "pkg.a", name))
    assert attributes is not None
    assert has <= attributes
    assert "gone" not in attributes


@each_row("name", ["Free", "Under", "Strange", "Made", "Wrapped", "make"])
def test_attributes_that_are_set_dynamically_are_unknown(name):
    assert classes.instance_attributes(MODULES, look_up(MODULES, "pkg.a", name)) is None


@each_row(
    ("receiver", "expected"),
    [
        ("a.Derived", "Derived"),
        ("a.Derived()", "Derived"),
        ("a.Alias()", "Derived"),
        ("a.Derived.of()", "Derived"),
        ("a.Derived.other()", "Free"),
        ("a.make()", "Derived"),
        ("a.guess()", None),
        ("a.Made()", None),
        ("a.Derived.run()", None),
        ("a.gone()", None),
        ("a.AutoModel", None),
        ("a", None),
    ],
)
def test_class_of_a_method_receiver_is_found(receiver, expected):
    lookup_result = receivers.receiver_class(MODULES, facts("user"), receiver)
    name = lookup_result.definition.name if isinstance(lookup_result.definition, Class) else None
    assert name == expected


class Searched:
    """A package set whose module texts can be searched."""

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        return MODULES.module(name)

    def mentioning(self, package: str, word: str) -> tuple[str, ...]:
        return (f"{package}.a",) if word == "of_a_subclass" else ()

    def read_ahead(self, package: str) -> None:
        """Do nothing, because all sources are in memory."""


@pytest.mark.parametrize(
    ("receiver", "name", "state"),
    [
        ("a.Derived", "of_a_subclass", "unknown"),
        ("a.Derived()", "of_a_subclass", "absent"),
        ("a.Derived", "of_nobody", "absent"),
    ],
)
def test_annotated_receiver_can_be_a_subclass(receiver, name, state):
    modules = Searched()
    holder = receivers.receiver_class(modules, facts("user"), receiver)
    assert classes.find_member(modules, holder, name).state == state
