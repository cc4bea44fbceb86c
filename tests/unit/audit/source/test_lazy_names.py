"""Tests reading names that a module provides without binding them."""

from __future__ import annotations

from textwrap import dedent

import pytest

from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row


def read(source: str, module: str = "pkg") -> ModuleFacts:
    return read_module(dedent(source).encode(), module, "pkg/__init__.py", package=True)


def test_import_structure_of_a_lazy_module_is_read():
    facts = read(
        """
        _import_structure = {"trainer": ["Trainer"], "utils": [], "utils.dummy": ["Model"]}
        if is_torch_available():
            _import_structure["models.model"] = ["Model"]
            _import_structure["trainer"].extend(["Other"])
            _import_structure["trainer"] += ["Third"]
            _import_structure.setdefault("fourth", [])
        _import_structure["utils.dummy_pt"] = [name for name in dir(dummy_pt)]
        if TYPE_CHECKING:
            from .trainer import Trainer
            from .typed import Typed as Renamed
        else:
            sys.modules[__name__] = _LazyModule(__name__, __file__, _import_structure)
        """
    )
    assert not facts.dynamic
    assert facts.lazy == {
        "Trainer": "pkg.trainer",
        "Other": "pkg.trainer",
        "Third": "pkg.trainer",
        "Model": "pkg.models.model",
        "Renamed": "pkg.typed:Typed",
        "trainer": "pkg.trainer",
        "utils": "pkg.utils",
        "models": "pkg.models",
        "fourth": "pkg.fourth",
    }


def test_aliases_of_the_import_structure_are_lazy_names():
    facts = read(
        """
        from .utils.import_utils import _LegacyModuleAliasFinder, define_import_structure
        _import_structure = {"trainer": ["Trainer"]}
        if TYPE_CHECKING:
            from .trainer import Trainer
        else:
            _ALIASES = {"old_one": "new_one", "old_two": "new_two"}
            for _alias in _ALIASES:
                _import_structure.setdefault(_alias, set())
            structure = define_import_structure(Path(__file__).parent / "models")
            sys.modules[__name__] = _LazyModule(__name__, __file__, structure)
        """
    )
    assert not facts.dynamic
    assert facts.lazy["old_one"] == "pkg.old_one"
    assert set(facts.registers) == {"pkg.old_one", "pkg.old_two", "pkg.models.*_fast"}


def test_lazy_module_with_a_computed_key_is_dynamic():
    assignment = "sys.modules[__name__] = _LazyModule(__name__, __file__, _import_structure)\n"
    table = '_import_structure = {"trainer": ["Trainer"]}\n'
    assert not read(table + assignment).dynamic
    assert read(f"{table}_import_structure.setdefault(key, names())\n{assignment}").dynamic


def test_define_import_structure_call_covers_all_files_of_the_folder():
    source = """
        from ...utils.import_utils import define_import_structure
        if TYPE_CHECKING:
            from .modeling import *
        else:
            _file = globals()["__file__"]
            sys.modules[__name__] = _LazyModule(__name__, _file, define_import_structure(_file))
        """
    facts = read(source, "pkg.models.llama")
    assert facts.lazy_stars == ("pkg.models.llama.modeling", "pkg.models.llama.*")
    assert not facts.dynamic


@each_row(
    ("body", "lazy"),
    [
        ("if name == 'X':\n    from .y import X\n    return X\nraise AttributeError", "pkg.y"),
        ("if name in ('X', 'Y'):\n    return 1\nraise AttributeError", ""),
        ("if name in TABLE:\n    return load(TABLE[name])\nraise AttributeError", "pkg.y"),
        ("if name not in PAIRS:\n    raise AttributeError\nreturn load(*PAIRS[name])", "pkg.y:Z"),
        ("if (name == 'X') and ok():\n    from .y import Z as X\n    return X\nraise A", "pkg.y:Z"),
        ("if name in __all__:\n    return 1\nraise AttributeError", ""),
    ],
)
def test_names_that_module_getattr_returns_are_lazy(body, lazy):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    tables = "__all__ = ['X']\nTABLE = {'X': '.y:X'}\nPAIRS = {'X': ('.y', 'Z')}\n"
    facts = read(f"{tables}def __getattr__(name):\n{lines}")
    assert facts.lazy["X"] == lazy
    assert not facts.dynamic


@pytest.mark.parametrize(
    ("seen", "value", "lazy"),
    [
        ("from pkg.more import three", '"more"', "pkg.more"),
        ("from pkg.more import impl as three", '("more", "impl")', "pkg.more:impl"),
    ],
)
def test_lazy_names_are_read_from_a_submodule_table_and_type_checking_imports(seen, value, lazy):
    facts = read(f"""
        if TYPE_CHECKING:
            {seen}
        TABLE = {{"three": {value}}}
        def __getattr__(name):
            if name in TABLE:
                return load(TABLE[name])
            raise AttributeError(name)
        """)
    assert facts.lazy == {"three": lazy}


@each_row(
    "source",
    [
        "def __getattr__(name): return getattr(other, name)",
        "def __getattr__(name):\n    if name.startswith('x'): return 1\n    raise AttributeError",
        "def __getattr__(name): return import_module('.' + name)",
        "__getattr__ = deprecated(__name__)",
        "globals().update(other)",
        "for name in other: globals()[name] = 1",
        "sys.modules[__name__] = Thing()",
        "sys.modules[__name__].__class__ = Thing",
        "setattr(sys.modules[__name__], name, 1)",
        "exec(text)",
        "install_config_module(sys.modules[__name__])",
        "def fill():\n    g = globals()\n    for name in other: g[name] = 1",
        "def fill():\n    for name in other:\n        globals()[name] = 1",
    ],
)
def test_module_whose_names_cannot_be_listed_is_dynamic(source):
    assert read(source).dynamic


def test_attach_call_of_lazy_loader_is_read():
    facts = read(
        """
        __getattr__, __dir__, __all__ = lazy_loader.attach(
            __name__, submodules=["data"], submod_attrs={"io": ["read"]}
        )
        """
    )
    assert facts.lazy == {"data": "pkg.data", "io": "pkg.io", "read": "pkg.io"}
    assert not facts.dynamic


def test_modules_assigned_in_sys_modules_are_read():
    facts = read(
        """
        sys.modules["pkg.moves"] = Moves()
        sys.modules[f"{__name__}.models.{model}.old"] = Old()
        _create_module_alias(f"{__name__}.tokenization", ".other")
        """
    )
    assert facts.registers == ("pkg.moves", "pkg.models.*.old", "pkg.tokenization")
    assert not facts.dynamic


def test_call_of_an_alias_function_without_a_target_is_accepted():
    facts = read(
        """
        def shim(name, names=None):
            names = names or []
            sys.modules[f"pkg.{name}"] = importlib.import_module("pkg.new")

        shim("old")
        shim()
        """
    )
    assert facts.broken == ""
