"""Tests the check `calls` on small package sets."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import calls
from imgbuild.audit.main_path.closure import main_path
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy, NameRegistry
from imgbuild.report import ConflictRelation, Severity
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules, rules

LIB = {
    "lib/__init__.py": "from .core import Args, Engine, make\nfrom . import envs\n",
    "lib/envs.py": "FAST = 1\n",
    "lib/core.py": """
        from dataclasses import dataclass
        @dataclass
        class Args:
            model: str
            seed: int = 0
        class Engine:
            def __init__(self, args, *, eager=False):
                self.args = args
            def generate(self, prompts, sampling=None):
                return []
            @classmethod
            def from_args(cls, args) -> "Engine": ...
        class Trainer:
            def __init__(self, model, tokenizer=None): ...
        def make(name, /, size, *rest, mode): ...
        def free(**options): ...
    """,
}


INHERITED = """
from lib import Engine
class Mine(Engine):
    def f(self):
        self.generate('p', lora=1)
Mine(1).f()
"""
DERIVED = """
from lib.core import Trainer
class Mine(Trainer):
    def __init__(self):
        super().__init__(model=1, processing_class=2)
Mine()
"""


def check(user: str, policy: MainPathPolicy | None = None):
    package_set = SourceModules({"user 1.0": {"user/__init__.py": user}, "lib 2.0": LIB})
    policy = policy or rules("user")
    return calls.check_calls(package_set, main_path(package_set, policy), policy)


def subjects(user: str):
    return [(finding.evidence.relation, finding.evidence.subject) for finding in check(user)]


def test_call_with_a_removed_keyword_is_an_error_with_location():
    (finding,) = check("from lib import Args\n\nARGS = Args('m', best_of=2)\n")
    assert finding.severity is Severity.ERROR
    assert finding.where == "user 1.0 user/__init__.py:3"
    assert "passes best_of= to lib.Args, which lib 2.0 does not accept" in finding.message
    assert finding.evidence.relation is ConflictRelation.KEYWORD
    assert finding.evidence.subject == "lib.Args(best_of)"
    assert (finding.evidence.other, finding.evidence.other_version) == ("lib", "2.0")


@each_row(
    ("source", "relation", "subject"),
    [
        ("import lib\nlib.core.make('x', 1)\n", ConflictRelation.ARGUMENT, "lib.core.make(mode)"),
        ("from lib import Args\nArgs()\n", ConflictRelation.ARGUMENT, "lib.Args(model)"),
        ("from lib import Args\nArgs('m', 1, 2)\n", ConflictRelation.ARGUMENT, "lib.Args(2)"),
        ("import lib\nprint(lib.envs.SLOW)\n", ConflictRelation.NAME, "lib.envs:SLOW"),
        ("from lib import envs\nX = envs.SLOW\n", ConflictRelation.NAME, "lib.envs:SLOW"),
        (
            "from lib import Engine\ndef f():\n    e = Engine(1)\n    e.generate(1, lora=2)\nf()\n",
            ConflictRelation.KEYWORD,
            "lib.Engine.generate(lora)",
        ),
        (
            "from lib import Args\ndef f(a: Args):\n    print(a.disable_log)\nf(1)\n",
            ConflictRelation.ATTRIBUTE,
            "lib.Args.disable_log",
        ),
        (
            INHERITED,
            ConflictRelation.KEYWORD,
            "lib.core.Engine.generate(lora)",
        ),
        (
            DERIVED,
            ConflictRelation.KEYWORD,
            "lib.core.Trainer.__init__(processing_class)",
        ),
    ],
)
def test_uses_of_undefined_names_and_attributes_are_reported(source, relation, subject):
    assert subjects(source) == [(relation, subject)]


@each_row(
    "source",
    [
        "from lib import Args\nArgs('m', seed=1).seed\n",
        "from lib import Args\nArgs(**{})\n",
        "from lib import Args\nArgs(*[])\n",
        "from lib.core import make\nmake('x', 1, 2, 3, mode=1)\n",
        "from lib.core import free\nfree(anything=1)\n",
        "from lib import Engine\nEngine.generate(None, 'p')\n",
        "from lib import Engine\ndef f():\n    e = Engine.from_args(1)\n    e.generate('p')\n",
        "import lib\nif hasattr(lib.envs, 'SLOW'):\n    print(lib.envs.SLOW)\n",
        "import lib\nif getattr(lib.envs, 'S', None) is not None and lib.envs.S:\n    lib.gone()\n",
        "import lib\nprint(getattr(lib.envs, 'SLOW', None))\n",
        "import json\njson.dumps(1, nonsense=2)\n",
        "import lib\nlib.xpu.empty_cache()\n",
    ],
)
def test_defined_or_possibly_dynamic_names_are_not_reported(source):
    assert subjects(source) == []


def test_calls_outside_the_main_path_are_checked_only_for_missing_module_names():
    source = "import lib\nclass Mine(lib.core.Gone):\n    pass\nlib.core.Args('m', gone=1)\n"
    (finding,) = check(source, rules("user", walk=("user",)))
    assert (finding.severity, finding.evidence.subject) == (Severity.ERROR, "lib.core:Gone")


def test_attribute_error_that_is_caught_is_a_note():
    source = "import lib\ntry:\n    X = lib.envs.SLOW\nexcept AttributeError:\n    X = 0\n"
    (finding,) = check(source)
    assert finding.severity is Severity.NOTE


AUTO = {
    "lib/__init__.py": "from .auto import AutoConfig\n",
    "lib/auto.py": """
        TABLE = dict_of([("aimv2", "A"), ("qwen2", "B")])
        class AutoConfig:
            @staticmethod
            def register(name, config, exist_ok=False): ...
    """,
}


@each_row(
    ("call", "count"),
    [
        ("AutoConfig.register('aimv2', object)", 1),
        ("AutoConfig.register('ovis', object)", 0),
        ("AutoConfig.register('aimv2', object, exist_ok=True)", 0),
        ("AutoConfig.register(NAME, object)", 0),
    ],
)
def test_duplicate_registration_is_reported(call, count):
    registry = NameRegistry(
        method="lib.auto.AutoConfig.register",
        files=("lib/elsewhere.py", "lib/auto.py"),
        table="TABLE",
        allowed_by="exist_ok",
    )
    policy = MainPathPolicy(
        walk=frozenset(("user", "lib")),
        entries=(MainPathEntry(name="user", why="a test"),),
        registries=(registry,),
    )
    user = f"from lib import AutoConfig\nNAME = 'x'\n{call}\n"
    package_set = SourceModules({"user 1.0": {"user/__init__.py": user}, "lib 2.0": AUTO})
    findings = calls.check_calls(package_set, main_path(package_set, policy), policy)
    assert len(findings) == count
    for finding in findings:
        assert finding.evidence is not None
        assert finding.evidence.relation is ConflictRelation.REGISTERED
        assert finding.evidence.subject == "lib.AutoConfig.register(aimv2)"


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        ("if config.hybrid:\n        Context()", Severity.NOTE),
        ("if config.hybrid:\n        made = Context()\n        made.start()", Severity.ERROR),
        ("Context()", Severity.ERROR),
    ],
)
def test_error_in_an_uncalled_method_of_an_optional_object_is_a_note(
    run: str, severity: Severity
) -> None:
    source = f"""
from lib import Args
class Context:
    def start(self):
        Args('m', best_of=2)
def run(config):
    {run}
"""
    (finding,) = check(source, rules("user.run"))
    assert finding.severity is severity


ASKED = """
import inspect
from lib import Args, Engine
def main():
    params = inspect.signature(Engine.generate).parameters
    kwargs = {{}}
    args = Args("m")
    if {test}:
        kwargs["lora"] = args.lora
        Engine(1).generate("p", lora=1)
    else:
        Engine(1).generate("p", None, 3)
main()
"""


@each_row(
    ("test", "expected"),
    [
        # There is no lora in this lib: the first branch is not taken, the other is.
        ('"lora" in params', [("lib.Engine.generate(2)", Severity.ERROR)]),
        (
            '"sampling" not in params',
            [("lib.Engine.generate(2)", Severity.ERROR)],
        ),
        # The owner of these parameters is unknown: neither branch is reported.
        (
            '"lora" in inspect.signature(unknown.generate).parameters',
            [
                ("lib.Args.lora", Severity.NOTE),
                ("lib.Engine.generate(lora)", Severity.NOTE),
                ("lib.Engine.generate(2)", Severity.NOTE),
            ],
        ),
        (
            '"prompts" in params',
            [("lib.Args.lora", Severity.ERROR), ("lib.Engine.generate(lora)", Severity.ERROR)],
        ),
    ],
)
def test_test_for_a_parameter_guards_the_calls_that_pass_it(test, expected):
    findings = check(ASKED.format(test=test))
    assert sorted((finding.evidence.subject, finding.severity) for finding in findings) == sorted(
        expected
    )
