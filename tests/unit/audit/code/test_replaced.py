"""Tests overrides, and that code for other versions causes only warnings."""

from __future__ import annotations

import pytest

from imgbuild.report import Severity
from tests.support import audited
from tests.support.audited_code import Findings

FOR_OTHERS = """\
import trl
from importlib.metadata import version
from packaging.version import Version

def load_old(path):
    def _inner():
        from trl import Gone
    return _inner()

def patch():
    trl.load = load_old

class Helper:
    def run(self):
        return load_old("x")

def apply(release):
    if Version(version("trl")) >= Version("{}"):
        return None
    trl.Helper = Helper
    return patch()

apply()
"""


@pytest.mark.parametrize(
    ("bound", "severity"), [("0.10", Severity.WARNING), ("0.20", Severity.ERROR)]
)
def test_findings_in_functions_used_only_for_other_versions_are_warnings(
    audit: Findings, bound: str, severity: Severity
) -> None:
    findings = audit({"patch.py": FOR_OTHERS.format(bound)})
    assert [(each.code, each.line, each.severity) for each in findings] == [("IMG101", 7, severity)]
    code = FOR_OTHERS.replace('Version(version("trl"))', "release").format(bound)
    assert [each.severity for each in audit({"patch.py": code})] == [Severity.WARNING]


def test_functions_that_are_never_used_are_assumed_to_run(audit: Findings) -> None:
    findings = audit({"a.py": "def main():\n    from trl import Gone\n    main()\n"})
    assert [each.severity for each in findings] == [Severity.ERROR]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("trainer = Own('m')\n", Severity.WARNING),
        ("trainer = Own('m')\ntrainer.evaluate()\n", Severity.ERROR),
    ],
)
def test_wrong_overrides_that_only_unused_methods_call_are_warnings(
    audit: Findings, script: str, expected: Severity
) -> None:
    base = "class Trainer:\n    def evaluate(self):\n        return self.score(batch=1)\n\n"
    base += "    def score(self, batch=None):\n        return batch\n"
    code = (
        "from base import Trainer\n\nclass Own(Trainer):\n    def score(self):\n        return 0\n"
    )
    findings = audit({"own.py": code + script}, {"base==4.0": {"base.py": base}})
    assert [(each.code, each.severity) for each in findings] == [("IMG109", expected)]


def test_findings_about_modules_or_attributes_that_the_code_replaces_are_warnings(
    audit: Findings,
) -> None:
    findings = audit(
        {
            "fake.py": "import sys\nsys.modules['trl'] = None\nfrom trl import load\nload()\n",
            "set.py": "from trl import SFTTrainer\ntrainer = SFTTrainer('m')\n"
            "def is_marked(each): return hasattr(each, 'first_call')\n"
            "assert trainer.first_call\n",
            "real.py": "import sys\nsys.modules['other'] = None\nfrom trl import load\nload()\n",
            "read.py": "from trl import SFTTrainer\ntrainer = SFTTrainer('m')\n"
            "first_call = trainer.first_call\n",
        }
    )
    assert sorted((each.file.rpartition("/")[2], each.severity) for each in findings) == [
        ("fake.py", Severity.WARNING),
        ("read.py", Severity.ERROR),
        ("real.py", Severity.ERROR),
        ("set.py", Severity.WARNING),
    ]


def test_triton_constexpr_values_can_have_any_attribute(audit: Findings) -> None:
    triton = "class constexpr:\n    def __init__(self, value):\n        self.value = value\n"
    code = "from triton import constexpr\n\ndef kernel(cfg: constexpr):\n    return cfg.layout\n"
    assert audit({"k.py": code}, {"triton==3.0": {"triton.py": triton}}) == []


def test_conditions_on_large_tables_are_not_evaluated(audit: Findings) -> None:
    table = "TABLE = {" + "".join(f"{number}: 1, " for number in range(1500)) + "}\n"
    script = "from trl import TABLE, load\nif TABLE.get('a'):\n    load('x', token=1)\n"
    packages = {"trl==0.18": {"trl.py": table + "\ndef load(path):\n    return path\n"}}
    findings = audit({"a.py": script}, packages)
    assert [each.code for each in findings] == ["IMG102"]


def test_explicit_self_argument_of_a_base_class_method_is_counted(audit: Findings) -> None:
    code = "import os\nfrom trl import SFTTrainer\nBase = SFTTrainer\n\nclass Own(Base):\n"
    code += "    def __init__(self, model):\n        Base.__init__(self, model, None, None)\n"
    assert audit({"own.py": code}) == []
    assert [each.code for each in audit({"own.py": code.replace("None)", "None, 1)")})] == [
        "IMG103"
    ]


@pytest.mark.parametrize(
    ("call", "method", "message"),
    [
        (
            "self.log(1, 2)",
            "log(self, logs)",
            "does not accept 2 arguments, which Base of p 1.0 passes",
        ),
        ("self.log()", "log(self, logs)", "requires logs, which Base of p 1.0 does not pass"),
        (
            "self.log(1)",
            "log(self, *, b)",
            "does not accept 1 argument, which Base of p 1.0 passes",
        ),
        ("self.log(1, b=2)", "log(self, a, b)", ""),
        ("self.log(1, 2)", "log(self, a, *rest)", ""),
        ("self.log(*x)", "log(self)", ""),
        ("self.log(**x)", "log(self, a)", ""),
        ("self.log(1)", "log(self, a, b=2)", ""),
    ],
)
def test_override_is_compared_with_positional_arguments_of_the_base_class(
    audit: Findings, call: str, method: str, message: str
) -> None:
    base = f"class Base:\n    def __init__(self, x):\n        {call}\n"
    script = f"from p import Base\nclass Mine(Base):\n    def {method}: ...\n"
    findings = audit({"a.py": script}, {"p==1.0": {"p/__init__.py": base}})
    assert [each.message.partition(" to it")[0] for each in findings] == (
        [f"Mine.log {message}"] if message else []
    )


def test_names_and_arguments_that_a_file_replaces_are_warnings(audit: Findings) -> None:
    packages: dict[str, audited.Files] = {
        "trl==1.15.0": {"trl/__init__.py": "class SFTConfig:\n    def __init__(self): ...\n"},
        "unsloth==2026.10": {"unsloth/__init__.py": ""},
        "numpy==2.2.6": {"numpy/__init__.py": ""},
    }
    use = "from trl import SFTConfig\nimport numpy as np\n"
    use += "SFTConfig(max_seq_length=1)\nnp.float_(1)\n"
    guard = "import numpy as np\ntry:\n    np.float_\nexcept AttributeError:\n    np.float_ = 1\n"
    scripts = {"a.py": use, "b.py": f"import unsloth\n{guard}{use}"}
    found = audit(scripts, packages)
    assert [(each.file[-4:], each.code, each.severity) for each in found] == [
        ("a.py", "IMG102", Severity.ERROR),
        ("a.py", "IMG101", Severity.ERROR),
        ("b.py", "IMG102", Severity.WARNING),
        ("b.py", "IMG101", Severity.WARNING),
    ]
