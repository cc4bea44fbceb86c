"""Tests reading imports, definitions and names from Python source."""

from __future__ import annotations

import ast
import gc
from textwrap import dedent

from imgbuild.audit.source.facts import ModuleFacts, Parameter
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row


def read(source: str, module: str = "pkg.sub.mod", *, package: bool = False) -> ModuleFacts:
    return read_module(dedent(source).encode(), module, "file.py", package=package)


@each_row(
    ("line", "package", "expected"),
    [
        ("import a.b", False, ("a.b", "", "a")),
        ("import a.b as c", False, ("a.b", "", "c")),
        ("import a.b.d as a", False, ("a.b", "d", "a")),
        ("from a import b as c", False, ("a", "b", "c")),
        ("from a import *", False, ("a", "*", "*")),
        ("from . import x", False, ("pkg.sub", "x", "x")),
        ("from . import x", True, ("pkg.sub.mod", "x", "x")),
        ("from ..other import x", False, ("pkg.other", "x", "x")),
        ("from ...a.b import x", True, ("pkg.a.b", "x", "x")),
        ("from ...a.b import x", False, (".a.b", "x", "x")),  # above the top-level package
        ("from ....a.b import x", False, (".a.b", "x", "x")),
    ],
)
def test_relative_imports_are_made_absolute(line, package, expected):
    (import_fact,) = read(line, package=package).imports
    assert (import_fact.module, import_fact.name, import_fact.bound) == expected


def test_import_in_a_function_has_the_scope_of_the_function():
    facts = read(
        """
        class Client:
            def start(self):
                import vllm
        """
    )
    assert [(import_fact.scope, import_fact.line) for import_fact in facts.imports] == [
        ("Client.start", 4)
    ]


def test_function_parameters_of_every_kind_are_read():
    facts = read("def f(a, /, b: int, c=1, *args, d, e=2, **more) -> str: ...\n")
    (function,) = facts.functions
    assert function.parameters == (
        Parameter("a", "positional"),
        Parameter("b", "any", annotation="int"),
        Parameter("c", "any", default=True),
        Parameter("d", "keyword"),
        Parameter("e", "keyword", default=True),
    )
    assert (function.varargs, function.varkw, function.returns) == (True, True, "str")


@each_row(
    ("body", "returns"),
    [
        ("return cls(1)", "Self"),
        ("made = cls(1)\n        return made", "Self"),
        ("return other(1)", ""),
        ("if x: return None\n        return cls(1)", ""),
    ],
)
def test_class_method_that_returns_cls_has_the_return_type_self(body, returns):
    source = f"class A:\n    @classmethod\n    def of(cls, x):\n        {body}\n"
    assert read(source).functions[0].returns == returns


def test_members_of_a_class_are_read():
    facts = read(
        """
        @dataclass(frozen=True)
        class A(Base[T], metaclass=Meta):
            x: int = field(default=1)
            y: str
            z: int = field(init=False)
            plain = 3

            def run(self):
                self.seen = 1
                self.other, third = 2, 3

            class Inner: ...

        A.late = 4
        """
    )
    inner, a = facts.classes
    assert inner.name == "A.Inner"
    assert (a.bases, a.decorators) == (("Base[T]",), ("dataclass(frozen=True)",))
    assert a.metaclass == "Meta"
    assert [(field.name, field.default, field.init) for field in a.fields] == [
        ("x", True, True),
        ("y", False, True),
        ("z", False, False),
        ("plain", True, True),
    ]
    assert a.methods == ("run",)
    assert a.attributes == ("seen", "other", "late")
    assert not a.dynamic


@each_row(
    "body",
    [
        "def __getattr__(self, name): ...",
        "def run(self, **kw): setattr(self, *kw.popitem())",
        "def run(self, kw): self.__dict__.update(kw)",
        "def run(self, kw): self.__dict__ = kw",
    ],
)
def test_class_whose_attributes_cannot_be_listed_is_dynamic(body):
    assert read(f"class A:\n    {body}\n").classes[0].dynamic


@each_row(
    ("source", "exports"),
    [
        ("__all__ = ['a', 'b']", ("a", "b")),
        ("__all__ = ['a'] + ['b']\n__all__ += ['c']\n__all__.append('d')", ("a", "b", "c", "d")),
        ("__all__ = [name for name in dir()]", None),
        ("__all__ = ['a']\n__all__ += other.names\n__all__ += ['b']", None),
        ("x = 1", None),
    ],
)
def test_exported_names_of_a_module_are_read(source, exports):
    assert read(source).exports == exports


def test_bindings_other_than_imports_are_read():
    facts = read(
        """
        alias = vllm.LLM
        made = Lazy(1)
        both = Union[A, B]
        for one in range(3): pass
        with open(x) as (left, right): pass
        def f():
            global late
            late = 1
        del made
        """
    )
    assert [(assignment.name, assignment.value) for assignment in facts.assigned] == [
        ("alias", "vllm.LLM"),
        ("made", "Lazy()"),
        ("both", "Union[A, B]"),
        ("one", ""),
        ("left", ""),
        ("right", ""),
        ("late", ""),
    ]
    assert facts.deleted == ("made",)


def test_keywords_that_a_function_forwards_are_read():
    facts = read(
        """
        def on(self, **kwargs):
            kwargs.pop("old", None)
            if "x" in kwargs:
                kwargs["x"] = 1
            return Engine(a=1, **kwargs)

        def unclear(**kwargs):
            log(kwargs)
            return Engine(**kwargs)
        """
    )
    on, unclear = facts.functions
    assert (on.kwargs_callees, on.popped_keys) == (("Engine",), ("old",))
    assert (unclear.kwargs_callees, unclear.popped_keys) == ((), ())


def test_syntax_error_marks_the_module_as_broken():
    facts = read("def f(:\n")
    assert facts.broken
    assert facts.functions == ()
    assert read_module(b"\xff\xfe\x00", "m", "m.py", package=False).broken


def test_byte_order_mark_and_other_line_ends_are_accepted():
    source = "\ufeffclass A:\r\n    x: 'é' = 1\r\n    y: B = 2\r\n".encode()
    (class_fact,) = read_module(source, "m", "m.py", package=False).classes
    assert [field.annotation for field in class_fact.fields] == ["'é'", "B"]


def test_syntax_trees_are_freed_without_garbage_collection() -> None:
    def _trees() -> int:
        return sum(isinstance(each, ast.FunctionDef) for each in gc.get_objects())

    gc.collect()
    before = _trees()
    gc.disable()
    try:
        read_module(b"def f(x):\n    return x.y\n", "m", "m.py", package=False, program=True)
        assert _trees() == before
    finally:
        gc.enable()
