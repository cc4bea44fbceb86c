"""Tests the check `imports` on small package sets."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import imports
from imgbuild.audit.main_path.closure import main_path
from imgbuild.report import ConflictRelation, Severity
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules, rules

LIB = {"lib/__init__.py": "from .core import run\n", "lib/core.py": "def run(): ...\n"}


def check(user: str, *entries: str, lib: str = "lib 2.0", corners: tuple[str, ...] = ("user",)):
    package_set = SourceModules({"user 1.0": {"user/__init__.py": user}, lib: LIB})
    path = main_path(package_set, rules(*(entries or ("user",))), corners)
    return imports.check_imports(package_set, path)


def test_import_of_a_removed_name_is_an_error_with_location():
    (finding,) = check("import os\n\nfrom lib.core import walk\n")
    assert finding.severity is Severity.ERROR
    assert finding.where == "user 1.0 user/__init__.py:3"
    assert "imports walk from lib.core, but lib 2.0 does not define it" in finding.message
    evidence = finding.evidence
    assert evidence.relation is ConflictRelation.NAME
    assert (evidence.package, evidence.version) == ("user", "1.0")
    assert (evidence.file, evidence.line) == ("user/__init__.py", 3)
    assert (evidence.other, evidence.other_version) == ("lib", "2.0")
    assert evidence.subject == "lib.core:walk"


def test_import_of_a_removed_module_is_an_error():
    (finding,) = check("from lib.tools import walk\n")
    assert finding.evidence.relation is ConflictRelation.MODULE
    assert finding.evidence.subject == "lib.tools"


def test_finding_about_a_fallback_import_names_the_preceding_import():
    same = "try:\n    from lib.tools import walk\nexcept ImportError:\n    from lib import walk\n"
    (finding,) = [each for each in check(same) if each.evidence.subject == "lib:walk"]
    assert finding.evidence.preferred == (("lib.tools:walk",),)
    other = "try:\n    from engine import walk\nexcept ImportError:\n    from lib import walk\n"
    (finding,) = [each for each in check(other) if each.evidence.subject == "lib:walk"]
    assert finding.evidence.preferred == ()


def test_import_of_missing_package_is_an_error():
    (finding,) = check("import setuptools\n")
    assert finding.evidence.relation is ConflictRelation.PACKAGE
    assert finding.evidence.subject == "setuptools"
    assert finding.evidence.other == ""


@each_row(
    "source",
    [
        "from lib import run\n",
        "from lib import core\n",
        "import lib.core as c\n",
        "from lib import *\n",
        "import json, xml.etree\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lib import walk\n",
        "import sys\nif sys.platform == 'win32':\n    from lib import walk\n",
        "import sys\nif sys.version_info >= (3, 12):\n    from lib import walk\n",
    ],
)
def test_working_or_unreached_imports_are_not_reported(source):
    assert check(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from lib import walk\nexcept ImportError:\n    walk = None\n",
        "try:\n    import lib.tools\nexcept Exception:\n    pass\n",
        "def later():\n    from lib import walk\n",
    ],
)
def test_failing_imports_that_are_caught_or_unlikely_are_notes(source):
    (finding,) = check(source)
    assert finding.severity is Severity.NOTE


def test_failing_import_in_a_function_on_the_main_path_is_an_error():
    source = "def later():\n    from lib import walk\n"
    (finding,) = check(source, "user.later")
    assert finding.severity is Severity.ERROR
    assert "used by user.later" in finding.message


@pytest.mark.parametrize(
    "source",
    [
        "import os\nif os.environ.get('FAST'):\n    import fastlib\n",
        "try:\n    import fastlib\nexcept ImportError:\n    fastlib = None\n",
        "def later():\n    import fastlib\n",
    ],
)
def test_missing_optional_package_is_not_reported(source):
    assert check(source, "user", "user.later") == []


def test_vendored_package_is_not_reported():
    files = {"user/__init__.py": "import colorama\n", "user/third/colorama/__init__.py": ""}
    package_set = SourceModules({"user 1.0": files})
    assert imports.check_imports(package_set, main_path(package_set, rules("user"))) == []


def test_partial_package_set_ignores_missing_packages():
    files = {"user/__init__.py": "import setuptools\nfrom lib import walk\n"}
    package_set = SourceModules({"user 1.0": files, "lib 2.0": LIB}, partial=True)
    findings = imports.check_imports(package_set, main_path(package_set, rules("user")))
    assert [finding.evidence and finding.evidence.subject for finding in findings] == ["lib:walk"]


def test_vendored_package_in_a_folder_that_cannot_be_imported_is_not_reported():
    files = {
        "user/__init__.py": "import gql_parser\nimport other\n",
        "user/vendor/gql-0.2.0/gql_parser/__init__.py": "",
    }
    package_set = SourceModules({"user 1.0": files})
    findings = imports.check_imports(package_set, main_path(package_set, rules("user"), ("user",)))
    assert [finding.evidence.subject for finding in findings if finding.evidence] == ["other"]


def test_missing_namespace_module_is_not_attributed_to_another_package():
    files = {"user/__init__.py": "import space.cloud.registry\nimport space.cloud.part.gone\n"}
    parts = {"space/cloud/part/__init__.py": ""}
    package_set = SourceModules({"user 1.0": files, "lib 2.0": parts})
    findings = imports.check_imports(package_set, main_path(package_set, rules("user"), ("user",)))
    evidence = [finding.evidence for finding in findings if finding.evidence]
    assert [(item.relation, item.other) for item in evidence] == [
        (ConflictRelation.PACKAGE, ""),
        (ConflictRelation.MODULE, "lib"),
    ]


# -- modules that another package uses

PART = "try:\n    from engine.tools import Tokenizer\nexcept ImportError{}:\n    {}\n"
RAISES = PART.format("", "raise ImportError('engine is not installed')")
LAZY = "part = LazyLoader('{0}', globals(), '{0}')\n"


def part_findings(part: str, user: str):
    packages = {
        "fmt 0.11.3": {
            "fmt/__init__.py": "",
            "fmt/parts/__init__.py": "",
            "fmt/parts/engine.py": part,
        },
        "engine 0.26.0": {
            "engine/__init__.py": "class LazyLoader:\n    pass\n",
            "engine/backend.py": f"from engine import LazyLoader\n{user}",
        },
    }
    package_set = SourceModules(packages)
    corners = ("fmt.parts.engine", "engine.backend")
    path = main_path(package_set, rules("engine", walk=("fmt", "engine")), corners)
    return [
        (finding.severity, finding.message) for finding in imports.check_imports(package_set, path)
    ]


@each_row(
    "part",
    [
        RAISES,
        PART.format(" as error", "raise RuntimeError('engine is not installed') from error"),
        PART.format("", "print('no engine')\n    raise"),
        "from engine.tools import Tokenizer\n",
    ],
)
@each_row(
    "user",
    [
        LAZY.format("fmt.parts.engine"),
        "def start():\n    from fmt.parts import engine\n",
        "def start():\n    import fmt.parts.engine as part\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import fmt.parts.engine as part\n",
    ],
)
def test_module_that_cannot_be_imported_but_is_used_by_a_package_is_a_warning(part, user):
    ((severity, message),) = part_findings(part, user)
    assert severity is Severity.WARNING
    assert "imports engine.tools, which engine 0.26.0 does not have" in message
    assert "; engine uses this module (engine/backend.py:" in message


@each_row(
    ("part", "user"),
    [
        (RAISES, "def start():\n    import fmt.parts\n"),
        (RAISES, LAZY.format("fmt.parts.other")),
        (PART.format("", "Tokenizer = None"), LAZY.format("fmt.parts.engine")),
        ("def later():\n    import engine.tools\n", LAZY.format("fmt.parts.engine")),
        (RAISES, "import sys\nif sys.platform == 'win32':\n    import fmt.parts.engine\n"),
    ],
)
def test_finding_about_a_module_that_is_unused_or_still_importable_is_a_note(part, user):
    assert [severity for severity, _ in part_findings(part, user)] == [Severity.NOTE]
