"""Tests looking up the names of a module."""

from __future__ import annotations

from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.source.facts import AssignedName, Class, Function, ModuleFacts, OpaqueModule
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row

MODULES = {
    "pkg": "from .a import One as Renamed\nfrom . import b, c\nimport os.path\n"
    "from pkg.gone import X\n",
    "pkg.a": "class One: ...\nif True:\n    def two(): ...\nTHREE = One\n_hidden = 1\n",
    "pkg.b": "from .a import *\nfrom .c import *\n",
    "pkg.c": "__all__ = ['exported']\nexported = 1\nkept = 2\n",
    "pkg.d": "from native import *\n",
    "pkg.typed": "if TYPE_CHECKING:\n    from .a import One\nfrom .a import One as Other\n",
    "pkg.circle": "from pkg.round import it\n",
    "pkg.round": "from pkg.circle import it\n",
    "pkg.dropped": "x = 1\ndel x\n",
    "pkg.either": "try:\n    from .a import One\nexcept ImportError:\n    One = None\n",
    "pkg.both": "if new():\n    from .a import One\nelse:\n    def One(): ...\n",
    "pkg.remade": "class One: ...\nOne = made(One)\n",
    "pkg.broken": "def (",
    "torch.cuda": "x = 1\n",
    "pkg.moving": "globals().update(x)\n",
    "pkg.cached": "@cached\nclass __getattr__:\n    version = property(lambda self: 1)\n",
    "six": "sys.modules[__name__ + '.moves'] = Moves()\n",
    "lazy": """
from .utils import define_import_structure
import sys
if TYPE_CHECKING:
    from .known import Known
else:
    sys.modules[__name__] = _LazyModule(__name__, __file__, define_import_structure(__file__))
""",
    "lazy.known": "Known = 1\n",
    "lazy.models": "from ..utils import define_import_structure\nimport sys\n"
    "sys.modules[__name__] = _LazyModule(__name__, __file__, define_import_structure(__file__))\n",
    "lazy.models.llama": "__all__ = ['Llama']\nclass Llama: ...\nclass Helper: ...\n",
    "named": "def __getattr__(name):\n    if name == 'X':\n        from pkg.a import One as X\n"
    "        return X\n    if name == 'Y':\n        return 1\n    raise AttributeError(name)\n",
}
MODULES |= {
    "hub": "if TYPE_CHECKING:\n    from .tqdm import tqdm\n"
    "sys.modules[__name__].__class__ = Lazy\n",
    "hub.tqdm": "class tqdm: ...\n",
    "hub.other": "x = 1\n",
    "table": "_import_structure = {'bar': ['bar', 'other'], 'plain': ['plain_bar']}\n"
    "sys.modules[__name__] = _LazyModule(__name__, __file__, _import_structure)\n",
    "table.bar": "class bar: ...\n",
    "table.plain": "def plain_bar(): ...\n",
    "service_pb2": "from google.protobuf.internal import builder as _builder\n"
    "_builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())\n",
}
MODULES |= {
    "text": "from text.metrics import *\n",
    "text.metrics": "from text.metrics.scores import f_measure\n",
    "text.metrics.scores": "def f_measure(): ...\n",
    "text.metrics.other": "x = 1\n",
}
PACKAGES = {"text", "text.metrics", "hub", "table", "pkg", "lazy", "lazy.models", "six", "named"}


class Modules:
    """The modules of the table above. The module `native` is compiled."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        if name == "native":
            return OpaqueModule(name, "compiled")
        if name not in MODULES:
            return None
        self.read.append(name)
        return read_module(MODULES[name].encode(), name, f"{name}.py", package=name in PACKAGES)


class Searched(Modules):
    """The modules, whose texts can be searched."""

    def mentioning(self, package: str, word: str) -> list[str]:
        return [
            name
            for name, source in MODULES.items()
            if name.startswith(f"{package}.") and word in source
        ]

    def read_ahead(self, package: str) -> None:
        """Do nothing, because all sources are in memory."""


@each_row(
    ("module", "name", "state", "home"),
    [
        ("pkg.a", "One", "defined", "pkg.a"),
        ("pkg.a", "two", "defined", "pkg.a"),
        ("pkg.a", "gone", "absent", ""),
        ("pkg", "Renamed", "defined", "pkg.a"),
        ("pkg", "One", "absent", ""),
        ("pkg", "a", "defined", "pkg.a"),
        ("pkg", "b", "defined", "pkg.b"),
        ("pkg", "nowhere", "absent", ""),
        ("pkg", "os", "unknown", ""),
        ("pkg", "__version__", "absent", ""),
        ("pkg", "__path__", "defined", "pkg"),
        ("pkg.a", "__path__", "absent", ""),
        ("pkg.a", "__name__", "defined", "pkg.a"),
        ("pkg.b", "One", "defined", "pkg.a"),
        ("pkg.b", "exported", "defined", "pkg.c"),
        ("pkg.b", "kept", "absent", ""),
        ("pkg.b", "_hidden", "absent", ""),
        ("pkg.d", "anything", "unknown", ""),
        ("pkg.typed", "One", "absent", ""),
        ("pkg.typed", "Other", "defined", "pkg.a"),
        ("pkg.circle", "it", "unknown", ""),
        ("pkg.dropped", "x", "unknown", ""),
        ("pkg.broken", "x", "unknown", ""),
        ("pkg.moving", "x", "unknown", ""),
        ("pkg.cached", "version", "unknown", ""),
        ("pkg", "X", "unknown", ""),
        ("pkg.none", "X", "absent", ""),
        ("none", "X", "absent", ""),
        ("native", "X", "unknown", ""),
        ("native.part", "X", "unknown", ""),
        ("six.moves", "X", "unknown", ""),
        ("six.moves.urllib", "X", "unknown", ""),
        ("six.other", "X", "absent", ""),
        ("torch.cuda", "FloatTensor", "unknown", ""),
        ("torch.cuda", "gone", "absent", ""),
        ("named", "X", "defined", "pkg.a"),
        ("named", "Y", "defined", "named"),
        ("named", "Z", "absent", ""),
        ("lazy", "Known", "defined", "lazy.known"),
        ("lazy", "Llama", "defined", "lazy.models.llama"),
        ("lazy", "Helper", "absent", ""),
        ("lazy", "LlamaFast", "unknown", ""),
        ("hub", "tqdm", "unknown", ""),
        ("hub", "other", "defined", "hub.other"),
        ("table", "bar", "unknown", ""),
        ("table", "plain", "defined", "table.plain"),
        ("service_pb2", "State", "unknown", ""),
        ("text", "scores", "defined", "text.metrics.scores"),
        ("text", "other", "absent", ""),
    ],
)
def test_lookup_returns_the_state_of_a_name_and_its_defining_module(module, name, state, home):
    lookup_result = look_up(Searched(), module, name)
    assert lookup_result.state == state
    assert (lookup_result.home.module if lookup_result.home else "") == home


def test_namespace_that_cannot_be_searched_may_have_any_name():
    assert look_up(Modules(), "lazy", "Llama").state == "unknown"


def test_lookup_result_has_the_definition_and_the_chain_of_imports():
    lookup_result = look_up(Modules(), "pkg", "Renamed")
    assert isinstance(lookup_result.definition, Class)
    assert lookup_result.definition.name == "One"
    assert lookup_result.trace == ("pkg:Renamed", "pkg.a:One")
    assert isinstance(look_up(Modules(), "pkg.a", "two").definition, Function)
    assert isinstance(look_up(Modules(), "pkg.a", "THREE").definition, AssignedName)
    assert isinstance(look_up(Modules(), "pkg", "a").definition, ModuleFacts)


@each_row(
    ("module", "ambiguous"),
    [("pkg.a", False), ("pkg.either", False), ("pkg.both", True), ("pkg.remade", True)],
)
def test_names_with_several_conditional_definitions_are_ambiguous(module, ambiguous):
    lookup_result = look_up(Modules(), module, "One")
    assert isinstance(lookup_result.definition, Class)
    assert lookup_result.ambiguous is ambiguous


def test_names_from_many_star_imports_are_searched_by_module_text():
    """Only modules that contain the name are read."""
    extra = {f"many.m{i}": f"__all__ = ['M{i}']\nM{i} = 1\n" for i in range(20)}
    stars = "".join(f"    from .m{i} import *\n" for i in range(20))
    loader = "    sys.modules[__name__] = _LazyModule(__name__, __file__, {})\n"
    extra["many"] = f"import sys\nif TYPE_CHECKING:\n{stars}else:\n{loader}"
    extra["many.m3"] += "__all__ += ['Other']\nOther = 1\n"

    class Many(Searched):
        def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
            self.read.append(name)
            source = extra.get(name)
            if source is None:
                return None
            return read_module(source.encode(), name, "", package=name == "many")

        def mentioning(self, package: str, word: str) -> list[str]:
            return [name for name in extra if name.startswith("many.") and word in extra[name]]

    many = Many()
    assert look_up(many, "many", "Other").state == "defined"
    assert {name for name in many.read if name.startswith("many.m")} == {"many.m3"}
    assert look_up(many, "many", "M7").state == "defined"
    assert look_up(many, "many", "Nothing").state == "absent"
