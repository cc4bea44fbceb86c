"""Tests that packages requested by the user must be importable."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.audit.judge import AuditTerms, audit_package_set, terms_for_additions
from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.named import add_named_packages
from imgbuild.report import Severity
from tests.support import audited
from tests.support.rows import each_row

PACKAGES = {
    "helper==1.0": {"helper.py": "VALUE = 42\n"},
    "gadget==1.0": {
        "gadget/__init__.py": "from gadget.core import look\n",
        "gadget/core.py": "from helper import GONE\ndef look(): ...\n",
        "tests/__init__.py": "",
        "_gadget.py": "",
    },
}


def test_requested_packages_are_entry_points_of_the_main_path(tmp_path: Path) -> None:
    package_set = audited.package_set(tmp_path, PACKAGES)
    rules = add_named_packages(package_set, ["gadget"])
    assert {entry.name for entry in rules.entries} - {
        e.name for e in policy.load_policy().entries
    } == {"gadget"}
    assert rules.walk == policy.load_policy().walk
    assert rules.imported == {"gadget"}
    assert add_named_packages(package_set, []) == policy.load_policy()


def test_requested_package_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    package_set = audited.package_set(tmp_path, PACKAGES)
    plain = audit_package_set(package_set, AuditTerms(), checks=["imports"])
    assert not [finding for finding in plain.findings if finding.severity is Severity.ERROR]
    report = audit_package_set(package_set, AuditTerms(named=("gadget",)), checks=["imports"])
    (error,) = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert "GONE" in error.message
    assert error.where.endswith("gadget/core.py:1")


@pytest.mark.parametrize(
    ("source", "expected"),
    [("import gadget\n", ["GONE"]), ("def draw():\n    import gadget\n", [])],
)
def test_dependency_of_an_addition_is_followed_only_if_the_addition_imports_it(
    tmp_path: Path, source: str, expected: list[str]
) -> None:
    packages = PACKAGES | {"shell==1.0": {"shell.py": source}}
    package_set = audited.package_set(tmp_path, packages)
    terms = terms_for_additions(AuditTerms(), {"shell", "torch"}, {"shell", "gadget"})
    assert (terms.named, terms.added) == (("shell",), ("gadget", "shell"))
    report = audit_package_set(package_set, terms, checks=["imports"])
    errors = [each for each in report.findings if each.severity is Severity.ERROR]
    assert [word for each in errors for word in ("GONE",) if word in each.message] == expected
    assert len(errors) == len(expected)


def test_all_additions_are_entry_points_if_none_is_requested() -> None:
    assert terms_for_additions(AuditTerms(), {"ray"}, {"b", "a"}).named == ("a", "b")


def test_only_code_that_runs_on_import_of_a_requested_package_is_followed(tmp_path: Path) -> None:
    source = (
        "import helper\ndef start():\n    helper.GONE\ndef later():\n    helper.LATER\nstart()\n"
    )
    packages = {"helper==1.0": {"helper.py": ""}, "gadget==1.0": {"gadget.py": source}}
    report = audit_package_set(
        audited.package_set(tmp_path, packages), AuditTerms(named=("gadget",)), checks=["calls"]
    )
    assert [finding.evidence.subject for finding in report.findings if finding.evidence] == [
        "helper:GONE"
    ]


def errors(folder: Path, packages: dict[str, dict[str, str]]) -> list[str]:
    """The import errors if all packages are named."""
    named = tuple(name.partition("==")[0] for name in packages)
    report = audit_package_set(
        audited.package_set(folder, packages), AuditTerms(named=named), checks=["imports"]
    )
    return [finding.message for finding in report.findings if finding.severity is Severity.ERROR]


def test_module_that_integrates_another_requested_package_is_followed(tmp_path: Path) -> None:
    part = "from helper import GONE\nimport absent\n"
    packages = {
        "helper==1.0": {"helper.py": ""},
        "gadget==1.0": {
            "gadget/__init__.py": "",
            "gadget/integrations/__init__.py": "",
            "gadget/integrations/helper.py": part,
            "gadget/_private/helper.py": part,
            "gadget/vendor/helper.py": part,
            "gadget/helper_v1.py": part,
        },
    }
    (error,) = errors(tmp_path, packages)
    assert error.startswith("gadget 1.0 imports GONE from helper")


LAZY = """
from typing import TYPE_CHECKING
import importlib
if TYPE_CHECKING:
    from gadget.core import one, two
    from gadget.more import three
def __getattr__(name):
    return getattr(importlib.import_module(f"gadget.{PLACES[name]}"), name)
"""


def test_lazy_module_that_defines_most_names_is_followed(tmp_path: Path) -> None:
    packages = {
        "helper==1.0": {"helper.py": ""},
        "gadget==1.0": {
            "gadget/__init__.py": LAZY,
            "gadget/core.py": "from helper import ONE\none = two = 1\n",
            "gadget/more.py": "from helper import THREE\nthree = 1\n",
        },
    }
    (error,) = errors(tmp_path, packages)
    assert error.startswith("gadget 1.0 imports ONE from helper")


def test_requested_package_without_bundled_entry_points_is_followed(tmp_path: Path) -> None:
    # liger-kernel 0.5.8 with transformers 4.53: its patches import names that are gone.
    assert "liger-kernel" in policy.load_policy().walk
    packages = {
        "transformers==4.53.3": {"transformers/__init__.py": ""},
        "liger-kernel==0.5.8": {
            "liger_kernel/__init__.py": "",
            "liger_kernel/transformers/__init__.py": LAZY.replace(
                "gadget", "liger_kernel.transformers"
            ),
            "liger_kernel/transformers/core.py": "from transformers import GONE\none = two = 1\n",
            "liger_kernel/transformers/more.py": "three = 1\n",
        },
    }
    (error,) = errors(tmp_path, packages)
    assert error.startswith("liger-kernel 0.5.8 imports GONE from transformers")


PARTS = """
_import_structure = {}
_import_structure["gadget_utils"] = ["Gadget"]
_import_structure["extra"] = ["Extra"]
_import_structure["red"] = ["Red"]
_import_structure["blue"] = ["Blue"]
import sys
sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], _import_structure)
"""


def test_module_that_most_lazy_modules_use_is_followed(tmp_path: Path) -> None:
    part = "from ..gadget_utils import Gadget\nfrom helper import PART\n"
    packages = {
        "helper==1.0": {"helper.py": ""},
        "gadget==1.0": {
            "gadget/__init__.py": LAZY.replace("core", "parts").replace(", two", ", two, four"),
            "gadget/more.py": "three = 1\n",
            "gadget/parts/__init__.py": PARTS,
            "gadget/parts/gadget_utils.py": "from helper import GONE\nclass Gadget: ...\n",
            "gadget/parts/extra.py": "from helper import ALSO\nclass Extra: ...\n",
            "gadget/parts/red/__init__.py": part,
            "gadget/parts/blue/__init__.py": part,
        },
    }
    (error,) = errors(tmp_path, packages)
    assert error.startswith("gadget 1.0 imports GONE from helper")


ALIAS = """
import importlib, sys
def _alias(name, target):
    sys.modules[name] = importlib.import_module(target)
_alias("helper.old", "helper.new")
"""


def test_module_alias_in_sys_modules_has_the_names_of_its_module(tmp_path: Path) -> None:
    packages = {
        "helper==1.0": {"helper/__init__.py": ALIAS, "helper/new.py": "THERE = 1\n"},
        "gadget==1.0": {"gadget.py": "from helper.old import THERE, GONE\n"},
    }
    (error,) = errors(tmp_path, packages)
    assert error.startswith("gadget 1.0 imports GONE from helper.old")


def test_modules_of_a_namespace_package_are_followed(tmp_path: Path) -> None:
    packages = {
        "helper==1.0": {"helper.py": ""},
        "gadget-core==1.0": {
            "gadget/core.py": "from helper import GONE\n",
            "gadget/_core.py": "from helper import ALSO\n",
        },
    }
    (error,) = errors(tmp_path, packages)
    assert error.startswith("gadget-core 1.0 imports GONE from helper")


@each_row(
    ("part", "is_integration"),
    [
        ({"helper.py": "from gadget import core\nimport absent\n"}, False),
        (
            {
                "helper/__init__.py": "from .base import Base\n",
                "helper/base.py": "class Base: ...\n",
            },
            False,
        ),
        ({"helper.py": 'import os\nPATH = os.path.join("helper", "x")\n'}, False),
        ({"helper.py": "from . import helper\n"}, False),
        ({"helper.py": "import helper\n"}, True),
        (
            {"helper.py": "try:\n    from helper import A\nexcept ImportError:\n    A = None\n"},
            True,
        ),
        ({"helper.py": "def load():\n    import helper\n"}, True),
        ({"helper.py": "def load():\n    from helper import A\n"}, True),
        (
            {"helper.py": "import typing\nif typing.TYPE_CHECKING:\n    import helper\n"},
            True,
        ),
        (
            {"helper.py": 'import importlib\nX = importlib.import_module("helper.core")\n'},
            True,
        ),
        ({"helper.py": 'from gadget.core import is_available\nX = is_available("helper")\n'}, True),
        (
            {"helper/__init__.py": "from .base import Base\n", "helper/base.py": "import helper\n"},
            True,
        ),
        ({"helper/__init__.py": "", "helper/base/core.py": "import helper\n"}, True),
        ({"helper.py": "from gadget.impl import Base\n", "../impl.py": "import helper\n"}, True),
        ({"helper.py": "from gadget import impl\n", "../impl.py": "import helper\n"}, True),
    ],
)
def test_module_named_like_another_package_counts_only_if_it_uses_that_package(
    tmp_path: Path, part: dict[str, str], is_integration: bool
) -> None:
    files = {"gadget/__init__.py": "", "gadget/core.py": "def is_available(name): ...\n"}
    for name, source in part.items():
        place = name.removeprefix("../") if name.startswith("../") else f"parts/{name}"
        files[f"gadget/{place}"] = source
    packages = {"helper==1.0": {"helper.py": ""}, "gadget==1.0": files}
    rules = add_named_packages(audited.package_set(tmp_path, packages), ["helper", "gadget"])
    entries = [entry.name for entry in rules.entries if entry.name.startswith("gadget.")]
    assert entries == (["gadget.parts.helper"] if is_integration else [])
