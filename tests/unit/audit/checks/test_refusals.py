"""Tests that calls and decorators that raise at import are reported."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks.refusals import import_refusals
from imgbuild.audit.main_path.closure import main_path
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules, rules

DECORATED = """
from functools import wraps
try:
    import accelerate
    _has = True
except ImportError:
    _has = False

def needs(fallback):
    def decorator(func):
        if not _has:
            if fallback == "error":
                raise ValueError("install accelerate")
            @wraps(func)
            def instead(*args):
                return fallback
            return instead
        return func
    return decorator

@needs(fallback={fallback})
def use(module):
    raise NotImplementedError
"""
GENERATED = """
from lib import runtime
from lib.runtime import Domain
runtime.validate(Domain.PUBLIC, 6, 31, "", "a.proto")
"""
RUNTIME = """
class Domain:
    PUBLIC = 1
MAJOR = {major}
MINOR = 30
def _report(message):
    raise VersionError(message)
def validate(domain, major, minor, suffix, file):
    if domain == Domain.PUBLIC:
        print("public")
    if major < 0:
        raise ValueError("major")
    if MAJOR != major:
        if MAJOR == major - 1:
            warn(file)
        else:
            _report(f"{{file}}: {{major}}.{{minor}}")
    if MINOR < minor or suffix != "":
        _report("older runtime")
"""
CHECK = """
import importlib.metadata
from packaging.version import Version
def check({parameter}):
    {body}
{call}
"""


def refusal_lines(
    source: str, *, partial: bool = False, lib: str = "", **versions: str
) -> list[str]:
    packages = {
        "user 1": {"user/__init__.py": source},
        "packaging 25": {"packaging/version.py": ""},
    }
    if lib:
        packages["lib 2"] = {"lib/__init__.py": "", "lib/runtime.py": lib}
    for name, version in versions.items():
        packages[f"{name} {version}"] = {f"{name}/__init__.py": ""}
    modules = SourceModules(packages, partial=partial)
    return [
        f"{refusal.place.line} {refusal.raised} {refusal.at} {refusal.cause}"
        for refusal in import_refusals(modules, main_path(modules, rules("user")))
    ]


def test_decorator_that_raises_without_a_package_is_an_error():
    source = DECORATED.format(fallback='"error"')
    assert refusal_lines(source) == ["22 ValueError user/__init__.py:13 accelerate"]
    assert refusal_lines(source, accelerate="1") == []
    assert refusal_lines(source, partial=True) == []
    assert refusal_lines(DECORATED.format(fallback="None")) == []
    assert refusal_lines(DECORATED.format(fallback="chosen()")) == []


def test_generated_code_that_rejects_the_runtime_version_is_an_error():
    assert refusal_lines(GENERATED, lib=RUNTIME.format(major=4)) == [
        "4 VersionError lib/runtime.py:7 lib"
    ]
    assert refusal_lines(GENERATED, lib=RUNTIME.format(major=5)) == [
        "4 VersionError lib/runtime.py:7 lib"
    ]
    assert refusal_lines(GENERATED.replace("31", "30"), lib=RUNTIME.format(major=6)) == []
    assert refusal_lines(GENERATED.replace("6, 31", "level, 31"), lib=RUNTIME.format(major=6)) != []
    assert refusal_lines(GENERATED.replace("31", "level"), lib=RUNTIME.format(major=6)) == []


def test_published_packages_are_checked_only_for_conflicts_with_additions():
    modules = SourceModules(
        {
            "user 1": {"user/__init__.py": GENERATED},
            "lib 2": {"lib/__init__.py": "", "lib/runtime.py": RUNTIME.format(major=4)},
        }
    )
    path = main_path(modules, rules("user"))
    assert len(list(import_refusals(modules, path, {"lib"}))) == 1
    assert len(list(import_refusals(modules, path, {"user"}))) == 1
    assert not list(import_refusals(modules, path, {"user", "lib"}))


SPEC = "from importlib.util import find_spec\n"


@each_row(
    ("source", "count"),
    [
        (SPEC + "if find_spec('dep') is None:\n    raise ImportError('dep')\n", 1),
        (SPEC + "if not is_dep_available() or find_spec('dep') is None:\n    raise X\n", 1),
        (SPEC + "if find_spec('dep') is None and unknown():\n    raise ImportError('dep')\n", 0),
        (
            "try:\n    import dep\nexcept ImportError:\n    dep = 0\nif not dep:\n    raise X\n",
            1,
        ),
        ("try:\n    import dep\nexcept ImportError:\n    raise RuntimeError('dep')\n", 0),
        (SPEC + "try:\n    if not find_spec('dep'):\n        raise X\nexcept X:\n    pass\n", 0),
        (SPEC + "def later():\n    if not find_spec('dep'):\n        raise X\n", 0),
    ],
)
def test_statement_that_raises_without_a_package_is_an_error(source, count):
    assert len(refusal_lines(source)) == count
    assert refusal_lines(source, dep="1") == []
    assert refusal_lines(source, partial=True) == []


BUILT = """
try:
    import torch
    from {part} import x
except ImportError:
    raise RuntimeError("build it")
"""


@pytest.mark.parametrize("part", ["user", "user._C"])
def test_missing_module_that_a_build_may_add_is_not_reported(part):
    assert refusal_lines(BUILT.format(part=part), torch="2") == []


OLD = (
    "if Version(importlib.metadata.version(name)) < Version('2'):\n        raise ImportError(name)"
)


@each_row(
    ("body", "call", "versions", "count"),
    [
        (OLD, "check('dep')", {"dep": "1"}, 1),
        (OLD, "check('dep')", {"dep": "2"}, 0),
        (OLD, "check(chosen)", {"dep": "1"}, 0),
        (OLD, "try:\n    check('dep')\nexcept ImportError:\n    pass", {"dep": "1"}, 0),
        (OLD, "if unknown():\n    check('dep')", {"dep": "1"}, 0),
        (OLD, "def later():\n    check('dep')", {"dep": "1"}, 0),
        (OLD, "later = lambda: check('dep')", {"dep": "1"}, 0),
        (OLD, "for one in ():\n    check('dep')", {"dep": "1"}, 0),
        (OLD, "each = 'dep'\ncheck(each)\neach = 'other'", {"dep": "1"}, 0),
        ("raise ValueError(name)", "check('dep')", {"dep": "1"}, 0),
        (f"if unknown():\n        return\n    {OLD}", "check('dep')", {"dep": "1"}, 0),
        (f"with quiet():\n        pass\n    {OLD}", "check('dep')", {"dep": "1"}, 1),
        (
            f"with quiet():\n        {OLD}".replace("\n        raise", "\n            raise"),
            "check('dep')",
            {"dep": "1"},
            0,
        ),
        (f"for _ in unknown():\n        return\n    {OLD}", "check('dep')", {"dep": "1"}, 0),
        (f"sys.exit = unknown\n    {OLD}", "check('dep')", {"dep": "1"}, 1),
    ],
)
def test_call_that_rejects_the_version_of_a_package_is_an_error(body, call, versions, count):
    source = CHECK.format(parameter="name", body=body, call=call)
    assert len(refusal_lines(source, **versions)) == count
