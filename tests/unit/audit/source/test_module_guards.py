"""Tests reading the conditions on installed packages as guards."""

from __future__ import annotations

from textwrap import dedent

import pytest

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row

HEAD = """
import importlib.metadata
import sys
import torch
import transformers
import vllm
from packaging import version
from packaging.version import Version
from vllm import __version__ as vllm_is
MINIMUM = "0.9"
_VLLM = version.parse(vllm.__version__)
vllm_version = importlib.metadata.version("vllm")
_trl_available = is_package_available("trl")
needs = Version("4.1") <= Version(transformers.__version__) < Version("4.5")
"""


def guards_of(source: str) -> dict[str, tuple[Guard, ...]]:
    facts = read_module((HEAD + dedent(source)).encode(), "m", "m.py", package=False)
    return {import_fact.module: import_fact.guards for import_fact in facts.imports[7:]}


def branches(test: str) -> tuple[tuple[Guard, ...], tuple[Guard, ...]]:
    guards = guards_of(f"if {test}:\n    import yes\nelse:\n    import no\n")
    return guards["yes"], guards["no"]


def version(subject: str, spec: str) -> Guard:
    return Guard("version", subject, spec)


@each_row(
    ("test", "yes", "no"),
    [
        ("Version(vllm.__version__) < Version('0.11')", "<0.11", ">=0.11"),
        ("version.parse(vllm.__version__) >= version.parse('0.11')", ">=0.11", "<0.11"),
        ("version.parse(importlib.metadata.version('vllm')) > version.parse('1')", ">1", "<=1"),
        ("Version('0.11') > Version(vllm.__version__)", "<0.11", ">=0.11"),
        ("vllm.__version__ == '0.8'", "==0.8", "!=0.8"),
        ("Version(vllm.__version__).release >= (0, 11)", ">=0.11", "<0.11"),
        ("Version(Version(vllm.__version__).base_version) < Version(MINIMUM)", "<0.9", ">=0.9"),
        ("_VLLM < version.parse('0.7')", "<0.7", ">=0.7"),
        ("Version(vllm_version) < Version('0.7')", "<0.7", ">=0.7"),
        ("Version(vllm_is.split('+')[0]) < Version('0.7')", "<0.7", ">=0.7"),
        ("not Version(vllm.__version__) < Version('0.11')", ">=0.11", "<0.11"),
        ("compare_versions('vllm', '<', '0.10')", "<0.10", ">=0.10"),
        ("compare_versions(vllm_version, '<', '0.10')", "<0.10", ">=0.10"),
    ],
)
def test_version_comparisons_become_guards(test, yes, no):
    assert branches(test) == ((version("vllm", yes),), (version("vllm", no),))


def test_complement_of_a_version_range_is_unknown():
    yes, no = branches("needs")
    assert yes == (version("transformers", ">=4.1,<4.5"),)
    assert [guard.kind for guard in no] == ["unknown"]


@each_row(
    ("test", "subject", "spec"),
    [
        ("_trl_available", "trl", ""),
        ("_is_package_available('peft')[0]", "peft", ""),
        ("importlib.util.find_spec('flash_attn') is not None", "flash_attn", ""),
        ("find_spec('ray')", "ray", ""),
    ],
)
def test_availability_tests_become_guards(test, subject, spec):
    assert branches(test) == (
        (Guard("present", subject, spec),),
        (Guard("absent", subject, spec),),
    )


@each_row(
    ("test", "yes", "no"),
    [
        ("sys.version_info >= (3, 11)", ("python", "", ">=3.11"), ("python", "", "<3.11")),
        ("sys.version_info[:2] < (3, 9)", ("python", "[:2]", "<3.9"), ("python", "[:2]", ">=3.9")),
        ("sys.version_info[0:2] == (3, 9)", ("python", "[:2]", "==3.9"), None),
        ("tuple(sys.version_info[:2]) > (3, 9)", ("python", "[:2]", ">3.9"), None),
        ("(3, 9) <= sys.version_info", ("python", "", ">=3.9"), ("python", "", "<3.9")),
        ("sys.version_info[0] == 3", ("python", "[0]", "==3"), ("python", "[0]", "!=3")),
        ("sys.version_info.major > 2", ("python", "[0]", ">2"), ("python", "[0]", "<=2")),
        ("11 <= version_info.minor", ("python", "[1]", ">=11"), ("python", "[1]", "<11")),
        ("sys.version_info >= (3, 12, 0, 'beta')", ("python", "", ">=3.12.0.beta"), None),
        ("sys.platform == 'win32'", ("platform", "win32", ""), ("platform", "win32", "!")),
        ("platform.system() != 'Linux'", ("platform", "linux", "!"), ("platform", "linux", "")),
        ("DEVICE_TYPE == 'xpu'", ("platform", "xpu", ""), ("platform", "xpu", "!")),
        ("x.device.type != 'npu'", ("platform", "npu", "!"), ("platform", "npu", "")),
        ("os.name == 'nt'", ("platform", "win32", ""), ("platform", "win32", "!")),
        (
            "is_torch_greater_or_equal_than_2_6",
            ("result", "m::is_torch_greater_or_equal_than_2_6", ""),
            ("result", "m::is_torch_greater_or_equal_than_2_6", "!"),
        ),
    ],
)
def test_python_and_platform_tests_become_guards(test, yes, no):
    guards = branches(test)
    assert guards[0] == (Guard(*yes),)
    assert no is None or guards[1] == (Guard(*no),)


def test_chained_python_comparison_becomes_guards():
    yes, no = branches("(3, 9) <= sys.version_info[:2] < (3, 12)")
    assert yes == (Guard("python", "[:2]", ">=3.9"), Guard("python", "[:2]", "<3.12"))
    assert [guard.kind for guard in no] == ["unknown"]


@each_row(
    "test",
    [
        "sys.version_info[:2] in ((3, 9), (3, 10))",
        "sys.version_info[-1] == 0",
        "sys.version_info[1:] > (9,)",
        "sys.version_info[0] in LIST",
        "os.environ.get(NAME, x) in ('1', 'true')",
    ],
)
def test_conditions_of_other_kinds_are_unknown_guards(test):
    yes, no = branches(test)
    assert [guard.kind for guard in (*yes, *no)] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    "test", ["current_platform.is_cuda()", "torch.cuda.is_available()", "is_torch_npu_available()"]
)
def test_call_of_an_availability_function_becomes_a_guard(test):
    guard = Guard("result", f"m::{test}")
    assert branches(test) == ((guard,), (Guard("result", guard.subject, "!"),))


def test_type_checking_and_hasattr_become_guards():
    assert branches("TYPE_CHECKING")[0] == (Guard("typing"),)
    assert branches("typing.TYPE_CHECKING")[0] == (Guard("typing"),)
    yes, no = branches("hasattr(vllm.envs, 'X')")
    assert yes == (Guard("handled", "AttributeError", "vllm.envs.X"),)
    assert no[0].kind == "unknown"
    handled = (Guard("handled", "AttributeError", "self.part.x"),)
    data = (Guard("data"),)
    assert branches("getattr(self.part, 'x', None)") == (handled, data)
    assert branches("getattr(self.part, 'x', None) is None") == (data, handled)
    assert branches("getattr(self.part, 'x', 1)") == (data, data)
    assert branches("getattr(self.part, 'x')") == (data, data)


def test_conjunction_with_a_data_condition_keeps_its_other_guards():
    data = (Guard("data"),)
    assert branches("count > 3") == (data, data)
    yes, no = branches("self.use and find_spec('vllm')")
    assert yes == (Guard("present", "vllm"),)
    assert no == data
    yes, no = branches("not find_spec('vllm') or count > 3")
    assert yes == data
    assert no == (Guard("present", "vllm"),)
    yes, no = branches("find_spec('vllm') and find_spec('peft')")
    assert yes == (Guard("present", "vllm"), Guard("present", "peft"))
    assert [guard.kind for guard in no] == ["unknown"]


@pytest.mark.parametrize("leave", ["return", "raise ImportError('x')", "continue"])
def test_code_after_an_early_exit_has_the_complementary_guard(leave):
    guards = guards_of(
        f"""
        def f():
            for _ in x:
                if Version(vllm.__version__) < Version("0.8"):
                    import old
                    {leave}
                import new
            import after
        """
    )
    assert guards["old"] == (version("vllm", "<0.8"),)
    assert guards["new"] == (version("vllm", ">=0.8"),)
    assert guards["after"] == ()


def test_handler_of_an_import_error_has_the_guard_that_the_module_is_absent():
    guards = guards_of(
        """
        try:
            from a.b import c
            import d
        except ImportError:
            import fallback
        else:
            import both
        """
    )
    handled = Guard("handled", "ImportError")
    assert guards["a.b"] == (handled,)
    assert guards["d"] == (handled, Guard("present", "a.b:c"))
    assert guards["fallback"] == (Guard("absent", "a.b:c, d"),)
    assert guards["both"] == (Guard("present", "a.b:c"), Guard("present", "d"))


def test_handler_that_raises_again_adds_no_guard():
    guards = guards_of(
        """
        try:
            import a
        except ImportError as error:
            raise RuntimeError("install a") from error
        """
    )
    assert guards["a"] == ()


def test_try_block_with_an_availability_test_becomes_guards():
    guards = guards_of(
        """
        try:
            if not find_spec('torch'):
                raise OptionalDependencyNotAvailable()
        except OptionalDependencyNotAvailable:
            import dummies
        else:
            import real
        """
    )
    assert guards["dummies"] == (Guard("absent", "torch"),)
    assert guards["real"] == (Guard("present", "torch"),)


@pytest.mark.parametrize("test", ["has_it", "flash is not None", "not missing"])
def test_names_set_in_a_try_block_become_guards(test):
    guards = guards_of(
        f"""
        has_it = False
        try:
            import flash
            has_it = True
            missing = False
        except ImportError:
            flash = None
            missing = True
        if {test}:
            import inside
        """
    )
    assert guards["inside"] == (Guard("present", "flash"),)


def test_suppressed_imports_and_flags_set_in_branches_become_guards():
    guards = guards_of(
        """
        with contextlib.suppress(ImportError):
            import quiet
        if find_spec("ray"):
            flag = True
        else:
            flag = False
        if flag:
            import inside
        """
    )
    assert guards["quiet"] == (Guard("handled", "ImportError"),)
    assert guards["inside"] == (Guard("present", "ray"),)


def test_flag_is_local_to_its_function():
    guards = guards_of(
        """
        def f():
            use = Version(vllm.__version__) < Version("0.8")
            if use:
                import old
        def g(use):
            if use:
                import other
        """
    )
    assert guards["old"] == (version("vllm", "<0.8"),)
    assert guards["other"] == (Guard("data"),)


PARAMETERS = """
import inspect
from vllm import LLM, AsyncEngineArgs
sig = inspect.signature(LLM.generate)
params = sig.parameters
names = set(dict(params).keys())
fields_of = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
takes_it = "tags" in params
"""


@each_row(
    ("test", "callee"),
    [
        ('"tags" in inspect.signature(LLM.generate).parameters', "LLM.generate"),
        ('"tags" in list(signature(LLM).parameters)', "LLM"),
        ('"tags" in inspect.getfullargspec(LLM.generate).args', "LLM.generate"),
        ('"tags" in LLM.generate.__code__.co_varnames', "LLM.generate"),
        ('inspect.signature(LLM.generate).parameters.get("tags") is not None', "LLM.generate"),
        ('"tags" in (found := inspect.signature(LLM.generate).parameters)', "LLM.generate"),
        ('"tags" in inspect.signature(make()).parameters', "?"),
        ('"tags" in inspect.signature(self.engine.wake_up).parameters', "self.engine.wake_up"),
        ('"tags" in sig.parameters', "LLM.generate"),
        ('"tags" in params', "LLM.generate"),
        ('"tags" in names', "LLM.generate"),
        ("takes_it", "LLM.generate"),
        ('"tags" in fields_of', "AsyncEngineArgs.__dataclass_fields__"),
        ('"tags" in AsyncEngineArgs.__dataclass_fields__', "AsyncEngineArgs.__dataclass_fields__"),
        ('"tags" in [f.name for f in fields(LLM)]', "LLM.__dataclass_fields__"),
    ],
)
def test_test_for_a_callable_parameter_becomes_a_guard(test, callee):
    facts = read_module(
        (PARAMETERS + f"if {test}:\n    import yes\nelse:\n    import no\n").encode(),
        "m",
        "m.py",
        package=False,
    )
    yes, no = facts.imports[-2:]
    assert yes.guards == (Guard("takes", f"m::{callee}", "tags"),)
    assert no.guards == (Guard("takes", f"m::{callee}", "!tags"),)


def test_negated_and_computed_tests_for_a_callable_parameter_are_read():
    guards = guards_of(
        """
        def f(key):
            known = inspect.signature(vllm.LLM).parameters
            if "tags" not in known:
                import old
            if key in known:
                import some
            known = []
            if "tags" in known:
                import data
        """
    )
    assert guards["old"] == (Guard("takes", "m:f:vllm.LLM", "!tags"),)
    assert [guard.kind for guard in guards["some"]] == ["unknown"]
    assert guards["data"] == (Guard("data"),)


def test_parameter_names_are_local_to_their_function():
    guards = guards_of(
        """
        def f():
            params = inspect.signature(vllm.LLM).parameters
            def g():
                if "tags" in params:
                    import inner
        def h(params):
            if "tags" in params:
                import other
        """
    )
    assert guards["inner"] == (Guard("takes", "m:f.g:vllm.LLM", "tags"),)
    assert guards["other"] == (Guard("data"),)
