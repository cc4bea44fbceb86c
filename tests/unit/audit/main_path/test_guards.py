"""Tests the evaluation of guards in package sets."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NamedTuple

from imgbuild.audit.main_path.guards import (
    ATTRIBUTE,
    IMPORT,
    MISSING_ERRORS,
    GuardState,
    evaluate_guard,
    judge_guards,
)
from imgbuild.audit.source.facts import Guard, ModuleFacts
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules

MODULES = SourceModules(
    {
        "vllm 0.10.2": {"vllm/__init__.py": "", "vllm/envs.py": ""},
        "flash-attn 2.8.3+cu12": {"flash_attn/__init__.py": ""},
    }
)
RUNS, SKIPPED, UNKNOWN, HANDLED = (
    GuardState.RUNS,
    GuardState.SKIPPED,
    GuardState.UNKNOWN,
    GuardState.HANDLED,
)


@each_row(
    ("guard", "state"),
    [
        (Guard("version", "vllm", ">=0.10.1,<0.12"), RUNS),
        (Guard("version", "vllm", "<0.10"), SKIPPED),
        (Guard("version", "vllm", "<0.10.2.dev0"), SKIPPED),
        (Guard("version", "flash_attn", ">=2.8.3"), RUNS),
        (Guard("version", "torch", ">=2"), UNKNOWN),
        (Guard("version", "vllm", "what?"), UNKNOWN),
        (Guard("present", "vllm"), RUNS),
        (Guard("present", "vllm", ">=0.11"), SKIPPED),
        (Guard("present", "vllm.envs"), RUNS),
        (Guard("present", "vllm.worker"), SKIPPED),
        (Guard("present", "flash-attn"), RUNS),
        (Guard("present", "json"), RUNS),
        (Guard("present", "apex"), SKIPPED),
        (Guard("absent", "apex"), RUNS),
        (Guard("absent", "vllm"), SKIPPED),
        (Guard("absent", "vllm", ">=0.11"), RUNS),
        (Guard("python", "", ">=3.11"), RUNS),
        (Guard("python", "", "<3.9"), SKIPPED),
        (Guard("platform", "linux"), RUNS),
        (Guard("platform", "win32"), SKIPPED),
        (Guard("platform", "win32", "!"), RUNS),
        (Guard("platform", "xpu"), SKIPPED),
        (Guard("platform", "linux", "!"), SKIPPED),
        (Guard("platform", "aarch64"), SKIPPED),
        (Guard("platform", "amd64"), RUNS),
        (Guard("platform", "rocm"), UNKNOWN),
        (Guard("typing"), SKIPPED),
        (Guard("handled", "ImportError"), HANDLED),
        (Guard("unknown", "args.use_vllm"), UNKNOWN),
    ],
    ids=str,
)
def test_guards_are_evaluated_in_a_package_set(guard, state):
    assert evaluate_guard(MODULES, guard) is state


def test_guard_on_a_package_that_a_partial_set_lacks_is_unknown():
    package_set = SourceModules({"trl 1.0": {"trl/__init__.py": ""}}, partial=True)
    assert evaluate_guard(package_set, Guard("present", "vllm")) is UNKNOWN
    assert evaluate_guard(package_set, Guard("absent", "vllm")) is UNKNOWN
    assert evaluate_guard(package_set, Guard("present", "trl")) is RUNS


def test_code_runs_only_if_all_guards_hold():
    course = judge_guards(MODULES, (Guard("present", "vllm"), Guard("python", "", "<3.9")))
    assert not course.runs
    assert judge_guards(MODULES, ()).certain
    assert not judge_guards(MODULES, (Guard("unknown", "x"), Guard("present", "vllm"))).certain


def test_exception_handlers_catch_listed_exceptions_and_subclasses():
    assert judge_guards(MODULES, (Guard("handled", "ImportError"),)).catches_error(*IMPORT)
    assert not judge_guards(MODULES, (Guard("handled", "ImportError"),)).catches_error(*ATTRIBUTE)
    assert judge_guards(MODULES, (Guard("handled", "Exception"),)).catches_error(*ATTRIBUTE)
    assert judge_guards(MODULES, (Guard("handled", ""),)).catches_error(*ATTRIBUTE)
    missing_only = judge_guards(MODULES, (Guard("handled", "ModuleNotFoundError"),))
    assert missing_only.catches_error(*MISSING_ERRORS)
    assert not missing_only.catches_error(*IMPORT)
    both = judge_guards(MODULES, (Guard("handled", "ImportError, AttributeError"),))
    assert both.catches_error(*IMPORT)
    assert both.catches_error(*ATTRIBUTE)


def test_hasattr_guard_applies_only_to_the_tested_attribute():
    course = judge_guards(MODULES, (Guard("handled", "AttributeError", "vllm.envs.VLLM_USE_V1"),))
    assert course.asked == {"vllm.envs.VLLM_USE_V1"}
    assert not course.catches_error(*ATTRIBUTE)


# -- Python's own version

COMPARISONS = [
    f"{left} {sign} {right}"
    for sign in ("<", "<=", ">", ">=", "==", "!=")
    for left, right in (
        ("sys.version_info", "(3,)"),
        ("sys.version_info", "(3, 10)"),
        ("sys.version_info", "(3, 11)"),
        ("sys.version_info", "(3, 11, 0)"),
        ("sys.version_info", "(3, 11, 2)"),
        ("sys.version_info", "(3, 11, 4)"),
        ("sys.version_info", "(3, 11, 2, 'final')"),
        ("sys.version_info", "(3, 11, 2, 'final', 0)"),
        ("sys.version_info", "(3, 12, 0, 'beta')"),
        ("(3, 11)", "sys.version_info"),
        ("sys.version_info[:1]", "(3,)"),
        ("sys.version_info[:2]", "(3, 11)"),
        ("sys.version_info[:2]", "(3, 12)"),
        ("sys.version_info[:2]", "(3,)"),
        ("sys.version_info[:3]", "(3, 11)"),
        ("sys.version_info[:3]", "(3, 11, 1)"),
        ("sys.version_info[0:2]", "(3, 9)"),
        ("tuple(sys.version_info[:2])", "(3, 11)"),
        ("sys.version_info[0]", "2"),
        ("sys.version_info[0]", "3"),
        ("sys.version_info[1]", "11"),
        ("sys.version_info[2]", "0"),
        ("sys.version_info[2]", "2"),
        ("sys.version_info.major", "3"),
        ("sys.version_info.minor", "9"),
        ("sys.version_info.micro", "4"),
        ("3", "sys.version_info.major"),
    )
]


class Version(NamedTuple):
    """A substitute for sys.version_info with arbitrary values."""

    major: int
    minor: int
    micro: int
    releaselevel: str = "final"
    serial: int = 0


def guard_verdict(test: str, python: str) -> bool | None:
    source = f"import sys\nif {test}:\n    import yes\nelse:\n    import no\n"
    facts = read_module(source.encode(), "m", "m.py", package=False)
    package_set = SourceModules({"m 1": {"m.py": source}}, python=python)
    yes, no = (judge_guards(package_set, line.guards) for line in facts.imports[1:])
    assert yes.certain == no.certain
    assert not yes.certain or yes.runs != no.runs
    return yes.runs if yes.certain else None


def answer(test: str, micro: int) -> bool:
    return bool(eval(test, {"sys": SimpleNamespace(version_info=Version(3, 11, micro))}))


@each_row("test", COMPARISONS)
def test_python_version_comparisons_match_cpython(test):
    assert guard_verdict(test, "3.11.2") is answer(test, 2)
    every = {answer(test, micro) for micro in range(20)}
    assert guard_verdict(test, "3.11") is (every.pop() if len(every) == 1 else None)


def test_version_comparisons_match_the_running_python():
    here = ".".join(map(str, sys.version_info[:3]))
    for test in COMPARISONS:
        assert guard_verdict(test, here) is eval(test, {"sys": sys})


# -- parameters that a signature has

CALLEES = SourceModules(
    {
        "vllm 0.10.2": {
            "vllm/__init__.py": """
                import functools
                from dataclasses import dataclass
                from vllm._C import compiled
                class LLM:
                    def __init__(self, model, *, seed=0): ...
                    def wake_up(self, tags=None): ...
                    def sleep(self, **kwargs):
                        self.wake_up(**kwargs)
                @dataclass
                class Args:
                    model: str = ""
                    @property
                    def size(self): ...
                @functools.wraps(LLM)
                def make(*args, **kwargs): ...
            """,
            "vllm/_C.so": "",
        },
        "trl 1.0": {
            "trl/__init__.py": """
                import vllm
                from vllm import Args, LLM
                def f():
                    from vllm import LLM as Local
            """
        },
    }
)


@each_row(
    ("callee", "name", "state"),
    [
        (":LLM.wake_up", "tags", RUNS),
        (":LLM.wake_up", "!tags", SKIPPED),
        (":LLM.wake_up", "level", SKIPPED),
        (":LLM.wake_up", "!level", RUNS),
        (":vllm.LLM", "seed", RUNS),
        (":LLM.__init__", "seed", RUNS),
        (":LLM", "dtype", SKIPPED),
        (":LLM.sleep", "tags", SKIPPED),
        ("f:Local.wake_up", "tags", RUNS),
        (":Local.wake_up", "tags", UNKNOWN),
        (":Args", "model", RUNS),
        (":Args.__dataclass_fields__", "model", RUNS),
        (":Args.__dataclass_fields__", "seed", SKIPPED),
        (":vllm.make", "seed", UNKNOWN),
        (":vllm.compiled", "seed", UNKNOWN),
        (":self.engine.wake_up", "tags", UNKNOWN),
        (":?", "tags", UNKNOWN),
    ],
)
def test_parameter_guard_is_true_if_the_callable_has_the_parameter(callee, name, state):
    assert evaluate_guard(CALLEES, Guard("takes", f"trl:{callee}", name)) is state


def test_parameter_guard_on_a_missing_module_is_unknown():
    assert evaluate_guard(CALLEES, Guard("takes", "peft::LLM", "seed")) is UNKNOWN


FOUND = "    return find_spec('nvtx') is not None\n"
TRIED = """
    try:
        import nvtx
        return True
    except ImportError:
        return False
"""
EARLY = """
    if find_spec('nvtx') is None:
        return False
    return True
"""
ASKED = "    if not flag:\n        return False\n" + FOUND


@each_row(
    ("body", "present", "absent"),
    [
        (FOUND, RUNS, SKIPPED),
        (TRIED, RUNS, SKIPPED),
        (EARLY, RUNS, SKIPPED),
        (ASKED, GuardState.DATA, SKIPPED),
        ("    return flag > 3\n", UNKNOWN, UNKNOWN),
        ("    return flag and find_spec('nvtx') is not None\n", UNKNOWN, SKIPPED),
        ("    return is_nvtx_available()\n", UNKNOWN, UNKNOWN),
    ],
)
def test_result_of_a_function_in_another_module_is_evaluated(body: str, present, absent) -> None:
    defined = f"from importlib.util import find_spec\ndef is_nvtx_available(flag=0):\n{body}"
    used = (
        "import sys\nfrom lib.tools import is_nvtx_available\n"
        "if is_nvtx_available(len(sys.argv)):\n    import lib.fast\n"
    )
    packages = {"lib 1": {"lib/__init__.py": used, "lib/tools.py": defined}}
    for more, state in (({"nvtx 1": {"nvtx.py": ""}}, present), ({}, absent)):
        modules = SourceModules({**packages, **more})
        facts = modules.module("lib")
        assert isinstance(facts, ModuleFacts)
        (guard,) = next(line.guards for line in facts.imports if line.module == "lib.fast")
        assert guard == Guard("result", "lib::is_nvtx_available(...)")
        assert evaluate_guard(modules, guard) is state
        opposite = {RUNS: SKIPPED, SKIPPED: RUNS}.get(state)
        if opposite is not None and present is RUNS:
            assert evaluate_guard(modules, Guard("result", guard.subject, "!")) is opposite


TOOLS = """
import sys
from importlib.metadata import version
from importlib.util import find_spec
from packaging.version import Version, parse
HAS_NVTX = find_spec("nvtx") is not None
TORCH_VERSION = parse(version("torch"))
NEW_VERSION = TORCH_VERSION >= Version("2.6")
IS_WASM = sys.platform == "emscripten"
"""


@each_row(
    ("condition", "state"),
    [
        ("HAS_NVTX", RUNS),
        ("not tools.HAS_NVTX", SKIPPED),
        ("NEW_VERSION", SKIPPED),
        ("tools.NEW_VERSION", SKIPPED),
        ("IS_WASM", SKIPPED),
        ("not tools.IS_WASM", RUNS),
        ("TORCH_VERSION >= Version('2.4')", RUNS),
        ("tools.TORCH_VERSION > Version('2.5')", SKIPPED),
        ("is_nvtx_available()", UNKNOWN),
        ("CHANGED_VERSION", UNKNOWN),
    ],
)
def test_name_is_evaluated_in_the_module_that_binds_the_name(condition: str, state) -> None:
    used = (
        "import lib.tools as tools\nfrom packaging.version import Version\n"
        "from lib.tools import HAS_NVTX, TORCH_VERSION, NEW_VERSION, IS_WASM\n"
        "CHANGED_VERSION = NEW_VERSION\nCHANGED_VERSION = unknown(CHANGED_VERSION)\n"
        f"if {condition}:\n    import lib.fast\n"
    )
    modules = SourceModules(
        {
            "lib 1": {"lib/__init__.py": used, "lib/tools.py": TOOLS},
            "nvtx 1": {"nvtx.py": ""},
            "torch 2.4": {"torch/__init__.py": ""},
            "packaging 24": {"packaging/__init__.py": "", "packaging/version.py": ""},
        }
    )
    facts = modules.module("lib")
    assert isinstance(facts, ModuleFacts)
    (guard,) = next(line.guards for line in facts.imports if line.module == "lib.fast")
    assert evaluate_guard(modules, guard) is state


def test_guard_that_compares_with_an_unknown_name_is_unknown() -> None:
    source = "def flag():\n    return True\nif flag() == unknown:\n    import lib.fast\n"
    modules = SourceModules({"lib 1": {"lib/__init__.py": source}})
    assert evaluate_guard(modules, Guard("result", "lib::flag()")) is RUNS
    assert evaluate_guard(modules, Guard("result", "lib::flag() == unknown")) is UNKNOWN
