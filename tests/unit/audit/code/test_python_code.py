"""Tests the problems that the audit of a user's Python code reports, and their locations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.report import Severity
from tests.support import audited
from tests.support.audited_code import Findings, audit_files, finding_places

SCRIPT = """\
from trl import SFTTrainer, SFTConfig, load
args = SFTConfig("out", evaluation_strategy="no")
if __name__ == "__main__":
    trainer = SFTTrainer("model", tokenizer=None,
                         args=args)
    trainer.train_it()
    trainer.train(resume=True, start=1)
    load()
"""


def test_failing_calls_are_reported_with_column_and_replacement_name(audit: Findings) -> None:
    findings = audit({"train.py": SCRIPT})
    assert finding_places(findings) == [
        "IMG102 2:25 eval_strategy",
        "IMG102 4:35 processing_class",
        "IMG104 6:5 train",
        "IMG102 7:32",
        "IMG103 8:5",
    ]
    assert {each.severity for each in findings} == {Severity.ERROR}
    assert findings[0].where.endswith("train.py:2:25")


def test_missing_imports_are_errors_at_top_and_warnings_elsewhere(
    audit: Findings,
) -> None:
    findings = audit(
        {
            "train.py": "import deepspeed\nfrom trl import Gone\n"
            "if __name__ == '__main__':\n    import apex\n"
            "args = None\nif args.wandb:\n    import wandb\n"
            "def main():\n    import mlflow\n"
        }
    )
    assert [(each.code, each.line, each.severity) for each in findings] == [
        ("IMG101", 1, Severity.ERROR),
        ("IMG101", 2, Severity.ERROR),
        ("IMG101", 4, Severity.ERROR),
        ("IMG101", 7, Severity.WARNING),
        ("IMG101", 9, Severity.WARNING),
    ]


@pytest.mark.parametrize(
    "script",
    [
        "try:\n    import deepspeed\nexcept ImportError:\n    deepspeed = None\n",
        "from base import is_flash_available\nif is_flash_available():\n    import flash_attn\n",
        "import trl\nif hasattr(trl, 'Gone'):\n    trl.Gone()\n",
        (
            "import inspect\nfrom trl import load\n"
            "if 'token' in inspect.signature(load).parameters:\n    load('x', token=1)\n"
        ),
        (
            "from importlib.metadata import version\nfrom packaging.version import Version\n"
            "from trl import load\n"
            "if Version(version('trl')) >= Version('1.0'):\n    load('x', token=1)\n"
        ),
        "from trl import load\nsettings = {}\nload('x', **settings)\n",
        (
            "def main(new):\n    if new:\n        from base import Trainer as make\n"
            "        make('x', token=1)\n    else:\n        from trl import load as make\n"
        ),
    ],
)
def test_code_guarded_by_a_version_check_is_not_reported(audit: Findings, script: str) -> None:
    assert audit({"train.py": script}) == []


@pytest.mark.parametrize(
    "script",
    [
        "def main():\n    if has_new():\n        from trl import Gone\n",
        "def main():\n    if not has_new():\n        return\n    from trl import Gone\n",
    ],
)
def test_finding_in_code_with_an_unknown_condition_is_a_warning(
    audit: Findings, script: str
) -> None:
    asks = "import pathlib\ndef has_new():\n    return 'Gone' in pathlib.Path('x').read_text()\n"
    findings = audit({"train.py": asks + script})
    assert [(each.code, each.severity) for each in findings] == [("IMG101", Severity.WARNING)]


def test_modules_of_the_user_are_not_reported_as_missing_packages(audit: Findings) -> None:
    assert (
        audit(
            {
                "project/pyproject.toml": "",
                "project/src/mine/__init__.py": "",
                "project/src/mine/data.py": "from mine import tools\nfrom . import other\n",
                "project/scripts/train.py": "import helpers\nimport mine.data\n",
                "project/scripts/helpers.py": "import scripts.train\n",
            }
        )
        == []
    )


def test_relative_import_in_a_folder_without_init_is_not_an_import_of_a_package(
    audit: Findings,
) -> None:
    files = {
        "engine/__init__.py": "",
        "engine/trl/__init__.py": "",
        "engine/trl/tuning.py": "Tuner = 1\n",
        "engine/layers/moe.py": "from ..trl.tuning import Tuner\nfrom ..trl import tuning\n",
    }
    assert audit(files, {"trl": {"trl/__init__.py": "", "trl/data.py": ""}}) == []


def test_missing_module_is_a_warning_if_the_code_extends_sys_path(audit: Findings) -> None:
    findings = audit({"train.py": "import sys\nsys.path.insert(0, '/opt')\nimport ours\n"})
    assert [(each.code, each.severity) for each in findings] == [("IMG101", Severity.WARNING)]


def test_script_named_like_a_package_hides_the_package_only_in_its_folder(
    audit: Findings,
) -> None:
    findings = audit(
        {
            "a/trl.py": "X = 1\n",
            "a/run.py": "from trl import X\n",
            "b/run.py": "from trl import X\n",
        }
    )
    assert [each.where.rpartition("code/")[2] for each in findings] == ["b/run.py:1:17"]


def test_checkout_next_to_script_does_not_hide_installed_package(audit: Findings) -> None:
    files = {"run.py": "from trl import Gone\n", "trl/setup.py": "", "trl/README": ""}
    assert finding_places(audit(files)) == ["IMG101 1:17"]


def test_magic_commands_in_notebook_cells_are_skipped(audit: Findings) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["from trl import Gone\n"]},
        {"cell_type": "code", "source": ["%pip install trl\n", "!ls\n", "import trl\n"]},
        {"cell_type": "code", "source": ["# a comment\n", "trl.load('x', token=1)\n"]},
    ]
    findings = audit({"train.ipynb": json.dumps({"cells": cells})})
    assert finding_places(findings) == ["IMG102 2:15"]
    assert findings[0].where.endswith("train.ipynb:cell 3:2:15")


GONE = "from trl import Gone\n"


@pytest.mark.parametrize(
    "cell",
    [
        "%%time\nfor i in range(2):\n    !echo {i}\n" + GONE,
        "%%capture out\n" + GONE,
        "files = !ls\na, b = %sx ls\n" + GONE,
        "!pip install \\\n  trl \\\n  vllm\n" + GONE,
        "trl?\n?trl\nprint??\n" + GONE,
        "if True: !pip install trl\nelse:\n    %env A=1\n" + GONE,
        "x = (7\n  % 2)  # is it odd?\ny = (1,  # what?\n  2)\n" + GONE,
        'text = """\n%d of 5\n!\n"""\nawait later()\n' + GONE,
    ],
)
def test_cell_with_ipython_syntax_is_read(audit: Findings, cell: str) -> None:
    findings = audit({"a.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": cell}]})})
    assert finding_places(findings) == [f"IMG101 {cell.count(chr(10))}:17"]


@pytest.mark.parametrize(
    "cell",
    [
        7,
        {"cell_type": "code"},
        {"cell_type": "code", "source": 5},
        {"cell_type": "code", "source": [1]},
        {"cell_type": "code", "source": "not python (("},
        {"cell_type": "code", "source": "%%writefile a.py\n((\n"},
        {"cell_type": "code", "source": "%%bash\nls"},
    ],
)
def test_invalid_cell_does_not_hide_other_cells(audit: Findings, cell: object) -> None:
    cells = [cell, {"cell_type": "code", "source": [GONE]}]
    assert finding_places(audit({"a.ipynb": json.dumps({"cells": cells})})) == ["IMG101 1:17"]


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, '{"cells": {"a": 1}}', "9" * 10_000, "[]", "{}"]
)
def test_damaged_notebook_is_a_warning(audit: Findings, text: str) -> None:
    (finding,) = audit({"a.ipynb": text})
    assert (finding.code, finding.severity) == ("IMG107", Severity.WARNING)
    assert finding.message.startswith("cannot be parsed: not a notebook: ")


def test_tests_and_tools_can_import_packages_that_are_not_in_the_image(audit: Findings) -> None:
    tests = "import pytest\nimport trl\ntrl.gone()\n"
    assert finding_places(audit({"tests/test_train.py": tests})) == ["IMG101 3:1"]


def test_syntax_error_is_a_warning(audit: Findings) -> None:
    (finding,) = audit({"train.py": "import trl\n\ndef (:\n"})
    assert (finding.code, finding.severity, finding.line) == ("IMG107", Severity.WARNING, 3)
    assert finding.message == "cannot be parsed: invalid syntax"


@pytest.mark.parametrize("source", ["x = " + "-" * 100_000 + "1\n", "x\0\n", "# coding: nope\n"])
def test_python_file_that_cannot_be_parsed_is_a_warning(audit: Findings, source: str) -> None:
    (finding,) = audit({"train.py": source})
    assert (finding.code, finding.line) == ("IMG107", 1)
    assert len(finding.message) > len("cannot be parsed: ?")


def test_override_without_a_parameter_that_the_base_class_passes_is_an_error(
    audit: Findings,
) -> None:
    script = (
        "from trl import SFTTrainer\n\n\nclass Mine(SFTTrainer):\n"
        "    def compute_loss(self, model, inputs):\n        return 0\n\n\n"
        "class Right(SFTTrainer):\n"
        "    def compute_loss(self, model, inputs, **kwargs):\n        return 0\n\n\n"
        "class Own(SFTTrainer):\n    def compute_loss(self, model, inputs):\n        return 0\n\n"
        "    def step(self):\n        return self.compute_loss(None, None)\n"
    )
    findings = audit({"train.py": script})
    assert [(each.code, each.line, each.severity) for each in findings] == [
        ("IMG109", 5, Severity.ERROR),
        ("IMG109", 15, Severity.WARNING),
    ]
    assert "num_items_in_batch" in findings[0].message


def test_noqa_comment_suppresses_named_findings(audit: Findings) -> None:
    script = (
        "import deepspeed  # noqa: F401, IMG101\nimport apex  # noqa\nimport xyz  # noqa: IMG102\n"
    )
    assert finding_places(audit({"train.py": script})) == ["IMG101 2:1", "IMG101 3:1"]


def test_files_with_the_same_name_are_all_checked(audit: Findings) -> None:
    findings = audit(
        {
            "sft/train.py": "from trl import Gone\n",
            "dpo/train.py": "from trl import SFTTrainer\n",
            "grpo/train.py": "import os\nfrom trl import Lost\n",
        }
    )
    assert [(each.file.rpartition("/")[0][-4:], each.line) for each in findings] == [
        ("grpo", 2),
        ("/sft", 1),
    ]


def test_import_in_a_class_body_defines_an_attribute(
    audit: Findings,
) -> None:
    code = "from made import Trainer\nt = Trainer()\nt.log_metrics('eval')\nt.log_nothing()\n"
    packages = {
        "made==1.0": {
            "made/__init__.py": "class Trainer:\n    from .more import log_metrics\n",
            "made/more.py": "def log_metrics(self, split):\n    return split\n",
        }
    }
    assert finding_places(audit({"train.py": code}, packages)) == ["IMG104 4:1"]


def test_names_that_a_package_adds_on_first_use_are_not_reported_as_missing(
    audit: Findings,
) -> None:
    made = (
        "from .imports import lazy_import\nlazy_import(globals(), aliases={'connect': '.client'})\n"
    )
    packages = {"sockets==1.0": {"sockets/__init__.py": made, "sockets/imports.py": ""}}
    assert finding_places(audit({"a.py": "import sockets\nsockets.connect('x')\n"}, packages)) == []


def test_call_of_a_method_that_a_subclass_overrides_is_not_checked(
    audit: Findings,
) -> None:
    made = (
        "class Engine:\n    def send(self):\n        pass\n    def stop(self):\n        pass\n\n\n"
        "class Sparse(Engine):\n    def send(self, patches):\n        pass\n\n\n"
        "def make() -> Engine:\n    return Sparse()\n"
    )
    code = "from made import make\nengine = make()\nengine.send([])\nengine.stop(1)\n"
    findings = audit({"a.py": code}, {"made==1.0": {"made/__init__.py": made}})
    assert finding_places(findings) == ["IMG103 4:1"]


EXPIRED = "__expired_attributes__ = {'float_': 'Use `np.float64` instead.', 'asfarray': 'No.'}\n"
NUMPY = """
from ._expired import __expired_attributes__
float64 = float

def __getattr__(attr):
    if attr == "testing":
        import numpy.testing as testing
        return testing
    if attr in __expired_attributes__:
        raise AttributeError(f"removed: {__expired_attributes__[attr]}")
    raise AttributeError(attr)
"""


def test_names_that_a_lookup_table_of_the_package_rejects_are_explained(tmp_path: Path) -> None:
    packages: dict[str, audited.Files] = {
        "numpy==2.2": {"numpy/__init__.py": NUMPY, "numpy/_expired.py": EXPIRED}
    }
    source = """
import numpy as np
from numpy import asfarray
x = np.float_(3), np.float64(3), np.testing
try:
    y = np.float_
except AttributeError:
    y = np.float64
if hasattr(np, "float_"):
    z = np.float_
"""
    found = audit_files(tmp_path, {"a.py": source}, packages)
    assert finding_places(found) == ["IMG101 3:19", "IMG101 4:5 float64"]
    assert found[1].message == "uses numpy.float_, which numpy 2.2 does not have"
    assert found[1].remedy == "Use `np.float64` instead."


RAY = {
    "ray/__init__.py": "from ray.worker import *\n",
    "ray/notes.py": """
from typing import overload, cast
import functools


@overload
def PublicAPI(obj):
    ...


def PublicAPI(*args, **kwargs):
    if len(args) == 1 and not kwargs and callable(args[0]):
        return PublicAPI(stability="stable")(args[0])

    def wrap(obj):
        obj._stable = kwargs
        return obj

    return wrap


def hook(func=None, *, local_only=()):
    def decorator(func):
        @functools.wraps(func)
        def wrapper(*args, **kwargs):
            if converts():
                kwargs = {k: v for k, v in kwargs.items() if k not in local_only}
                return getattr(client, func.__name__)(*args, **kwargs)
            return func(*args, **kwargs)

        return cast("F", wrapper)

    if func is not None:
        return decorator(func)
    return decorator


def method(func):
    @functools.wraps(func)
    async def wrapper(self, *args, **kwargs):
        return await func(self, *args, **kwargs)

    return wrapper


def adds(func):
    def wrapper(*args, cluster=None, **kwargs):
        return func(*args, **kwargs)

    return wrapper


def drops(func):
    def wrapper(*args, **kwargs):
        kwargs.pop("old", None)
        return func(*args, **kwargs)

    return wrapper


def replaces(func):
    return Remote(func)


def renames(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        kwargs = without_old(func.__name__, kwargs=kwargs)
        return func(*args, **kwargs)

    return wrapper


def without_old(name, kwargs):
    kept = kwargs.copy()
    if kept.pop("old_proxy", None) is not None:
        warn(name)
    kept["proxy"] = None
    return kept


def filters(func):
    def wrapper(*args, **kwargs):
        kwargs = some(kwargs)
        return func(*args, **kwargs)

    return wrapper


def some(kwargs):
    kept = kwargs.copy()
    for name in kwargs:
        kept.pop(name)
    return kept
""",
    "ray/worker.py": """
from ray.notes import PublicAPI, adds, drops, filters, hook, method, renames, replaces


@PublicAPI
@hook
def init(address=None, *, num_cpus=None, **kwargs):
    node = kwargs.pop("_node", None)
    if address == "client":
        passed = {}
        passed.update(kwargs)
        return Client(**passed)
    if kwargs.get("storage"):
        raise RuntimeError("storage")
    if kwargs:
        raise RuntimeError("unknown: " + ", ".join(kwargs))


@PublicAPI(stability="beta")
@hook(local_only=("a",))
def get(refs, timeout=None):
    pass


@adds
def put(value):
    pass


@drops
def wait(refs):
    pass


@replaces
def kill(actor):
    pass


@renames
def download(path, proxy=None):
    pass


@filters
def upload(path):
    pass


@method
def shutdown(self, now=False, **kwargs):
    for name in kwargs:
        kwargs.pop(name)
    if kwargs:
        raise TypeError
""",
}


def test_keywords_of_decorated_functions_are_checked(tmp_path: Path) -> None:
    source = """
import ray
ray.init(num_cpus=1, _node="a", storage="b", num_cpu=1)
ray.get([], timeout=1)
ray.get([], time=1)
ray.put(1, cluster="a", other=1)
ray.wait([], old=1, other=1)
ray.kill(None, other=1)
ray.shutdown(None, other=1)
ray.download("a", old_proxy=1, proxi=1)
ray.upload("a", other=1)
"""
    found = audit_files(tmp_path, {"a.py": source}, {"ray==2.9": RAY})
    assert finding_places(found) == [
        "IMG102 3:46 num_cpus",
        "IMG102 5:13 timeout",
        "IMG102 10:32 proxy",
    ]


LAZY = """
import importlib
import other
names = ["float96", "float128"]
__all__ = ["core"]

for each in ["float16", "float32"]:
    globals()[each] = getattr(other, each)

def __getattr__(attr):
    value = getattr(other, attr, None)
    if value is not None:
        return value
    if attr in names or attr.startswith("lazy_"):
        return importlib.import_module(attr)
    raise AttributeError(f"no {attr}")
"""


def test_getattr_with_a_constant_name_is_checked(tmp_path: Path) -> None:
    packages: dict[str, audited.Files] = {
        "lazy==2.2": {"lazy/__init__.py": LAZY, "other.py": "served = 1\n"},
        "open==1": {
            "open/__init__.py": "import other\nglobals().update(other.TABLE)\n"
            "def __getattr__(name):\n    raise AttributeError(name)\n"
        },
    }
    source = """
import lazy
import open as opened
from lazy import float96, gone
x = lazy.served, lazy.float16, lazy.float128, lazy.lazy_a
y = lazy.float64
z = opened.anything
"""
    found = audit_files(tmp_path, {"a.py": source}, packages)
    assert finding_places(found) == ["IMG101 4:27", "IMG101 6:5"]


def test_package_names_imported_by_a_user_module_are_checked(audit: Findings) -> None:
    found = audit(
        {
            "mine/__init__.py": "from trl import SFTTrainer, load\nfrom .own import other\n",
            "mine/own.py": "def other():\n    pass\n",
            "train.py": "import mine\nfrom mine import load\nload('x', token=1)\nmine.gone()\n"
            "mine.SFTTrainer('m', tokenizer=None)\nmine.other(x=1)\n",
        }
    )
    assert finding_places(found) == ["IMG102 3:11", "IMG102 5:22 processing_class"]


ENUMERATIONS = """
from enum import Enum, IntFlag
from functools import partial


class Strategy(str, Enum):
    TENSOR = "tensor"
    GROUP = "group"

    def short(self):
        return self.value[0]


class Bits(IntFlag):
    ONE = 1


class Open(Enum):
    locals()["NAME"] = 1

    def __getattr__(self, name):
        return name
"""


def test_missing_enumeration_members_are_reported(tmp_path: Path) -> None:
    source = """
from quant import Bits, Open, Strategy
x = Strategy.GROUP.value, Strategy.TENSOR.short(), Strategy.__members__, Strategy.GROUP.upper()
y = Strategy.TENSOR_GROUP
z = Bits.ONE, Bits.TWO, Open.NAME
"""
    found = audit_files(tmp_path, {"a.py": source}, {"quant==1": {"quant.py": ENUMERATIONS}})
    assert finding_places(found) == ["IMG104 4:5 TENSOR", "IMG104 5:15"]
