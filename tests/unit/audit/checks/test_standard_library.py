"""Tests the checks `imports` and `calls` on names of the standard library."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import calls, imports
from imgbuild.audit.main_path.closure import main_path
from imgbuild.report import ConflictRelation, Finding, Severity
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules, rules


def check(
    source: str, *entries: str, python: str = "3.11", others: dict[str, str] | None = None
) -> list[Finding]:
    files = {"user/__init__.py": source, **(others or {})}
    package_set = SourceModules({"user 1.0": files}, python=python)
    policy = rules(*(entries or ("user",)))
    path = main_path(package_set, policy, ("user",))
    return [
        *imports.check_imports(package_set, path),
        *calls.check_calls(package_set, path, policy),
    ]


def test_use_of_a_name_from_a_newer_standard_library_is_an_error_with_location():
    (finding,) = check("import os\n\nfrom typing import override\n")
    assert finding.severity is Severity.ERROR
    assert finding.check == "imports"
    assert finding.where == "user 1.0 user/__init__.py:3"
    assert "imports override from typing, but Python 3.11 does not define it" in finding.message
    assert finding.remedy == "choose another version of user, or a base with a different Python"
    assert finding.evidence is not None
    assert finding.evidence.relation is ConflictRelation.NAME
    assert (finding.evidence.other, finding.evidence.subject) == ("", "typing:override")


ASKED = """\
import typing
if hasattr(typing, "override"):
    from typing import override
else:
    from typing_extensions import override
"""


@each_row(
    ("source", "python", "relation", "subject"),
    [
        ("from warnings import deprecated\n", "3.12", ConflictRelation.NAME, "warnings:deprecated"),
        ("from inspect import getargspec\n", "3.11", ConflictRelation.NAME, "inspect:getargspec"),
        ("import asyncio.timeouts\n", "3.10", ConflictRelation.MODULE, "asyncio.timeouts"),
        ("from asyncio import timeouts\n", "3.10", ConflictRelation.NAME, "asyncio:timeouts"),
        (
            "from importlib.resources.abc import Traversable\n",
            "3.10",
            ConflictRelation.MODULE,
            "importlib.resources.abc",
        ),
        (
            "import inspect\ninspect.getargspec(print)\n",
            "3.11",
            ConflictRelation.NAME,
            "inspect:getargspec",
        ),
        (
            "import pkgutil\nX = pkgutil.ImpImporter\n",
            "3.12",
            ConflictRelation.NAME,
            "pkgutil:ImpImporter",
        ),
        (
            "import os.path as p\np.splitroot('/')\n",
            "3.11",
            ConflictRelation.NAME,
            "os.path:splitroot",
        ),
        ("import os\nos.path.splitroot('/')\n", "3.11", ConflictRelation.NAME, "os.path:splitroot"),
        (
            "def f():\n    import enum\n    enum.member(1)\nf()\n",
            "3.10",
            ConflictRelation.NAME,
            "enum:member",
        ),
        ("import array\nX = array.array[int]\n", "3.11", ConflictRelation.SUBSCRIPT, "array.array"),
        (
            "from array import array\nX = array[int]\n",
            "3.11",
            ConflictRelation.SUBSCRIPT,
            "array.array",
        ),
    ],
)
def test_standard_library_names_of_a_different_python_are_reported(
    source, python, relation, subject
):
    (finding,) = check(source, python=python)
    assert finding.severity is Severity.ERROR
    assert finding.evidence is not None
    assert (finding.evidence.relation, finding.evidence.subject) == (relation, subject)


CHECKED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing import override\n"
OTHER_NAME = """
import typing
if hasattr(typing, "is_protocol"):
    get_protocol_members = typing.get_protocol_members
"""
EITHER = (
    "try:\n    import no_such as inspect\nexcept Exception:\n    import inspect\n"
    "inspect.getargspec(1)\n"
)


@each_row(
    ("source", "python"),
    [
        ("from typing import override\n", "3.12"),
        ("from inspect import getargspec\n", "3.10"),
        ("import array\nX = array.array[int]\n", "3.12"),
        ("from typing import List, no_such_name\nimport os\nos.no_such_name\n", "3.11"),
        ("import sys\nif sys.version_info >= (3, 12):\n    from typing import override\n", "3.11"),
        (CHECKED, "3.11"),
        ("import inspect\nif hasattr(inspect, 'getargspec'):\n    inspect.getargspec(1)\n", "3.11"),
        (OTHER_NAME, "3.11"),
        ("import inspect\ngetattr(inspect, 'getargspec', None)\n", "3.11"),
        ("import inspect\ninspect.getargspec = inspect.signature\ninspect.getargspec(1)\n", "3.11"),
        ("def f(inspect):\n    inspect.getargspec(1)\nimport inspect\nf(1)\n", "3.11"),
        (ASKED, "3.11"),
        (ASKED.replace("if hasattr", "HAS = hasattr").replace("):\n", ")\nif HAS:\n"), "3.11"),
        ("import inspect as i\ni.getargspec = i.signature\ni.getargspec(1)\n", "3.11"),
        ("import inspect\ninspect.getargspec = 1\nfrom inspect import getargspec\n", "3.11"),
        ("import typing\ntyping.__dict__.setdefault('override', 1)\ntyping.override\n", "3.11"),
        ("from array import array\nclass A:\n    array = [1]\n    x = array[0]\n", "3.11"),
        (EITHER, "3.11"),
        ("import array\narray = [1]\nX = array[0]\n", "3.11"),
        ("import array\nX = array.array('i')\nX[0]\n", "3.11"),
        ("def f(array):\n    array[0]\nfrom array import array\nf(1)\n", "3.11"),
    ],
)
def test_standard_library_names_that_exist_or_are_unreached_are_not_reported(source, python):
    assert check(source, python=python) == []


@each_row(
    "source",
    [
        "try:\n    from typing import override\nexcept ImportError:\n    override = None\n",
        "import inspect\ntry:\n    inspect.getargspec(1)\nexcept AttributeError:\n    pass\n",
        "import array\ntry:\n    X = array.array[int]\nexcept TypeError:\n    X = None\n",
        "import inspect as i\nif hasattr(i, 'signature'):\n    pass\nelse:\n    i.getargspec(1)\n",
        "def later():\n    from typing import override\n",
    ],
)
def test_uses_of_missing_names_that_are_caught_or_unlikely_are_notes(source):
    (finding,) = check(source)
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("python", "severity"), [("3.11", Severity.ERROR), ("3.12", Severity.NOTE)]
)
def test_fallback_of_a_missing_standard_library_name_is_checked(python, severity):
    source = (
        "try:\n    from typing import override\nexcept ImportError:\n"
        "    from inspect import getargspec as override\n"
    )
    severities = {finding.where[-1]: finding.severity for finding in check(source, python=python)}
    assert severities["4"] is severity


def test_missing_standard_library_name_assigned_by_the_package_is_not_reported():
    source = "import inspect\ninspect.getargspec = inspect.signature\nfrom user import later\n"
    used = "import inspect\ninspect.getargspec(1)\n"
    assert check(source, others={"user/later.py": used}) == []


def test_missing_standard_library_submodule_is_reported_once():
    source = "import asyncio.timeouts\nX = asyncio.timeouts.Timeout\n"
    (finding,) = check(source, python="3.10")
    assert (finding.check, finding.where[-1]) == ("imports", "1")


def test_missing_standard_library_name_is_reported_at_its_import():
    source = "try:\n    from heapq import heappush_max\nexcept ImportError:\n    pass\n"
    (finding,) = check(source + "def f():\n    heappush_max([], 1)\nf()\n")
    assert (finding.check, finding.severity) == ("imports", Severity.NOTE)


def test_name_assigned_by_another_module_of_the_package_is_not_reported_as_missing():
    source = "import inspect\nfrom . import patch\ninspect.getargspec(print)\n"
    patch = "import inspect\nif not hasattr(inspect, 'getargspec'):\n    {}\n"
    for line in ("inspect.getargspec = len", "setattr(inspect, 'getargspec', len)"):
        assert check(source, others={"user/patch.py": patch.format(line)}) == []
    assert len(check(source, others={"user/patch.py": patch.format("pass")})) == 1


# -- what is evaluated on import

FUNCTION = "import array\ndef f(fd: int) -> tuple[tuple[int, array.array[int]]]:\n    return 1\n"


@each_row(
    "source",
    [
        FUNCTION,
        "import array\ndef f(x: array.array[int]): ...\n",
        "import array\nclass A:\n    x: array.array[int]\n",
        "import array\nclass A:\n    def f(self, *x: array.array[int]): ...\n",
        "import array\nx: array.array[int]\n",
        "import array\ndef f(x=array.array[int]): ...\n",
        "import array\nclass A(array.array[int]): ...\n",
        "import array\n@print(array.array[int])\ndef f(): ...\n",
    ],
)
def test_subscript_evaluated_at_import_is_reported(source):
    (finding,) = check(source)
    assert finding.severity is Severity.ERROR
    assert "subscripts array.array, which is not subscriptable in Python 3.11" in finding.message
    assert check(source, python="3.12") == []


@each_row(
    "source",
    [
        "from __future__ import annotations\n" + FUNCTION,
        "import array\ndef f(x: 'array.array[int]'): ...\n",
        "import array\ndef f():\n    x: array.array[int] = 1\nf()\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import array\n    X = array.array[int]\n",
    ],
)
def test_subscript_that_is_not_evaluated_is_not_reported(source):
    assert check(source) == []


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("import ast\ndef f(x: ast.Str): ...\n", 0),
        ("import ast\nclass A:\n    x: ast.Str\n", 0),
        ("import ast\ndef f(x=ast.Str): ...\n", 1),
    ],
)
def test_annotations_are_evaluated_before_python_3_14(source, number):
    assert len(check(source, python="3.14")) == number
    assert check(source, python="3.13") == []


def test_function_body_is_checked_only_if_the_function_is_called():
    source = "import array\ndef f():\n    return array.array[int]\n"
    assert [finding.severity for finding in check(source)] == [Severity.NOTE]
    assert [finding.severity for finding in check(source, "user.f")] == [Severity.ERROR]
